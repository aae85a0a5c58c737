"""Explain why the input of a model is wrong, and what to pass instead. torch often names only a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.error_pages import append_page
from hookscope.pictures.words import count_text
from hookscope.pytree import find_tensors, tree_map

__all__ = ["WrongInputError", "check_batch_axis", "describe_wrong_input", "explain_input_errors"]

_INPUT_ERRORS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError)
_CONVS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv1d: ("L",),
    nn.Conv2d: ("H", "W"),
    nn.Conv3d: ("D", "H", "W"),
}


class WrongInputError(ValueError):
    """The model cannot run on these inputs. A notebook shows the message without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def explain_input_errors(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turn an exception of the model into a `WrongInputError` if the inputs are the reason.

    Other exceptions are raised unchanged.
    """
    try:
        yield
    except _INPUT_ERRORS as error:
        if reason := _find_reason(model, args, kwargs, error):
            raise WrongInputError(reason) from error
        raise


def describe_wrong_input(model: nn.Module, error: BaseException) -> str:
    """Say what is wrong with the input of the call of the model that raised; "" if the input is not the reason.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> try:
        ...     layer("text")
        ... except TypeError as error:
        ...     print(describe_wrong_input(layer, error))
        Linear got a str and no tensor. Pass the tensors that its forward takes

    """
    if not isinstance(error, _INPUT_ERRORS):
        return ""
    step = error.__traceback__
    while step is not None:
        inside = step.tb_frame.f_locals
        if step.tb_frame.f_code.co_name == "_call_impl" and inside.get("self") is model:
            return _find_reason(model, inside.get("args", ()), inside.get("kwargs", {}), error, is_own_call=True)
        step = step.tb_next
    return ""


def check_batch_axis(names: Mapping[nn.Module, str], args: Sequence[Any], outputs: Mapping[str, Any]) -> None:
    """Refuse an image without a batch axis. Convolutions accept it, but the picker would take its channels for samples.

    Args:
        names: the dotted name of every module.
        args: the positional arguments of the model.
        outputs: the output of each layer's first call, by name.

    Raises:
        WrongInputError: an input and the output of a convolution have no batch axis.

    """
    for module, name in names.items():
        axes = _get_axes(module)
        output = outputs.get(name)
        if axes and isinstance(output, Tensor) and output.dim() == len(axes) + 1:
            for x in find_tensors(args):
                if x.dim() == len(axes) + 1 and x.shape[0] == module.in_channels:
                    raise WrongInputError(_describe_missing_batch(x, name, module))


def _find_reason(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception, is_own_call: bool = False
) -> str:
    """Say what is wrong with the inputs; `is_own_call`: the user called the model, and no function of hookscope did."""
    if not args and not kwargs:
        return "" if is_own_call else f"{type(model).__name__} got no input. Pass its arguments after the model"
    values = [*args, *kwargs.values()]
    # A model of the user's own can take arrays, and raise for another reason.
    is_type_refused = isinstance(error, (TypeError, AttributeError)) or not is_own_call
    if is_type_refused and (reason := _describe_other_types(model, values, is_own_call)):
        return reason
    if isinstance(error, (TypeError, AttributeError)) and not find_tensors(values):
        return _describe_no_tensor(model, values[0])
    names = {module: name for name, module in model.named_modules()}
    failed, given = _find_failure(error)
    if failed is None or given is None or given.is_nested:  # a nested tensor has no shape to compare
        return ""
    for x in find_tensors([args, kwargs]):
        first = next((module for module in names if _get_axes(module)), None)
        if first is not None and x.dim() == len(_get_axes(first)) + 1 and x.shape[0] == first.in_channels:
            return _describe_missing_batch(x, names[first], first)
    return _compare_with_layer(names.get(failed, ""), failed, given)


def _describe_other_types(model: nn.Module, values: Sequence[Any], is_own_call: bool) -> str:
    arrays: list[np.ndarray[Any, Any]] = []
    tree_map(arrays.append, list(values), np.ndarray)
    if arrays:
        return (
            f"the input is a NumPy array of shape {arrays[0].shape}, but {type(model).__name__} takes tensors. Pass "
            f"torch.from_numpy(x){'' if arrays[0].dtype == np.float32 else '.float()'}"
        )
    if len(values) == 1 and isinstance(values[0], (list, tuple)) and find_tensors(values[0]):
        return (
            f"the input is a {type(values[0]).__name__} of length {len(values[0])}, not a tensor. Pass its tensors as "
            "arguments, *inputs, or as one batch, torch.cat(inputs)"
        )
    if len(values) == 1 and isinstance(values[0], Mapping) and find_tensors(values[0]):
        names = ", ".join(map(repr, list(values[0])[:3]))
        fix = "with two stars, model(**inputs)" if is_own_call else "as kwargs=inputs"
        return f"the input is a {type(values[0]).__name__} with the keys {names}. Pass it {fix}"
    if values and values[0] is None and not is_own_call:
        return f"the input is None. Pass the arguments of {type(model).__name__} after the model"
    return ""


def _describe_no_tensor(model: nn.Module, value: object) -> str:
    inside = value[0] if isinstance(value, (list, tuple)) and value else value
    is_text = isinstance(inside, str) and any(isinstance(module, nn.Embedding) for module in model.modules())
    fix = "Pass the token ids of the text as a tensor; a tokenizer returns them" if is_text else ""
    kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    kind = "None" if value is None else kind
    return f"{type(model).__name__} got {kind} and no tensor. {fix or 'Pass the tensors that its forward takes'}"


def _find_failure(error: Exception) -> tuple[nn.Module | None, Tensor | None]:
    """Return the innermost module that raised the error, and the first tensor among its arguments."""
    failed, given, step = None, None, error.__traceback__
    while step is not None:
        inside = step.tb_frame.f_locals
        if step.tb_frame.f_code.co_name == "_call_impl" and isinstance(inside.get("self"), nn.Module):
            failed = inside["self"]
            given = next(iter(find_tensors([inside.get("args"), inside.get("kwargs")])), None)
        step = step.tb_next
    return failed, given


def _compare_with_layer(name: str, module: nn.Module, x: Tensor) -> str:
    """Compare the input of a layer with the input that the layer expects."""
    title = f"{name or 'the model'} ({type(module).__name__})"
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if x.device != weight.device:
            return f"{title} is on {weight.device}, but its input is on {x.device}. Pass x.to({str(weight.device)!r})"
        if x.dtype != weight.dtype:
            cast = ".float()" if weight.dtype == torch.float32 else f".to({weight.dtype})"
            hint = ", and divide by 255 if the model was trained on 0 to 1" if x.dtype == torch.uint8 else ""
            return f"{title} has weights of dtype {weight.dtype}, but its input has dtype {x.dtype}. Pass x{cast}{hint}"
    shape = tuple(x.shape)
    if axes := _get_axes(module):
        want = _format_shape(module)
        if x.dim() < len(axes) + 1:
            missing = ", ".join(["None"] * (len(axes) + 2 - x.dim()))
            text = f"{title} expects shape {want}, but its input has shape {shape}. To add axes, pass x[{missing}]"
            return append_page(text, "no_batch_axis")
        at = x.dim() - len(axes) - 1
        if x.shape[at] != module.in_channels:
            if x.shape[-1] == module.in_channels:
                fix = f". Its channels come last, so pass x.movedim(-1, {at})"
            elif module.in_channels == 1 and x.shape[at] == 3:
                fix = ". To turn three color channels into one, pass x.mean(1, keepdim=True)"
            elif module.in_channels == 3 and x.shape[at] == 1:
                fix = ". To give a gray image three channels, pass x.expand(-1, 3, -1, -1)"
            else:
                fix = ""
            channels: Any = module.in_channels
            return (
                f"{title} expects {count_text(channels, 'channel')}, shape {want}, but its input has shape {shape}{fix}"
            )
    if isinstance(module, nn.Linear) and shape[-1:] != (module.in_features,):
        return (
            f"{title} expects {module.in_features} features in the last axis, but its input has shape {shape}. Check "
            "the size of your input, and that it has a batch axis (x[None] adds one)"
        )
    if isinstance(module, nn.RNNBase) and shape[-1:] != (module.input_size,):
        return f"{title} expects {module.input_size} features in the last axis, but its input has shape {shape}"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if x.is_floating_point():
            return f"{title} expects integers, but its input has dtype {x.dtype}. Pass x.long()"
        if x.numel() and (int(x.max()) >= module.num_embeddings or int(x.min()) < 0):
            last = module.num_embeddings - 1
            return f"{title} takes indices from 0 to {last}, but its input has values from {x.min()} to {x.max()}"
    return ""


def _describe_missing_batch(x: Tensor, name: str, module: nn.Module) -> str:
    text = (
        f"the input of shape {tuple(x.shape)} has no batch axis: {name or 'the model'} ({type(module).__name__}) "
        f"expects {_format_shape(module)}. Pass x[None], of shape {(1, *x.shape)}"
    )
    return append_page(text, "no_batch_axis")


def _get_axes(module: nn.Module) -> tuple[str, ...]:
    return next((axes for kind, axes in _CONVS.items() if isinstance(module, kind)), ())


def _format_shape(module: Any) -> str:
    return f"({', '.join(['N', str(module.in_channels), *_get_axes(module)])})"
