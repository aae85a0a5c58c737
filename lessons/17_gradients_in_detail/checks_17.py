"""Exercises of chapter 17: the gradient of each sequence, a clip for each sample, Grad-CAM of a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.probing import CALLS_NOTHING, SWALLOWED, Breaks, left_on, swallows, with_others

_OTHER_GRADS = "a `.grad` of the model is another than before; leave each as it was"


def _with_grads(model: nn.Module) -> dict[str, Tensor]:
    """Give each parameter a `.grad`, as a step before would have left it; return copies."""
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def _changed_grads(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = {name: parameter.grad for name, parameter in model.named_parameters()}
    return any((grad := now[name]) is None or not torch.equal(grad, was) for name, was in before.items())


def _left(hooks: int) -> str:
    return f"{hooks} hook{'s are' if hooks > 1 else ' is'} still on the model"


def _hooks_on(*models: nn.Module) -> int:
    return left_on(*models)


def _close(a: object, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=1e-3, atol=1e-4)


# -- the gradient of each sequence ----------------------------------------------------------------------------------


class _Losses(nn.Module):
    """Two Linears, and a loss for each sample at each step; the steps of a sample may take from each other.

    Args:
        width: of the steps that come in.
        mixing: how much of the mean over the steps is added to each step.
        dtype: of the weights.
        note: called with "call" at each call, and with "backward" at each backward pass.

    """

    def __init__(self, width: int, mixing: float, dtype: torch.dtype, note: Callable[[str], object]) -> None:
        super().__init__()
        self.first = nn.Linear(width, width + 2, dtype=dtype)
        self.second = nn.Linear(width + 2, 3, dtype=dtype)
        self.last: nn.Module = nn.Identity()
        self.mixing, self.note = mixing, note

    def forward(self, x: Tensor) -> Tensor:
        self.note("call")
        y: Tensor = self.second(self.first(x).tanh())
        y = y + self.mixing * y.mean(1, keepdim=True)
        losses: Tensor = self.last((y - 1).square().sum(-1))
        if losses.requires_grad and not torch._C._functorch.is_functorch_wrapped_tensor(losses):
            losses.register_hook(lambda grad: self.note("backward") and None)  # type: ignore[no-untyped-call]
        return losses


_Each = Callable[[nn.Module, nn.Module, Tensor, Tensor], object]


def check_q1(each_gradient: _Each) -> Wrong | None:
    for width, steps, mixing, name, dtype in (
        (3, 5, 0.0, "second", torch.float32),
        (4, 6, 1.0, "first", torch.float64),
        (2, 7, 1.0, "second", torch.float64),
    ):
        if wrong := _wrong_each(each_gradient, width, steps, mixing, name, dtype):
            return wrong
    breaking = _Losses(2, 0.0, torch.float32, lambda what: None)
    breaking.last = Breaks()
    told = swallows(lambda: each_gradient(breaking, breaking.first, torch.rand(2, 3, 2), torch.tensor([3, 1])))
    if left := _hooks_on(breaking):
        return Wrong(f"a layer raised an error, and {_left(left)}; use `with` or `finally`")
    return Wrong(SWALLOWED) if told else None


def _wrong_each(
    each_gradient: _Each, width: int, steps: int, mixing: float, name: str, dtype: torch.dtype
) -> Wrong | None:
    noted: list[str] = []
    model = _Losses(width, mixing, dtype, noted.append)
    layer = model.get_submodule(name)
    x = torch.randn(4, steps, width, dtype=dtype)
    lengths = torch.tensor([steps, 1, steps - 1, 2])[torch.randperm(4)]
    read = _readings(model, layer, x, lengths)
    noted.clear()
    before = _with_grads(model)
    result = each_gradient(with_others(model), layer, x, lengths)
    calls, backward = noted.count("call"), noted.count("backward")
    if left := _hooks_on(model):
        return Wrong(f"{_left(left)}; remove every handle")
    if _changed_grads(model, before):
        return Wrong(_OTHER_GRADS)
    if not isinstance(result, Tensor):
        return Wrong(f"your function returned {result!r}; return a tensor (batch, out, in)")
    if calls > 1:
        return Wrong(f"the model was called {calls} times for {len(x)} samples; one call is enough, and one backward")
    if backward > 1:
        return Wrong(f"there were {backward} backward passes for {len(x)} samples; one is enough")
    right = read.pop("right")
    if _close(result, right):
        return None
    if result.shape != right.shape:
        over = "; that is the sum over the samples" if result.shape == right.shape[1:] else ""
        return Wrong(f"your result has the shape {tuple(result.shape)}, and asked for is {tuple(right.shape)}{over}")
    reasons = (reason for reason, values in read.items() if _close(result, values))
    return Wrong(next(reasons, "the rows are not what the losses of each sample, up to its length, give by themselves"))


def _readings(model: nn.Module, layer: Any, x: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """What answers right and wrong return; each sample by itself."""
    weight = layer.weight
    rows: dict[str, list[Tensor]] = {}
    with torch.enable_grad():
        for sample, length in zip(x, lengths.tolist(), strict=True):
            kept: list[Tensor] = []
            with layer.register_forward_hook(lambda module, args, output, kept=kept: kept.extend((args[0], output))):
                losses = model(sample[None])[0]
            entered, left = kept
            for reason, loss in {
                "right": losses[:length].sum(),
                "padding counts, too: the losses behind the end of a sample must not count": losses.sum(),
                "that is the mean of a sample's losses; asked for is the gradient of their sum": losses[:length].mean(),
                "each row is divided by the number of samples; sum the losses, and take no mean": losses[:length].sum()
                / len(x),
                "each row is divided by the number of all losses that count; sum them, and take no mean": losses[
                    :length
                ].sum()
                / lengths.sum(),
            }.items():
                rows.setdefault(reason, []).append(torch.autograd.grad(loss, weight, retain_graph=True)[0])
            zeroed = model(torch.cat([sample[:length], torch.zeros_like(sample[length:])])[None])[0, :length].sum()
            rows.setdefault(
                "you put zeros into the padding, and these steps still come through the layer; leave their losses out",
                [],
            ).append(torch.autograd.grad(zeroed, weight)[0])
            for reason, loss in {
                "you cut at the layer, and at the end all losses still count, also those of the padding; "
                "leave these out of the sum": losses.sum(),
                "the losses are cut, and then you cut at the layer again; but where steps take from each other, a loss "
                "that counts comes from all of them": losses[:length].sum(),
            }.items():
                (grad,) = torch.autograd.grad(loss, left, retain_graph=True)
                cut = torch.einsum("to,ti->oi", grad[0, :length], entered[0, :length])
                rows.setdefault(reason, []).append(cut)
    return {reason: torch.stack(values).detach() for reason, values in rows.items()}


# -- a clip for each sample -----------------------------------------------------------------------------------------

_Hook = Callable[[nn.Module, tuple[Tensor, ...]], object]


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(clip_each: _Hook) -> Wrong | None:
    cases: tuple[tuple[nn.Module, tuple[int, ...], torch.dtype], ...] = (
        (nn.Linear(3, 4), (5, 3), torch.float32),
        (nn.Conv2d(1, 2, 3), (4, 1, 6, 5), torch.float64),
        (nn.Linear(2, 3), (6, 4, 2), torch.float64),
        (nn.Linear(3, 2), (1, 3), torch.float32),
    )
    for module, shape, dtype in cases:
        if wrong := _wrong_clip(clip_each, module.to(dtype), torch.randn(shape, dtype=dtype)):
            return wrong
    return None


def _wrong_clip(clip_each: _Hook, module: nn.Module, x: Tensor) -> Wrong | None:
    with_others(module).requires_grad_(False)
    shape = module(x).shape
    norms = torch.tensor([3.0, 0.5, 0.0, 20.0, 0.9, 1.5], dtype=x.dtype)[: len(x)]
    if len(x) > 1:
        norms = norms[torch.randperm(len(x))]
    ones = (-1,) + (1,) * (len(shape) - 1)
    grad = torch.randn(shape, dtype=x.dtype)
    grad = grad / grad.flatten(1).norm(dim=1).view(ones) * norms.view(ones)
    wanted = grad / norms.clamp(min=1).view(ones)
    clip_each(module, (grad.clone(),))  # outside of backward as well, where a change of the grad mode can be seen
    got: list[Tensor] = []
    with module.register_full_backward_pre_hook(clip_each):
        y = module(x.clone().requires_grad_())
        # Behind the module's own node, where what a pre-hook returned arrives.
        y.grad_fn.next_functions[0][0].register_prehook(lambda grads: got.append(grads[0]))
        try:
            y.backward(grad)
        except (RuntimeError, IndexError) as error:
            return Wrong(
                f"for a gradient of shape {tuple(shape)} torch says: {error}. Return a tuple with one tensor in it, of "
                "the same shape"
            )
    (clipped,) = got
    if _close(clipped, wanted):
        return None
    if clipped.isnan().any():
        return Wrong("a sample's gradient is zero, and you divide by its norm: the result is NaN")
    if torch.equal(clipped, grad):
        return Wrong("nothing is clipped; what a full backward pre-hook returns takes the gradient's place")
    new = clipped.flatten(1).norm(dim=1)
    said = f"the samples' norms were {_said(norms)}, and with your hook they are {_said(new)}"
    if _close(clipped, grad / grad.norm().clamp(min=1)):
        return Wrong(f"{said}: you clip the whole batch by one norm, and each sample has one of its own")
    if ((norms > 0) & (norms < 0.99) & (new > 0.99)).any():
        return Wrong(f"{said}: what is below 1 has to stay as it is")
    if _close(clipped, grad.clamp(-1, 1)):
        return Wrong(f"{said}: you clip each number; asked for is the norm of all numbers of a sample together")
    if (new > 1.001).any():
        return Wrong(f"{said}: take the norm over all axes but the first")
    return Wrong(f"{said}: a clipped gradient keeps its direction, and the others stay as they are")


def _said(norms: Tensor) -> str:
    return ", ".join(f"{norm:.2f}" for norm in norms.tolist())


# -- Grad-CAM of a frozen network -----------------------------------------------------------------------------------

_Cam = Callable[[nn.Module, nn.Module, Tensor, int], object]


class _Reads(nn.Module):
    """Two convolutions and a head that cares for places."""

    def __init__(self, high: int, wide: int, inplace: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=inplace)
        self.head: nn.Module = nn.Linear(4 * high * wide, 5)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.second(self.first(x).relu()))
        scores: Tensor = self.head(x.flatten(1))
        return scores


def check_q3(frozen_cam: _Cam) -> Wrong | None:
    for high, wide, inplace, frozen, dtype in (
        (5, 4, False, True, torch.float32),
        (4, 6, False, False, torch.float64),
        (6, 3, True, True, torch.float64),
        (3, 5, True, False, torch.float32),
    ):
        if wrong := _wrong_cam(frozen_cam, high, wide, inplace, frozen, dtype):
            return wrong
    model = _Reads(4, 4, False, torch.float32).requires_grad_(False)
    model.head = Breaks()
    told = swallows(lambda: frozen_cam(model, model.second, torch.rand(1, 1, 4, 4), 0))
    if left := _hooks_on(model):
        return Wrong(f"a layer raised an error, and {_left(left)}; use `with` or `finally`")
    return Wrong(SWALLOWED) if told else None


def _wrong_cam(frozen_cam: _Cam, high: int, wide: int, inplace: bool, frozen: bool, dtype: torch.dtype) -> Wrong | None:
    what = "this model is frozen" if frozen else "this model is not frozen"
    what += ", and an in-place ReLU follows the layer" * inplace
    model, x, target, read = _cam_case(high, wide, inplace, frozen, dtype)
    before = _with_grads(model)
    try:
        result = frozen_cam(with_others(model), model.second, x, target)
    except RuntimeError as error:
        return Wrong(f"{what}; torch says: {error}")
    if left := _hooks_on(model):
        return Wrong(f"{_left(left)}; remove every handle")
    if _changed_grads(model, before):
        return Wrong(_OTHER_GRADS)
    if not isinstance(result, Tensor):
        return Wrong(f"your function returned {result!r}; return a tensor (batch, height, width)")
    if result.requires_grad:
        return Wrong("your map still has a graph behind it; detach it")
    right = read.pop("right")
    if _close(result, right):
        other = "your map is right for one layer, and not for another: it has to be that of `layer`"
        return (
            None if _close(frozen_cam(model, model.first, x, target), _map_at_first(model, x, target)) else Wrong(other)
        )
    if result.shape != right.shape:
        return Wrong(f"your map has the shape {tuple(result.shape)}, and asked for is {tuple(right.shape)}")
    reasons = (reason for reason, values in read.items() if _close(result, values))
    return Wrong(f"{what}; {next(reasons, 'your map is not the Grad-CAM of this layer')}")


def _map_at_first(model: Any, x: Tensor, target: int) -> Tensor:
    with torch.enable_grad():
        maps = model.first(x).detach().requires_grad_()
        scores = model.head(model.second(maps.relu()).relu().flatten(1))
        (grad,) = torch.autograd.grad(scores[:, target].sum(), maps)
    found: Tensor = (grad.mean((2, 3), keepdim=True) * maps.detach()).sum(1).relu()
    return found


def _cam_case(
    high: int, wide: int, inplace: bool, frozen: bool, dtype: torch.dtype
) -> tuple[Any, Tensor, int, dict[str, Tensor]]:
    """A network, pictures, a target, and maps right and wrong, no two of them the same."""
    while True:
        model = _Reads(high, wide, inplace, dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        x, target = torch.randn(3, 1, high, wide, dtype=dtype), int(torch.randint(5, ()))
        read = _maps(model, x, target)
        model.requires_grad_(not frozen)
        maps = list(read.values())
        if all(not _close(a, b) for place, a in enumerate(maps) for b in maps[:place]):
            return model, x, target, read


def _maps(model: Any, x: Tensor, target: int) -> dict[str, Tensor]:
    with torch.enable_grad():
        maps = model.second(model.first(x).relu()).detach().requires_grad_()
        scores = model.head(maps.relu().flatten(1))
        (grad,) = torch.autograd.grad(scores[:, target].sum(), maps, retain_graph=True)
        (of_best,) = torch.autograd.grad(scores.amax(1).sum(), maps)
    maps = maps.detach()
    mean = grad.mean((2, 3), keepdim=True)
    return {
        "right": (mean * maps).sum(1).relu(),
        "what is below zero is still there; Grad-CAM drops it": (mean * maps).sum(1),
        "you dropped what is below zero before you added the channels": (mean * maps).relu().sum(1),
        "each place has a weight of its own; Grad-CAM gives each channel one, its mean": (grad * maps).sum(1).relu(),
        "your maps are those that the ReLU wrote over; keep a copy": (mean * maps.relu()).sum(1).relu(),
        "that is for the class with the highest score, and asked for is `target`": (
            (of_best.mean((2, 3), keepdim=True) * maps).sum(1).relu()
        ),
        "the mean is taken over the batch, too; each picture has weights of its own": (
            (grad.mean((0, 2, 3), keepdim=True) * maps).sum(1).relu()
        ),
    }
