"""Explain why one recorded hook fired before another, if the recording shows the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hookscope.recordings.event import Event

__all__ = ["explain_order"]

Call = tuple[str, int]  # name of a layer and number of its call

_MODULE = ("full_backward_pre", "full_backward")
_PARAMETER = ("tensor", "post_accumulate_grad")
# The order of the events at one tensor.
_TENSOR_ORDER = ("tensor", "retain_grad", "node_pre", "post_accumulate_grad", "node_post")
_TENSOR_REASONS = {
    "tensor": "a tensor hook fires when the gradient of its tensor is complete, before anything else uses it.",
    "retain_grad": "retain_grad fills .grad before the hooks of the node fire.",
    "node_pre": "the pre-hooks of a node fire before the node runs. For a leaf, this node fills .grad.",
    "post_accumulate_grad": "post-accumulate-grad hooks fire as soon as .grad is filled. The post-hooks of the node "
    "fire when it has finished.",
}


def explain_order(first: Event, second: Event, events: Sequence[Event], notes: Sequence[str] = ()) -> str:
    """Explain why one event came before another. Without a known reason, only state the order.

    Args:
        first: an event.
        second: a later event.
        events: all events of the recording.
        notes: the notes of the recording, which list full backward hooks that fired early.

    Example:
        >>> import torch
        >>> from hookscope.recordings.record import record
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> with record(model, kinds=["forward_pre", "forward"]) as recording:
        ...     y = model(torch.ones(1, 4))
        >>> events = recording.events
        >>> explain_order(events[2], events[3], events)
        "forward 0 comes before forward (root): '0' runs inside the forward() of (root), and a forward hook fires when
        forward() has returned."

    """
    plain = f"{first.label} comes before {second.label}"
    reason = _find_reason(first, second, _CallTimes(events, notes))
    return f"{plain}: {reason}" if reason else f"{plain} in this run."


class _CallTimes:
    """The calls of layers in a recording: when each began and ended, what it received and returned."""

    def __init__(self, events: Sequence[Event], notes: Sequence[str]) -> None:
        self.events = events
        self.begin: dict[Call, int] = {}
        self.end: dict[Call, int] = {}
        self.args: dict[Call, object] = {}
        self.output: dict[Call, object] = {}
        for event in events:
            call = event.name, event.call
            if event.kind == "forward_pre":
                self.begin.setdefault(call, event.index)
                self.args[call] = event.shapes
            elif event.kind == "forward":
                self.end[call] = event.index
                self.output[call] = event.shapes
        self.times = Counter(name for name, _ in self.begin)
        self._notes = notes

    def is_inside(self, inner: Call | None, outer: Call | None) -> bool:
        """Tell whether one call ran inside the forward() of another."""
        if inner is None or outer is None or not {inner, outer} <= self.begin.keys() & self.end.keys():
            return False
        return self.begin[outer] < self.begin[inner] and self.end[inner] < self.end[outer]

    def is_after(self, later: Call | None, earlier: Call | None) -> bool:
        """Tell whether one call began after another had returned."""
        if later is None or earlier is None or later not in self.begin or earlier not in self.end:
            return False
        return self.begin[later] > self.end[earlier]

    def find_owner(self, event: Event) -> Call | None:
        """Return the call of a backward event. A parameter has one only if its layer was called once."""
        if event.kind in _MODULE:
            return event.name, event.call
        layer = _get_layer(event)
        return (layer, 1) if layer is not None and self.times[layer] == 1 else None

    def is_early(self, event: Event) -> bool:
        """Tell whether a full backward hook fired early because no input requires grad."""
        note = f"No input of layer {event.name or '(root)'} requires grad"
        return not _has_input_gradient(event) and any(text.startswith(note) for text in self._notes)

    def format(self, call: Call) -> str:
        name = repr(call[0]) if call[0] else "(root)"
        return f"call {call[1]} of {name}" if self.times[call[0]] > 1 else name


def _get_layer(event: Event) -> str | None:
    """Return the layer of a parameter; None if the event does not belong to a parameter."""
    if event.kind not in _PARAMETER or event.type != "Parameter":
        return None
    return event.name.rpartition(".")[0]


def _has_input_gradient(event: Event) -> bool:
    """Tell whether a full backward hook got the gradient of an input."""
    shapes = event.shapes
    return event.kind == "full_backward" and isinstance(shapes, tuple) and any(shape is not None for shape in shapes)


def _find_reason(a: Event, b: Event, calls: _CallTimes) -> str:
    if (a.kind, a.name, a.call) == (b.kind, b.name, b.call):
        return _explain_same_point(a, b)
    if "step" in (a.phase, b.phase):
        return _explain_step(a, b)
    if a.phase != b.phase:
        same = (a.name, a.call) == (b.name, b.call) and b.kind in _MODULE
        before = (event.phase == "forward" for event in calls.events if event.index < a.index)
        if a.phase == "forward" and (same or all(before)):
            return "forward builds the graph for the backward pass, so its hooks come first."
        return ""
    if a.phase == "forward":
        return _explain_forward(a, b, calls)
    return _explain_backward(a, b, calls)


def _explain_same_point(a: Event, b: Event) -> str:
    if not b.hook:
        return "hookscope's own hook is registered last, so it is the last of its kind to fire."
    if a.kind in (*_PARAMETER, "forward_pre", "forward", *_MODULE):
        first = "" if a.kind in _PARAMETER else "global hooks come first, then those with prepend=True, then "
        return f"{first}hooks of one kind fire in the order in which they were registered."
    return ""


def _explain_step(a: Event, b: Event) -> str:
    if (a.kind, b.kind) == ("step_pre", "step_post") and (a.name, a.call) == (b.name, b.call):
        return "step pre-hooks fire before the step, post-hooks after it."
    if a.phase != "step" and b.kind == "step_pre":
        return "step hooks fire around optimizer.step(), which was called later."
    return ""


def _explain_forward(a: Event, b: Event, calls: _CallTimes) -> str:
    one, other = (a.name, a.call), (b.name, b.call)
    if one == other and (a.kind, b.kind) == ("forward_pre", "forward"):
        return "a forward pre-hook fires before forward(), a forward hook after it."
    if calls.is_inside(other, one) and a.kind == "forward_pre":
        inside = f"{calls.format(other)} runs inside the forward() of {calls.format(one)}"
        return f"{inside}, and a forward pre-hook fires before forward() begins."
    if calls.is_inside(one, other) and b.kind == "forward":
        inside = f"{calls.format(one)} runs inside the forward() of {calls.format(other)}"
        return f"{inside}, and a forward hook fires when forward() has returned."
    if calls.is_after(other, one):
        return f"{calls.format(one)} had returned when {calls.format(other)} began."
    return ""


def _explain_backward(a: Event, b: Event, calls: _CallTimes) -> str:
    if {a.kind, b.kind} <= set(_TENSOR_ORDER) and (a.name, a.call) == (b.name, b.call):
        return _TENSOR_REASONS[a.kind] if _TENSOR_ORDER.index(a.kind) < _TENSOR_ORDER.index(b.kind) else ""
    one, other = calls.find_owner(a), calls.find_owner(b)
    if one == other and (a.kind, b.kind) == _MODULE:
        return "the full backward pre-hook needs only grad_output. The full backward hook also gets grad_input."
    if a.kind in _MODULE and a.name == _get_layer(b):
        return _explain_parameter(a, b, calls)
    if one is None or other is None:
        return _explain_possible_tensor(a, b, calls)
    if calls.is_early(a) and calls.is_inside(other, one):
        return (
            f"no input of {calls.format(one)} requires grad. So its full backward hook has no gradient to wait for, "
            f"and fires before the hooks of inner layers, such as {calls.format(other)}."
        )
    if one == other and _has_input_gradient(b):
        return (
            "a full backward hook waits for the gradient of the input. A parameter's AccumulateGrad node adds its "
            "gradient to .grad as soon as it is computed."
        )
    if a.kind == "full_backward_pre" and calls.is_inside(other, one):
        return (
            f"the pre-hook of {calls.format(one)} needs only the gradient of its output, which is computed before "
            f"the backward pass of inner layers, such as {calls.format(other)}."
        )
    if calls.is_inside(one, other):
        return (
            f"the full backward hook of {calls.format(other)} waits for the gradient of its input, which is computed "
            f"last, after inner layers such as {calls.format(one)}."
        )
    if calls.is_after(one, other):
        return (
            "backward runs from the output to the input, so the last call comes first: "
            f"{calls.format(one)} was called after {calls.format(other)}."
        )
    return ""


def _explain_parameter(a: Event, b: Event, calls: _CallTimes) -> str:
    if a.kind == "full_backward_pre":
        return (
            "the pre-hook fires before the backward pass of the layer, which computes the gradients of its parameters."
        )
    if calls.is_early(a):
        return (
            f"no input of {calls.format((a.name, a.call))} requires grad. So its full backward hook has no gradient to "
            "wait for, and fires before the gradients of its parameters are computed."
        )
    if a.call > 1:
        times = calls.times[a.name]
        return f"{a.name or '(root)'} was called {times} times. Its parameters' gradients are complete after all calls."
    return ""


def _explain_possible_tensor(a: Event, b: Event, calls: _CallTimes) -> str:
    """Explain what follows if the tensor is the input or output of the layer. The recording does not show that."""
    if a.kind == "tensor" and b.kind in _MODULE and _contains_shape(a.shapes, calls.output.get((b.name, b.call))):
        return f"if {a.name!r} is the output of {calls.format((b.name, b.call))}, backward reaches it before the layer."
    if a.kind in _MODULE and b.kind == "tensor" and _contains_shape(b.shapes, calls.args.get((a.name, a.call))):
        return (
            f"if {b.name!r} is the input of {calls.format((a.name, a.call))}, its gradient is complete only "
            "after the backward pass of the layer."
        )
    return ""


def _contains_shape(shape: object, shapes: object) -> bool:
    """Tell whether a shape is in a tuple of shapes, or is the only one."""
    return shape == shapes or (isinstance(shapes, tuple) and shape in shapes)
