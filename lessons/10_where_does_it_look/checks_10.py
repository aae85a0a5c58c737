"""Exercises of chapter 10: a map for one class over another, a control for any map."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope_course.practice import Wrong, allows
from hookscope_course.practice.check_helpers import (
    BreakingLayer,
    add_foreign_hooks,
    fill_grads,
    have_grads_changed,
    is_close,
)
from hookscope_course.practice.exercise_kinds import find_left_hooks, runs_model


class _Reads(nn.Module):
    """Two convolutions and a head that cares for positions."""

    def __init__(self, high: int, wide: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 4, 3, padding=1)
        self.head: nn.Module = nn.Linear(4 * high * wide, 5)
        self.calls = 0
        self.to(dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).tanh()
        logits: Tensor = self.head(x.flatten(1))
        return logits

    def after(self, layer: nn.Module, output: Tensor) -> Tensor:
        """Return the logits that follow from the output of one of the convolutions."""
        if layer is self.first:
            output = self.second(output.relu())
        logits: Tensor = self.head(output.tanh().flatten(1))
        return logits

    def output_of(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return what one of the convolutions returns."""
        maps: Tensor = self.first(x)
        return maps if layer is self.first else self.second(maps.relu())


# -- one class over another -----------------------------------------------------------------------------------------

_Versus = Callable[[nn.Module, nn.Module, Tensor, int, int], object]


def _break_head(versus: _Versus) -> tuple[nn.Module, Callable[[], object]]:
    model = _Reads(4, 4)
    model.head = BreakingLayer()
    return model, lambda: versus(model, model.second, torch.rand(1, 1, 4, 4, dtype=torch.float64), 0, 1)


@runs_model((5, 4, "second", 1), (4, 6, "second", 3), (3, 5, "first", 2), broken=_break_head, comes_off=True)
def check_q1(versus: _Versus, high: int, wide: int, name: str, batch: int) -> Wrong | None:
    model, x = _Reads(high, wide), torch.randn(batch, 1, high, wide, dtype=torch.float64)
    layer = model.get_submodule(name)
    a, b = torch.randperm(5)[:2].tolist()
    with torch.enable_grad():
        output = model.output_of(layer, x).detach().requires_grad_()
        logits = model.after(layer, output)
        grads = [torch.autograd.grad(logits[:, n].sum(), output, retain_graph=True)[0] for n in (a, b)]
    output, grad = output.detach(), grads[0] - grads[1]
    right = (grad * output).sum(1)
    before = fill_grads(model)
    result = versus(add_foreign_hooks(model), layer, x, a, b)
    if left := find_left_hooks(model):
        return left
    if have_grads_changed(model, before):
        return Wrong("your function changed a `.grad` of the model; `torch.autograd.grad` changes none of them")
    if not isinstance(result, Tensor):
        return Wrong(f"your function returned {result!r}; it should return a tensor of shape (batch, height, width)")
    if result.shape != right.shape:
        return Wrong(f"your map has the shape {tuple(result.shape)}; it should have {tuple(right.shape)}")
    if is_close(result, right):
        return Wrong("your map still has a graph; detach it") if result.requires_grad else None
    for reason, values in {
        f"your map is for class {a} alone; class {b} should count against it": (grads[0] * output).sum(1),
        "you swapped the classes: red should mean evidence for `a`": -right,
        "you averaged the gradient of each channel; keep each position's own gradient": (
            (grad.mean((2, 3), keepdim=True) * output).sum(1)
        ),
        "your map is the gradient alone; multiply it by the output of the layer": grad.sum(1),
        "your map has lost the evidence against `a`; keep the negative values": right.relu(),
    }.items():
        if is_close(result, values):
            return Wrong(reason)
    if is_close(result[:1], right[:1]):
        return Wrong("your map is right for the first image only; sum the difference over all images of the batch")
    return Wrong("your map is not gradient times output of this layer, summed over the channels")


# -- a control ------------------------------------------------------------------------------------------------------

_Draw = Callable[[nn.Module, Tensor], Tensor]


def _break_draw(control: Callable[[_Draw, nn.Module, Tensor], object]) -> tuple[nn.Module, Callable[[], object]]:
    model, breaks = _Reads(4, 4), BreakingLayer()
    return model, lambda: control(breaks, model, torch.rand(1, 1, 4, 4, dtype=torch.float64))


@allows("random")
@runs_model(("opposite",), ("alike",), ("anything",), broken=_break_draw)
def check_q2(control: Callable[[_Draw, nn.Module, Tensor], object], kind: str) -> Wrong | None:
    dtype = torch.float32 if kind == "alike" else torch.float64
    model, x = add_foreign_hooks(_Reads(5, 4, dtype)), torch.randn(1, 1, 5, 4, dtype=dtype)
    mine = torch.randn(5, 4, dtype=dtype) + 3
    other = {"opposite": 1 - 2 * mine, "alike": mine.clone(), "anything": torch.randn(5, 4, dtype=dtype) - 1}[kind]
    before = {name: values.clone() for name, values in model.state_dict().items()}
    drawn: list[tuple[nn.Module, dict[str, Tensor], Tensor]] = []

    def draw(drawn_of: nn.Module, image: Tensor) -> Tensor:
        state = {name: values.clone() for name, values in drawn_of.state_dict().items()}
        drawn.append((drawn_of, state, image))
        return mine if all(torch.equal(state[name], before[name]) for name in before) else other

    result = control(draw, model, x)
    if any(not torch.equal(values, before[name]) for name, values in model.state_dict().items()):
        return Wrong("you gave the model itself new weights; change a copy")
    if any(image.shape != x.shape or not torch.equal(image, x) for _, _, image in drawn):
        return Wrong("`draw` did not get `x` but a different image; only the network should change")
    changed = [{name for name in before if not torch.equal(state[name], before[name])} for _, state, _ in drawn]
    if not any(changed):
        return Wrong("`draw` was never called with a network whose weights differ from those of `model`")
    if not all(changed) and {*map(frozenset, changed)} - {frozenset(), frozenset({"head.weight", "head.bias"})}:
        extra = sorted({name for each in changed for name in each if not name.startswith("head.")})
        if extra:
            return Wrong(f"the copy also has a new {extra[0]}; give new weights only to `head`")
        return Wrong("only part of `head` is random; `reset_parameters()` renews the weight and the bias")
    if all(changed):
        return Wrong("`draw` was never called with the unchanged network")
    if not all(state["head.weight"].std() > 0 for _, state, _ in drawn):
        return Wrong("all weights of the copy's `head` are equal; give it random weights, with `reset_parameters()`")
    try:
        value = float(result)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return Wrong(f"your function returned {result!r}; it should return the correlation, one number")
    a, b = (each.flatten() - each.mean() for each in (mine, other))
    right = float(F.cosine_similarity(a, b, dim=0))
    if abs(value - right) < 1e-4:
        return None
    if abs(value - abs(right)) < 1e-4:
        return Wrong(f"you returned {value:.2f}; it should be {right:.2f}, with its sign")
    if abs(value - float(F.cosine_similarity(mine.flatten(), other.flatten(), dim=0))) < 1e-4:
        return Wrong("you returned the cosine of the two maps; for a correlation, first subtract the mean of each")
    return Wrong(f"you returned {value:.2f}; the correlation of the two maps should be {right:.2f}")
