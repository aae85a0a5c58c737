"""Exercises of chapter 17: the part of each call, a differentially private sum, a hook for one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    add_foreign_hooks,
    fill_grads,
    have_grads_changed,
    is_close,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, runs_model
from hookscope_course.practice.probe_models import make_broken

_OTHER_GRADS = "you changed a `.grad` of the model; use `torch.autograd.grad`, which does not change any"


# -- the part of each call ------------------------------------------------------------------------------------------


class _Calls(nn.Module):
    """Calls one Linear several times, in a chain or side by side, with another layer around it.

    Args:
        width: of the layer, in and out.
        samples: the number of rows of each input; in a chain the first one counts.
        chain: whether the output of a call is the input of the next.

    """

    def __init__(self, width: int, samples: Sequence[int], chain: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, dtype=torch.float64)
        self.other = nn.Linear(width, width, dtype=torch.float64)
        self.chain = chain
        self.inputs = [torch.randn(number, width, dtype=torch.float64) for number in samples]
        self.called = 0

    def weighted(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the loss with a weight of its own for each call."""
        x, loss = self.inputs[0], torch.zeros((), dtype=torch.float64)
        for weight, given in zip(weights, self.inputs, strict=True):
            x = F.linear(x if self.chain else given, weight, self.layer.bias)
            x = self.other(x).tanh()
            loss = loss + (x.square().sum() if not self.chain else 0)
        return x.square().sum() if self.chain else loss

    def run(self) -> Tensor:
        """Return the loss; this is what an answer is given."""
        self.called += 1
        x, loss = self.inputs[0], torch.zeros((), dtype=torch.float64)
        for given in self.inputs:
            x = self.other(self.layer(x if self.chain else given)).tanh()
            loss = loss + (x.square().sum() if not self.chain else 0)
        return x.square().sum() if self.chain else loss


def _break(parts_of: Callable[..., object]) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: parts_of(model[0], lambda: model(torch.ones(1, 2)).sum())


@runs_model(
    (3, (4, 4, 4), True), (2, (1, 3, 2, 5), False), (4, (2, 2), True), (3, (1,), True), broken=_break, comes_off=True
)
def check_q1(
    parts_of: Callable[[nn.Module, Callable[[], Tensor]], object], width: int, samples: Sequence[int], chain: bool
) -> Wrong | None:
    model, many = _Calls(width, samples, chain), len(samples)
    with torch.enable_grad():
        copies = [model.layer.weight.detach().clone().requires_grad_() for _ in range(many)]
        right = torch.autograd.grad(model.weighted(copies), copies)
    before = fill_grads(model)
    result = parts_of(add_foreign_hooks(model).get_submodule("layer"), model.run)
    if left := find_left_hooks(model):
        return left
    if have_grads_changed(model, before):
        return Wrong(_OTHER_GRADS)
    if model.called > 1:
        return Wrong(f"you called `run` {model.called} times; one call should give you all parts")
    if isinstance(result, Tensor) and is_close(result, torch.stack(right)):
        return Wrong("your function returned one tensor; it should be a list with one tensor for each call")
    if isinstance(result, Tensor) and is_close(result, sum(right, torch.zeros_like(right[0]))):
        return Wrong("you returned the sum over the calls, like `weight.grad`; it should be a list of the parts")
    if not isinstance(result, list | tuple):
        return Wrong(f"your function returned a {type(result).__name__}; it should be a list of tensors")
    if len(result) != many:
        entries = f"{len(result)} {'entry' if len(result) == 1 else 'entries'}"
        return Wrong(f"your list has {entries}, but the layer was called {many} times; it should be one for each call")
    if any(isinstance(part, Tensor) and part.requires_grad for part in result):
        return Wrong("your parts have a graph; detach the inputs that you store")
    if all(map(is_close, result, right)):
        return None
    if all(map(is_close, reversed(result), right)):
        return Wrong("your parts are in the order of the backward pass; the part of the first call should come first")
    if all(map(is_close, result, [part.T for part in right])):
        return Wrong("your parts are transposed; they should have the shape of `weight`, (out, in)")
    first = result[0]
    if isinstance(first, Tensor) and first.shape != right[0].shape:
        each = "; add up over the samples of a call" if first.ndim == 3 else ""
        return Wrong(
            f"your first part has the shape {tuple(first.shape)}; it should be that of the weight, "
            f"{tuple(right[0].shape)}{each}"
        )
    total = sum(right, torch.zeros_like(right[0]))
    if all(is_close(part, total) for part in result):
        return Wrong(
            "each of your parts is the sum over all calls; it should be the part of one call. A hook on the "
            "weight gets only the sum"
        )
    return Wrong("your parts are wrong; each gradient should be combined with the input of its own call")


# -- a differentially private sum -----------------------------------------------------------------------------------


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(private_sum: Callable[[Tensor, Tensor, float], object]) -> Wrong | None:
    for samples, wide, out, dtype in ((6, 4, 5, torch.float64), (5, 4, 4, torch.float32), (7, 2, 3, torch.float64)):
        x, grad, most = _case(samples, wide, out, dtype)
        if wrong := _wrong_sum(private_sum(x.clone(), grad.clone(), most), x, grad, most):
            return wrong
    return None


