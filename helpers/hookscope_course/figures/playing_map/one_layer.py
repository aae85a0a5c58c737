"""One layer, y = weight · x, with hooks in every place: what torch gives each of them, and what comes out.

Every number comes from a run of torch. A hook that looks changes nothing, so a run with hooks in all places tells what
each hook would have been given, whether it is there or not. There are eight places where a hook can multiply; the 256
runs of `record_runs` are all there is to know.

That weight gets its gradient before x does is true of this layer. In `nn.Linear` without a hook on its module, x comes
first: its gradient takes one node less.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "EFFECTS",
    "MULTIPLIERS",
    "PLACES",
    "LayerEvent",
    "LayerRun",
    "Place",
    "check_kind",
    "record_runs",
    "run_hooks",
]


class Place(NamedTuple):
    """A place where a hook can sit: what the hook is called there, and how it is registered."""

    name: str
    register: str


PLACES = {
    "forward_pre": Place("forward pre-hook", "layer.register_forward_pre_hook"),
    "forward": Place("forward hook", "layer.register_forward_hook"),
    "tensor_y": Place("tensor hook on y", "y.register_hook"),
    "retain_grad": Place("retain_grad on y", "y.retain_grad"),
    "full_backward_pre": Place("full backward pre-hook", "layer.register_full_backward_pre_hook"),
    "tensor_weight": Place("tensor hook on weight", "weight.register_hook"),
    "post_accumulate_grad": Place("post-accumulate-grad hook", "weight.register_post_accumulate_grad_hook"),
    "full_backward": Place("full backward hook", "layer.register_full_backward_hook"),
    "tensor_x": Place("tensor hook on x", "x.register_hook"),
}
"""Every place of the map, along the way there and back."""
EFFECTS = ("look", "multiply")
MULTIPLIERS = tuple(kind for kind in PLACES if kind != "retain_grad")
"""The places where a hook can multiply by ten; `retain_grad` takes no function."""


class LayerEvent(NamedTuple):
    """Something that happened in a run: where, what went in, and what came out."""

    at: str
    given: float
    gave: float


class LayerRun(NamedTuple):
    """What torch did: the events in their order, and the values at the end."""

    events: tuple[LayerEvent, ...]
    y: float
    x_grad: float
    weight_grad: float
    y_grad: float | None


class _Scale(nn.Module):
    """y = weight · x, which notes when it computes and when its backward step begins."""

    def __init__(self, events: list[LayerEvent]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64, device="cpu"))
        self._events = events

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * x
        self._events.append(LayerEvent("compute", x.item(), y.item()))
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda grads: self._note(grads[0]))
        return y

    def _note(self, grad: Tensor) -> None:
        self._events.append(LayerEvent("step", grad.item(), grad.item()))


def check_kind(kind: str, kinds: Iterable[str] = tuple(PLACES)) -> str:
    """Return the kind if there is such a place; else raise ValueError with the nearest."""
    known = tuple(kinds)
    if kind in known:
        return kind
    near = get_close_matches(str(kind), known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    raise ValueError(f"there is no place {kind!r} for a hook; {advice}")


def run_hooks(hooks: Mapping[str, str]) -> LayerRun:
    """Register these hooks on a new layer, call it with x = 3, call `y.backward()`, and return what happened.

    Args:
        hooks: for each place, "look" or "multiply", which is by ten.

    Example:
        >>> run_hooks({"full_backward": "multiply"}).x_grad
        20.0

    """
    events: list[LayerEvent] = []

    def hook(kind: str, value: Callable[..., Tensor], wrap: Callable[[Tensor], object]) -> Callable[..., object]:
        factor = 10 if hooks[kind] == "multiply" else 1

        def seen(*given: object) -> object:
            tensor = value(*given)
            events.append(LayerEvent(kind, tensor.item(), factor * tensor.item()))
            return wrap(factor * tensor) if factor > 1 else None

        return seen

    def in_place(weight: Tensor) -> None:
        assert weight.grad is not None
        before = weight.grad.item()
        if hooks["post_accumulate_grad"] == "multiply":
            weight.grad *= 10
        events.append(LayerEvent("post_accumulate_grad", before, weight.grad.item()))

    with torch.inference_mode(False), torch.enable_grad():
        layer = _Scale(events)
        x = torch.tensor(3.0, dtype=torch.float64, device="cpu", requires_grad=True)
        if "forward_pre" in hooks:
            layer.register_forward_pre_hook(hook("forward_pre", lambda _, args: args[0], lambda new: (new,)))
        if "forward" in hooks:
            layer.register_forward_hook(hook("forward", lambda _, args, output: output, lambda new: new))
        if "full_backward_pre" in hooks:
            layer.register_full_backward_pre_hook(
                hook("full_backward_pre", lambda _, grad_output: grad_output[0], lambda new: (new,))
            )
        if "full_backward" in hooks:
            layer.register_full_backward_hook(
                hook("full_backward", lambda _, grad_input, grad_output: grad_input[0], lambda new: (new,))
            )
        if "tensor_weight" in hooks:
            layer.weight.register_hook(hook("tensor_weight", lambda grad: grad, lambda new: new))  # type: ignore[no-untyped-call]
        if "post_accumulate_grad" in hooks:
            layer.weight.register_post_accumulate_grad_hook(in_place)  # type: ignore[no-untyped-call]
        if "tensor_x" in hooks:
            x.register_hook(hook("tensor_x", lambda grad: grad, lambda new: new))  # type: ignore[no-untyped-call]
        y = layer(x)
        if "tensor_y" in hooks:
            y.register_hook(hook("tensor_y", lambda grad: grad, lambda new: new))
        if "retain_grad" in hooks:
            y.retain_grad()
        y.backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    y_grad = y.grad.item() if "retain_grad" in hooks else None
    if y_grad is not None:
        events = _with_retained(events, y_grad)
    return LayerRun(tuple(events), y.item(), x.grad.item(), layer.weight.grad.item(), y_grad)


def _with_retained(events: list[LayerEvent], y_grad: float) -> list[LayerEvent]:
    """Put in when `y.grad` was kept: torch calls nobody, but does it after the tensor hooks and before the node."""
    after = {"forward_pre", "compute", "forward", "tensor_y"}
    place = next(at for at, event in enumerate(events) if event.at not in after)
    return [*events[:place], LayerEvent("retain_grad", y_grad, y_grad), *events[place:]]


@functools.cache
def record_runs() -> tuple[tuple[str, ...], tuple[LayerRun, ...]]:
    """Run every choice of multiplying hooks, with hooks in all places.

    Returns:
        The order of the events, which is the same in all runs, and the runs. In the run of number n, the hook at
        `MULTIPLIERS[i]` multiplies if bit i of n is set.

    """
    runs = []
    for bits in product((0, 1), repeat=len(MULTIPLIERS)):
        factors = {kind: EFFECTS[bit] for kind, bit in zip(MULTIPLIERS, reversed(bits), strict=True)}
        runs.append(run_hooks({kind: factors.get(kind, "look") for kind in PLACES}))
    orders = {tuple(event.at for event in run.events) for run in runs}
    if len(orders) != 1:
        raise RuntimeError(f"the order of the hooks depends on what they return: {sorted(orders)}")
    return orders.pop(), tuple(runs)
