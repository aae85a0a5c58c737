"""Recognize layers in which tokens come before samples, so that edits do not treat their first axis as samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hookscope.interp.edits.pass_hooks import NoCopyWhileHooked
from hookscope.layers import Modules

__all__ = [
    "PACKED",
    "AxisOrderCheck",
    "as_many",
    "describe_module",
    "has_batch_first",
    "is_packed",
    "refuse_other_order",
    "samples_in",
    "with_tokens_first",
]


def with_tokens_first(modules: Modules, name: str) -> nn.Module | None:
    """Find the module around a layer, or the layer itself, that has tokens before samples; None if there is none.

    Modules of torch have an attribute `batch_first`. XLNet's model transposes its input and transposes its output back.
    """
    on_the_way = modules.path_to(name)
    for module in on_the_way:
        if module is not on_the_way[-1] and type(module).__name__ == "XLNetModel":
            return module
        if getattr(module._modules.get("self_attn", module), "batch_first", True) is False:
            return module
    return None


def has_batch_first(around: nn.Module) -> bool:
    """Return whether a module has the option `batch_first`."""
    return hasattr(around._modules.get("self_attn", around), "batch_first")


def describe_module(around: nn.Module) -> str:
    """Describe a module that has tokens before samples."""
    return f"{type(around).__name__}{' with batch_first=False' if has_batch_first(around) else ''}"


def refuse_other_order(
    modules: Modules, module: nn.Module, name: str, to: str, path: tuple[int | str, ...] | None, what: str
) -> None:
    """Refuse an option that needs samples on the first axis if the first axis holds something else.

    It holds tokens in modules with `batch_first=False`, and layers in the states of an RNN.

    Args:
        modules: the modules of the model.
        module: the layer.
        name: its name.
        to: "input", "output" or "grad".
        path: which tensor of a structure; None for the only one.
        what: the option: "samples=", "mean" or "positions=".

    Raises:
        ValueError: the first axis does not hold samples. The message says what to write instead.

    """
    takes = f"{what} needs samples on the first axis. Use an index, such as at[:, 1]"
    if isinstance(module, nn.RNNBase) and path and path[0] in ((1, "hx") if to == "input" else (1,)):
        where = f"layer {name!r} ({type(module).__name__}) has states of shape (layers, samples, features)"
    elif (around := with_tokens_first(modules, name)) is not None:
        where = f"layer {name!r} is, or is in, a {describe_module(around)}, with tokens before samples"
        if what == "positions=":  # of as many tokens as samples they could not be told apart
            takes = "positions= needs shape (samples, tokens, …). Use an index, such as at[7], and calls="
    else:
        return
    raise ValueError(f"{where}, but {takes}")


def samples_in(given: Iterable[Any]) -> int | None:
    """Count the samples in the inputs of a model: in the first tensor, or in the first list of tensors."""
    for value in given:
        if isinstance(value, PackedSequence):
            return int(value.batch_sizes[0])
        if isinstance(value, Tensor):
            return len(value) if value.dim() and not value.is_nested else None
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return len(value) if isinstance(value, list) else samples_in(value)
        if isinstance(value, Mapping):
            return samples_in(value.values())
    return None


PACKED = (
    "an encoder packed padded samples into a nested tensor, which cannot be indexed. Create the encoder with "
    "enable_nested_tensor=False, or set its attribute use_nested_tensor to False"
)
"""The error for a tensor that `is_packed`."""


def is_packed(value: object) -> bool:
    """Return whether a value is a nested tensor, as `nn.TransformerEncoder` creates it from padded samples."""
    return isinstance(value, Tensor) and value.is_nested and value.layout is torch.strided


def as_many(tensor: Tensor, count: int, label: str) -> str:
    """Return a note if two axes of a tensor could be the samples; "" otherwise.

    Example:
        >>> import torch
        >>> as_many(torch.ones(4, 4, 2), 4, "layer 'fc'")
        "layer 'fc', shape (4, 4, 2): two axes have the length of the batch; the first is treated as the samples"
        >>> as_many(torch.ones(4, 3, 2), 4, "layer 'fc'")
        ''

    """
    if tensor.dim() != 3 or count < 2 or tensor.shape[:2] != (count, count):
        return ""
    return (
        f"{label}, shape {tuple(tensor.shape)}: two axes have the length of the batch; the first is treated as the "
        "samples"
    )


@dataclass(eq=False)
class AxisOrderCheck(NoCopyWhileHooked):
    """Hooks on modules that take tokens before samples, which detect whether the model itself is called in that order.

    A language model can have tokens first already in its inputs, and only the LSTM in it shows that.

    Attributes:
        modules: the modules of the model.
        count: returns the number of samples if the first axis of the model's input holds samples.
        what: the option that relies on this, such as "samples=".
        instead: what to do instead, for the error message.
        notes: notes for the user, as keys; shared with other objects.

    """

    modules: Modules
    count: Callable[[], int | None]
    what: str
    instead: str = "Use an index, such as at[7] for a token or at[:, 1] for a sample"
    notes: dict[str, None] = field(default_factory=dict)

    def register(self, handles: ExitStack) -> None:
        """Register the hooks; torch calls this order `batch_first=False`."""
        for module in self._asked():
            handles.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)

    def _asked(self) -> list[nn.Module]:
        kinds = (nn.RNNBase, nn.MultiheadAttention)  # the layers of nn.Transformer have one of the latter
        # An RNN with batch_first=True may be given a packed sequence, for which that says nothing.
        packable = nn.RNNBase
        return [
            module
            for module in self.modules.names
            if isinstance(module, kinds) and (not module.batch_first or isinstance(module, packable))
        ]

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare the input of a module with the input of the model.

        Raises:
            ValueError: the input of the model has tokens first.

        """
        tensors = (Tensor, PackedSequence)
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, tensors)), None)
        count = self.count()
        if given is None or count is None or count < 2:
            return
        if isinstance(given, Tensor) and (given.dim() != 3 or module.batch_first):
            return
        if isinstance(given, PackedSequence):
            tokens, samples = len(given.batch_sizes), int(given.batch_sizes[0])
        else:
            tokens, samples = given.shape[:2]
        kind = "" if module.batch_first else " with batch_first=False"
        what = f"layer {self.modules.names[module]!r} ({type(module).__name__}{kind})"
        if tokens == count and samples % count:
            raise ValueError(
                f"{what} gets {tokens} tokens of {samples} samples. So the model was called with tokens first, but "
                f"{self.what} needs samples on the first axis. {self.instead}"
            )
        if tokens == count or samples % count:
            self.notes[
                f"{what} gets {tokens} tokens of {samples} samples, and {self.what} treats the first axis of the "
                f"model's input, of length {count}, as the samples"
            ] = None

    before.__qualname__ = "hookscope.edit"  # what a census shows
