"""Know where tokens come before samples, so that the first axis is not taken for that of samples there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hookscope.interp.edits.hooks import NoCopyWhileHooked
from hookscope.layers import Modules

__all__ = [
    "PACKED",
    "AxisOrderCheck",
    "as_many",
    "is_packed",
    "refuse_other_order",
    "said_of",
    "samples_in",
    "with_tokens_first",
]


def with_tokens_first(modules: Modules, name: str) -> nn.Module | None:
    """Find out whether a layer is, or is in, a module that is known to have tokens before samples inside.

    Modules of torch say so by `batch_first`. XLNet's model turns what it is called with, and turns its output back.
    """
    on_the_way = modules.path_to(name)
    for module in on_the_way:
        if module is not on_the_way[-1] and type(module).__name__ == "XLNetModel":
            return module
        if getattr(module._modules.get("self_attn", module), "batch_first", True) is False:
            return module
    return None


def said_of(around: nn.Module) -> str:
    """Say of what kind a module is that has tokens before samples."""
    option = " with batch_first=False" if hasattr(around._modules.get("self_attn", around), "batch_first") else ""
    return f"{type(around).__name__}{option}"


def refuse_other_order(
    modules: Modules, module: nn.Module, name: str, to: str, path: tuple[int | str, ...] | None, what: str
) -> None:
    """Refuse what takes the first axis for that of samples where it is known to be another one.

    Tokens come before samples in modules that say so; the states of an RNN have its layers there.

    Args:
        modules: those of the model.
        module: the layer.
        name: its name.
        to: "input", "output" or "grad".
        path: which tensor of a structure; None for the only one.
        what: takes the axis so: "samples=", "mean" or "positions=".

    Raises:
        ValueError: says what to write instead.

    """
    takes = f"{what} takes the first axis for that of samples; write an index, such as at[:, 1]"
    if isinstance(module, nn.RNNBase) and path and path[0] in ((1, "hx") if to == "input" else (1,)):
        where = f"layer {name!r} ({type(module).__name__}) has states of (layers, samples, features)"
    elif (around := with_tokens_first(modules, name)) is not None:
        where = f"layer {name!r} is, or is in, a {said_of(around)}, tokens before samples"
        if what == "positions=":  # of as many tokens as samples they could not be told apart
            takes = "positions= is for (samples, tokens, …); write an index for it, such as at[7], and calls="
    else:
        return
    raise ValueError(f"{where}, and {takes}")


def samples_in(given: Iterable[Any]) -> int | None:
    """Count the samples that a model is called with: of the first tensor, or the items of the first list of them."""
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
    "an encoder has packed padded samples into a nested tensor, which takes no index; make it with "
    "enable_nested_tensor=False, or set use_nested_tensor = False on it"
)
"""What is wrong with a tensor that `is_packed`."""


def is_packed(value: object) -> bool:
    """Whether a value is a nested tensor of the kind that `nn.TransformerEncoder` makes of padded samples."""
    return isinstance(value, Tensor) and value.is_nested and value.layout is torch.strided


def as_many(tensor: Tensor, count: int, label: str) -> str:
    """Say that two axes of a tensor could be taken for that of samples; "" if they cannot.

    Example:
        >>> import torch
        >>> as_many(torch.ones(4, 4, 2), 4, "layer 'fc'")
        "layer 'fc', shape (4, 4, 2): two axes are as long as there are samples; the first is taken for theirs"
        >>> as_many(torch.ones(4, 3, 2), 4, "layer 'fc'")
        ''

    """
    if tensor.dim() != 3 or count < 2 or tensor.shape[:2] != (count, count):
        return ""
    return (
        f"{label}, shape {tuple(tensor.shape)}: two axes are as long as there are samples; the first is taken for "
        "theirs"
    )


@dataclass(eq=False)
class AxisOrderCheck(NoCopyWhileHooked):
    """Hooks on the modules that take tokens before samples, which notice if the model itself is called in that order.

    A word-language model may have its tokens first from its inputs on: nothing but the LSTM in it says so.

    Attributes:
        modules: those of the model.
        count: tells how many samples the model is running on, if its first axis is that of samples.
        what: what takes it to be, such as "samples=".
        instead: what to do then.
        notes: what there is to know, as keys; shared with others.

    """

    modules: Modules
    count: Callable[[], int | None]
    what: str
    instead: str = "write an index, such as at[7] for a token or at[:, 1] for a sample"
    notes: dict[str, None] = field(default_factory=dict)

    def register(self, handles: ExitStack) -> None:
        """Register the hooks; `batch_first=False` is what torch calls that order."""
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
        """Compare what a module is called with and what the model was called with.

        Raises:
            ValueError: the model has tokens first.

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
                f"{what} is given {tokens} tokens of {samples} samples. So the model was called with tokens first, and "
                f"{self.what} takes its first axis for that of samples; {self.instead}"
            )
        if tokens == count or samples % count:
            self.notes[
                f"{what} is given {tokens} tokens of {samples} samples, and {self.what} takes the first axis of what "
                f"the model was called with, {count}, for that of samples"
            ] = None

    before.__qualname__ = "hookscope.edit"  # what a census shows