def _case(samples: int, wide: int, out: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, float]:
    """Return what `ends_of` keeps, and the largest norm, so that no two readings give the same sum."""
    while True:
        x, grad = 0.3 * torch.randn(samples, wide, dtype=dtype), torch.randn(samples, out, dtype=dtype)
        x[int(torch.randint(samples, ()))] = 0
        rows = _parts(x, grad)
        most = 1.5 * rows.flatten(1).norm(dim=1).sort().values[samples // 3].item()
        sums = [_clipped(rows, most).sum(0), *_readings_of_sum(x, grad, most).values()]
        if not any(is_close(a, b) for place, a in enumerate(sums) for b in sums[:place]):
            return x, grad, most


def _wrong_sum(result: object, x: Tensor, grad: Tensor, most: float) -> Wrong | None:
    rows = _parts(x, grad)
    right = _clipped(rows, most).sum(0)
    if not isinstance(result, Tensor):
        return Wrong(f"your function returned a {type(result).__name__}; it should be a tensor (out, in)")
    if is_close(result, right):
        return None
    if is_close(result, right.T):
        return Wrong("your sum is transposed; it should have the shape of the weight of a Linear, (out, in)")
    if result.shape != right.shape:
        parts = ". You returned the parts; return their sum" if result.shape == rows.shape else ""
        parts = ". You returned one number" if not result.ndim else parts
        return Wrong(
            f"your result has the shape {tuple(result.shape)}; it should be that of the weight, "
            f"{tuple(right.shape)}{parts}"
        )
    if result.isnan().any():
        return Wrong("you divided by the norm of a part, which is 0 for one sample, so the result is NaN")
    read = _readings_of_sum(x, grad, most)
    reasons = (reason for reason, value in read.items() if is_close(result, value))
    return Wrong(next(reasons, "your result is wrong; it should be the sum of the clipped parts"))


def _parts(x: Tensor, grad: Tensor) -> Tensor:
    return grad[:, :, None] * x[:, None]


def _clipped(rows: Tensor, most: float) -> Tensor:
    norms = rows.flatten(1).norm(dim=1)
    clipped: Tensor = rows * (most / norms.clamp(min=most))[:, None, None]
    return clipped


def _readings_of_sum(x: Tensor, grad: Tensor, most: float) -> dict[str, Tensor]:
    """What answers that went wrong in a known way return."""
    rows = _parts(x, grad)
    norms = rows.flatten(1).norm(dim=1)[:, None, None]
    small = norms < most
    total = rows.sum(0)
    return {
        "you did not clip anything; your result is the whole gradient, `weight.grad`": total,
        "you clipped the sum; clip each sample's part before you add them up": total * min(1, most / total.norm()),
        "you scaled every part to `most`; do not change smaller parts": (rows * most / norms.clamp(min=1e-12)).sum(0),
        "you clipped each number; clip the norm of a sample's whole part": rows.clamp(-most, most).sum(0),
        "you left large parts out; scale them down to `most`": (rows * small).sum(0),
        "you divided by the number of samples; return the sum": _clipped(rows, most).mean(0),
        "you clipped `grad`; clip the norm of a sample's whole part": (
            (grad * (most / grad.norm(dim=1, keepdim=True).clamp(min=most))).T @ x
        ),
        "you clipped each row of a part; clip the norm of a sample's whole part": (
            rows * (most / rows.norm(dim=2, keepdim=True).clamp(min=most))
        ).sum(0),
    }


# -- a hook for one backward pass -----------------------------------------------------------------------------------


@adds_hook()
def check_q3(edit_once: Callable[[Tensor, Callable[[Tensor], Tensor]], object]) -> Wrong | None:
    for values, dtype in (((1.0,), torch.float64), ((3.0, 2.0), torch.float32)):
        for edit, factor, power in ((lambda grad: 2 * grad, 8, 3), (lambda grad: grad * grad, 8, 5)):
            x = torch.tensor(values, dtype=dtype, requires_grad=True)
            with torch.enable_grad():
                wrong = _wrong_once(edit_once, edit, x, factor, power)
            if wrong:
                return wrong
    return None


def _wrong_once(
    edit_once: Callable[[Tensor, Callable[[Tensor], Tensor]], object],
    edit: Callable[[Tensor], Tensor],
    x: Tensor,
    factor: int,
    power: int,
) -> Wrong | None:
    """Differentiate x⁴ twice; with the edit, the first derivative is factor · x ** power."""
    y = x * x
    edit_once(y, edit)
    z = (y * y).sum()
    (first,) = torch.autograd.grad(z, x, create_graph=True)
    said, wanted, plain = (
        f"at x = {x[0]:g}, the first derivative is {first[0]:g}",
        factor * x.detach() ** power,
        4 * x**3,
    )
    if not is_close(first, wanted):
        nothing = "; your hook did not edit the gradient" if is_close(first, plain) else ""
        return Wrong(f"{said}, but it should be {wanted[0]:g}{nothing}")
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    wanted = factor * power * x.detach() ** (power - 1)
    if is_close(second, wanted):
        (again,) = torch.autograd.grad(z, x)
        if is_close(again, plain):
            return None
        return Wrong("your hook edits the gradient again in a third pass; it should act in the first pass only")
    said = f"at x = {x[0]:g}, the second derivative is {second[0]:g}, but it should be {wanted[0]:g}"
    if second[0] < wanted[0]:
        return Wrong(f"{said}. A part of it is missing: did you cut the graph of the gradient?")
    return Wrong(f"{said}. Your hook also edits in the second pass; it should act in the first pass only")
