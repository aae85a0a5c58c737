"""Explain a capture or an edit with plain torch code that does the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture, NotCapturedError
from hookscope.explanations.code import capture_code, loss_lines
from hookscope.pictures.words import html_of, visible

__all__ = ["RUN", "Explanation", "explain", "returns_tensor"]

RUN = "result = model(*inputs)  # for keyword arguments: model(**inputs)"


class Explanation:
    """Plain torch code that does the same as a capture or an edit; created by `explain`.

    Attributes:
        code: the source code. It uses `model` and `inputs`, the arguments of the model, and runs one pass.
        title: a short description.
        names: other variables of the code, by name: the tensors and functions of an edit.

    """

    def __init__(self, code: str, title: str, names: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.title = title
        self.names = dict(names or {})

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return visible(self.code.rstrip("\n"))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        html = (
            f"<figure>\n<figcaption>{html_of(self.title)}</figcaption>\n"
            f'<pre tabindex="0"><code>{html_of(self.code)}</code></pre>\n</figure>'
        )
        return {"text/plain": repr(self), "text/html": html}


@singledispatch
def explain(obj: Any) -> Explanation:
    """Write plain torch code that does the same as a capture or an edit.

    The code uses the variables `model` and `inputs`, a tuple of positional arguments. It registers hooks, runs one
    pass, and removes the hooks. Limits: https://hookscope.github.io/hookscope/limits/explain.html

    Args:
        obj: the object that `capture` returned, before or after its pass, or that `edit` returned, after its pass.

    Returns:
        An `Explanation`; a notebook shows its code. `Explanation.names` holds the tensors and functions of an edit.

    Raises:
        TypeError: `obj` is not a capture or an edit, or it is a copy without its model.
        ValueError: plain code cannot do this. The message says what to do instead.

    Example:
        >>> from torch import nn
        >>> from hookscope import capture
        >>> for line in explain(capture(nn.ReLU())).code.splitlines()[-7:]:
        ...     print(line)
        try:
            for layer in layers:
                handles.append(layer.register_forward_hook(keep_output))
            result = model(*inputs)  # for keyword arguments: model(**inputs)
        finally:
            for handle in handles:
                handle.remove()  # otherwise your hooks fire in every later pass

    """
    raise TypeError(
        f"explain writes the code of a capture or an edit, not of a {type(obj).__name__}. Pass what "
        "hookscope.capture(...) or hookscope.edit(...) returned"
    )


@explain.register
def _explain_capture(seen: Capture) -> Explanation:
    return Explanation(_code_of(seen), f"{seen.title}: what flowed through its layers, with plain torch")


def _code_of(seen: Capture) -> str:
    if not hasattr(seen, "modules"):
        raise TypeError("this capture is a copy without its model. Explain the original capture")
    wanted = seen._wanted
    given = {option: getattr(wanted.form, option, None) is not None for option in ("samples", "dtype", "device")}
    given |= {"copy": not getattr(wanted.form, "copy", True), "stats": wanted.stats_only, "stop": bool(wanted.stop)}
    for option, there in given.items():
        if there:
            raise ValueError(f"explain cannot write code for {option}=. Capture without it, and explain that capture")
    if wanted.gradients and seen._record.opaque:
        raise ValueError(
            f"explain cannot write code for this capture: the model returns a {seen._record.opaque}, so the code "
            "cannot find a tensor for the loss. Capture without gradients=True, or capture a part of the model"
        )
    layers = {name: seen.modules.find(name) for name in [*seen, *seen.uncalled]}
    for name, module in layers.items():
        if type(module).__hash__ is not nn.Module.__hash__:
            raise ValueError(
                f"explain cannot write code for layer {name!r}: its class {type(module).__name__} defines __hash__, "
                "and the code uses layers as keys of a dict. Capture the other layers"
            )
    plain = _returned_tensors(seen) if seen.calls else all(map(returns_tensor, layers.values()))
    run = [RUN, *(loss_lines(returns_tensor(seen.modules.model)) if wanted.gradients else [])]
    return capture_code([*layers], run, plain=plain, gradients=wanted.gradients, inputs=wanted.inputs)


def _returned_tensors(seen: Capture) -> bool:
    """Check whether each layer returned a single tensor; raise an error if something cannot be written as code."""
    plain = True
    for call in seen.calls:
        try:
            output = call.output
            given = (call.args, call.kwargs) if seen._wanted.inputs else None
        except NotCapturedError as error:
            raise ValueError(f"explain cannot write code for this capture: {error}. Capture another pass") from error
        if kind := _unknown(output) or _unknown(given):
            raise ValueError(
                f"explain cannot write code for call {call.label}, because its inputs or outputs contain a {kind}. "
                "Capture layers with tensors only, or with tuples, lists and dicts of tensors"
            )
        plain = plain and isinstance(output, Tensor)
    return plain


def _unknown(value: Any, depth: int = 0) -> str:
    """Name the first class in a value that the code cannot copy; "" if there is none."""
    if value is None or isinstance(value, (Tensor, int, float, str, torch.device, torch.dtype)):
        return ""
    if not isinstance(value, (Mapping, tuple, list)) or depth > 20:
        return type(value).__name__
    items = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_unknown(item, depth + 1) for item in items)), "")


_SURE = ("linear", "conv", "activation", "batchnorm", "instancenorm", "normalization", "dropout", "flatten")


def returns_tensor(module: nn.Module | None) -> bool:
    """Return whether a module is of a type in torch that always returns one tensor."""
    while type(module) is nn.Sequential and len(module):
        module = module[-1]
    sure = type(module).__module__ in {f"torch.nn.modules.{name}" for name in _SURE}
    return sure and not isinstance(module, (nn.Identity, nn.MultiheadAttention))
