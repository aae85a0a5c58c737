"""One hook that fired: what it was, and what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import torch

from hookscope.pictures.picture import as_text
from hookscope.pytree import list_items

Shapes = tuple["Shapes", ...] | dict[str, "Shapes"] | str | int | None
Phase = Literal["forward", "backward", "step"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_DEEP = 8  # containers nested deeper are named, not opened: one may contain itself
_WHOLE = 16  # a tensor with more elements is kept as its mean, min and max
# What a hook of each kind is given.
GIVEN = {
    "forward_pre": "args",
    "forward": "output",
    "full_backward_pre": "grad_output",
    "full_backward": "grad_input",
    "backward": "grad_input",
    "tensor": "grad",
    "post_accumulate_grad": "param",
    "retain_grad": "grad",
    "multi_grad": "grads",
    "node_pre": "grad_outputs",
    "node_post": "grad_inputs",
    "step_pre": "args",
    "step_post": "args",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a tensor with many elements."""

    mean: float
    min: float
    max: float

    def __str__(self) -> str:
        return f"mean {as_text(self.mean)} min {as_text(self.min)} max {as_text(self.max)}"


@dataclass(frozen=True, slots=True)
class Event:
    """One hook that fired.

    Attributes:
        index: place in the recording, from 1.
        kind: one of `KINDS`; `"backward"` for a legacy hook that was already on the model; `"retain_grad"`,
            `"node_pre"`, `"node_post"` and `"multi_grad"` for what is watched; `"step_pre"` and `"step_post"`
            for optimizers.
        name: dotted name of the layer (`""` is the root), the name of the tensor, the names of the tensors of a
            `multi_grad` with commas, or the class of the optimizer, numbered if there are several.
        type: class of the module, tensor or optimizer. For the kinds of nodes the name of the node, for
            `multi_grad` its mode.
        call: for a layer the number of its call within the recording, from 1; a backward event has the
            number of the forward call that it belongs to. For an optimizer the number of its step, else how
            often this hook has fired.
        phase: `"forward"`, `"backward"` or `"step"`.
        shapes: what the hook was given, every tensor replaced by its shape, `None` kept, anything else by
            the name of its type: args (with kwargs, if there are any, as a dict at the end) for
            `forward_pre`, output for `forward`, grad_output for `full_backward_pre`, grad_input for
            `full_backward`, the gradient or the parameter for the hooks of tensors, the gradients of a node's
            outputs for `node_pre` and of its inputs for `node_post`, the args and kwargs of `step`.
        hook: `""` for hookscope's own hook, else the name of the learner's callable.
        depth: how many calls of recorded layers were open around this one; 0 outside the forward phase.
        values: None without `record(..., values=True)`. Else what the hook was given, with every tensor of 16
            elements or fewer detached and cloned, a larger one as its `mean`, `min` and `max`, and numbers as
            they are. For `post_accumulate_grad` the `.grad` of the parameter.
        by: name of the thread, or of the task of asyncio, that ran the hook. What torch runs on a thread of its own,
            as backward on a GPU, belongs to the thread that waits for it; where several wait, it is `backward pass 1`
            and so on. Events that differ in nothing else are equal.

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
    by: str = field(default="", compare=False)  # Python numbers its threads anew in each run

    @property
    def label(self) -> str:
        """The event in short: kind, name, `#call` from the second call on, the learner's callable."""
        label = f"{self.kind} {self.name or '(root)'}{f' #{self.call}' if self.call > 1 else ''}"
        return f"{label}: {self.hook}" if self.hook else label

    @property
    def given(self) -> str:
        """What the hook was given, in words and shapes: `"args ((2, 4),)"`."""
        return f"{GIVEN[self.kind]} {self.shapes}"

    def to_dict(self) -> dict[str, Any]:
        """The event as a dict that `json.dumps` takes."""
        event = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return event | {"shapes": _as_json(self.shapes), "values": _as_json(to_lists(self.values))}


def find_phase(kind: str) -> Phase:
    """Tell in which phase hooks of a kind fire."""
    return "forward" if kind.startswith("forward") else "step" if kind.startswith("step") else "backward"


def describe_shapes(value: object, depth: int = 0) -> Shapes:
    """Describe a value by the shapes of the tensors in it.

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
    """Keep the numbers in a value: small tensors whole, large ones summed up; nothing that holds a graph.

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
    """Describe what is in a container, one level deeper; name the class of what is none, or cannot be read."""
    if not isinstance(value, Mapping | tuple | list) or depth >= _DEEP:
        return type(value).__name__
    try:
        held = list_items(value)
    except Exception:  # whatever somebody else's container raises
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(key): describe(item, depth + 1) for key, item in held}
    return tuple(describe(item, depth + 1) for item in held)


def _numbers(tensor: torch.Tensor) -> torch.Tensor | Summary | str:
    try:
        # What is made in inference mode could not be used outside.
        with torch.inference_mode(mode=False):
            tensor = tensor.detach()
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
                return "meta tensor" if tensor.is_meta else f"{'nested' if tensor.is_nested else 'sparse'} tensor"
            if tensor.numel() <= _WHOLE:
                kept = tensor.clone()
                kept.tolist()  # raises where there is nothing to read, as under torch.vmap
                while torch._C._functorch.is_functorch_wrapped_tensor(kept):  # no use outside its transform
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
    """Replace the tensors in `values` by nested lists of numbers."""
    if isinstance(values, torch.Tensor):
        return values.tolist()
    if isinstance(values, dict):
        return {key: to_lists(item) for key, item in values.items()}
    return tuple(to_lists(item) for item in values) if isinstance(values, tuple) else values


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


def _as_json(value: Any) -> Any:
    if isinstance(value, Summary):
        return asdict(value)
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return str(value) if isinstance(value, complex) else value
