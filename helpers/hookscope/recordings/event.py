"""One event of a recording: which hook fired, and which values it got."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from hookscope.pictures.picture import as_text
from hookscope.pytree import list_items, tree_map

Shapes = tuple["Shapes", ...] | dict[str, "Shapes"] | str | int | None


class Keywords(dict[str, Any]):
    """The keyword arguments of a call, which are not a dict among its positional arguments.

    Example:
        >>> Keywords(mask=(2, 4))
        **{'mask': (2, 4)}

    """

    def __repr__(self) -> str:
        return f"**{super().__repr__()}"


Phase = Literal["forward", "backward"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_LEVELS = 8  # deeper containers are shown by their type, because one can contain itself
_WHOLE = 16  # a larger tensor is stored as its mean, min and max
# The argument that a hook of each kind gets.
GIVEN = {
    "forward_pre": "args",
    "forward": "output",
    "full_backward_pre": "grad_output",
    "full_backward": "grad_input",
    "backward": "grad_input",
    "tensor": "grad",
    "post_accumulate_grad": "param",
    "retain_grad": "grad",
    "node_pre": "grad_outputs",
    "node_post": "grad_inputs",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, min and max of a large tensor."""

    mean: float
    min: float
    max: float

    def __str__(self) -> str:
        return f"mean {as_text(self.mean)} min {as_text(self.min)} max {as_text(self.max)}"


@dataclass(frozen=True, slots=True)
class Event:
    """One hook that fired.

    Attributes:
        index: number of the event, from 1.
        kind: one of `KINDS`, or a kind of watched tensors and nodes, or `"backward"` for a legacy hook.
        name: name of the layer, with `""` for the root, or of the tensors.
        type: class of the module or tensor; name of the autograd node.
        call: number of the call that the event belongs to, from 1. For tensors: how often this hook has fired.
        phase: `"forward"` or `"backward"`.
        shapes: the hook's argument, with shapes in place of tensors and type names in place of other objects.
        hook: name of the function, `""` for hookscope's own hook.
        depth: how many calls of recorded layers were open; 0 outside the forward phase.
        values: with `record(..., values=True)`, the values that the hook got. Tensors of up to 16 elements are cloned,
            larger ones become their mean, min and max. For `post_accumulate_grad` this is the parameter's `.grad`.
        by: name of the thread or asyncio task. Two events that differ only here or in `values` are equal.

    """

    index: int
    kind: str
    name: str
    type: str
    call: int
    phase: Phase
    shapes: Shapes
    hook: str = ""
    depth: int = 0
    values: Any = field(default=None, compare=False)  # tensors do not compare to one truth value
    by: str = field(default="", compare=False)  # thread names differ from run to run

    @property
    def label(self) -> str:
        """Kind and name, with `#2` for a second call and the name of a hook that is not hookscope's."""
        label = f"{self.kind} {self.name or '(root)'}{f' #{self.call}' if self.call > 1 else ''}"
        return f"{label}: {self.hook}" if self.hook else label

    @property
    def given(self) -> str:
        """The hook's argument with its shapes, such as `"args ((2, 4),)"`."""
        return f"{GIVEN[self.kind]} {self.shapes}"


def find_phase(kind: str) -> Phase:
    """Return the phase in which hooks of this kind fire."""
    return "forward" if kind.startswith("forward") else "backward"


def describe_shapes(value: object, depth: int = 0) -> Shapes:
    """Replace the tensors in a value by their shapes.

    Example:
        >>> describe_shapes((torch.ones(2, 4), None, {"mask": torch.ones(4)}, 3))
        ((2, 4), None, {'mask': (4,)}, 'int')

    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and not (value.is_nested and value.layout == torch.strided):
        # The ragged side of a nested tensor is a symbol, not an int.
        return tuple(side if type(side) is int else str(side) for side in value.shape)
    if isinstance(value, torch.Tensor):
        return "nested tensor"
    found: Shapes = _inside(value, depth, describe_shapes)
    return found


def summarize_values(value: object, depth: int = 0) -> Any:
    """Copy the values of small tensors, and summarize large ones, without keeping a graph.

    Example:
        >>> summarize_values((torch.ones(2), None, {"mask": torch.arange(100.0)}, 3))
        (tensor([1., 1.]), None, {'mask': Summary(mean=49.5, min=0.0, max=99.0)}, 3)

    """
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, torch.Tensor):
        return _numbers(value)
    return _inside(value, depth, summarize_values)


def _inside(value: object, depth: int, describe: Callable[[object, int], Any]) -> Any:
    """Describe the items of a container; for other objects, return the name of the type."""
    if not isinstance(value, Mapping | tuple | list) or depth >= _LEVELS:
        return type(value).__name__
    try:
        held = list_items(value)
    except Exception:  # a container of another library can raise anything
        return type(value).__name__
    if isinstance(value, Mapping):
        found = {str(key): describe(item, depth + 1) for key, item in held}
        return Keywords(found) if isinstance(value, Keywords) else found
    return tuple(describe(item, depth + 1) for item in held)


def _numbers(tensor: torch.Tensor) -> torch.Tensor | Summary | str:
    try:
        # A tensor made in inference mode could not be used outside.
        with torch.inference_mode(mode=False):
            tensor = tensor.detach()
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
                return "meta tensor" if tensor.is_meta else f"{'nested' if tensor.is_nested else 'sparse'} tensor"
            if tensor.numel() <= _WHOLE:
                kept = tensor.clone()
                kept.tolist()  # raises if there are no values, as under torch.vmap
                while torch._C._functorch.is_functorch_wrapped_tensor(kept):  # cannot be used outside its transform
                    kept = torch._C._functorch.get_unwrapped(kept)
                return kept
            if tensor.is_complex():
                return "complex tensor"  # has no min and max
            low, high = tensor.aminmax()
            exact = torch.float32 if tensor.device.type == "mps" else torch.float64
            return Summary(tensor.mean(dtype=exact).item(), float(low.item()), float(high.item()))
    except (RuntimeError, TypeError):  # NotImplementedError, and the errors of torch, are RuntimeErrors
        return "unreadable tensor"


def to_lists(values: Any) -> Any:
    """Replace the tensors in `values` by nested lists."""
    return tree_map(torch.Tensor.tolist, values)


def format_values(values: Any) -> str:
    """Write `values` for people, numbers with four digits.

    Example:
        >>> format_values((torch.tensor([[1.0, 1 / 3]]), {"scale": 2}))
        '([[1, 0.3333]], {scale: 2})'

    """
    if isinstance(values, dict):
        return "{" + ", ".join(f"{key}: {format_values(item)}" for key, item in values.items()) + "}"
    if isinstance(values, tuple):
        return "(" + ", ".join(map(format_values, values)) + ("," if len(values) == 1 else "") + ")"
    return "None" if values is None else as_text(to_lists(values))
