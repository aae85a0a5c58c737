"""Exercises of chapter 12: three tools, each tried on networks that the page does not show; four points each."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    BreakingLayer,
    Broken,
    add_foreign_hooks,
    check_removal,
    count_hooks,
    format_count,
)
from hookscope_course.practice.rubric import RefusedError, judge

IN_THE_BLOCK = "layers raise in the `with` block, and a point sees to it that this comes through"
Tool = Callable[[nn.Module], AbstractContextManager[Any]]


def _chain(**layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


class _Times(nn.Module):
    """As many ones as there are numbers, to multiply with: parameters of a size and a dtype, and no change."""

    def __init__(self, numbers: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(numbers, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.ones


def _leaves_no_trace(tool: Tool) -> str | None:
    """The model computes the same, and no tensor of the pass stays alive."""
    model, x, alive = nn.Sequential(nn.Linear(1, 4), nn.ReLU()), torch.ones(2, 1), []

    def watch(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        alive.append(weakref.ref(output))

    places = list[int]()

    def note_place(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        places.append(output.data_ptr())

    model[0].register_forward_hook(watch)
    model[1].register_forward_hook(note_place)
    expected = model(x)
    alive.clear()
    with tool(model) as found, model[1].register_forward_hook(note_place):  # after the hook of the tool
        output = model(x)
    same, graph = torch.equal(output, expected), output.requires_grad
    del output
    gc.collect()
    if not same:
        return "your hooks change the output of the model; it should stay the same"
    if not graph:
        return "with your hooks, the output of the model has lost its gradient; it should keep its graph"
    kept = alive[0]() is not None
    del found
    if places[-1] != places[-2]:
        return "your hook returns a tensor, which replaces the output of the layer; it should return None"
    return "you keep the output of a layer alive, with its graph; keep numbers or booleans" if kept else None


# -- the watchdog for dead units --------------------------------------------------------------------------------------


def _each_unit(watch_relus: Tool) -> str | None:
    for numbers, dtype in ((3, torch.float32), (4, torch.float64)):
        model = _chain(stem=_Times(numbers, dtype), relu=nn.ReLU(), more=_chain(relu=nn.ReLU()))
        x = torch.full((2, numbers), -1.0, dtype=dtype)
        x[0, 0], x[1, 1], x[:, 2] = 1, 2, 0
        expected = [True, True, *[False] * (numbers - 2)]
        with watch_relus(model) as fired:
            model(x)
        if set(fired) != {"relu", "more.relu"}:
            return f"your keys are {list(fired)}; they should be 'relu' and 'more.relu'"
        for name, units in fired.items():
            if not isinstance(units, Tensor) or units.dtype != torch.bool or units.shape != (numbers,):
                what = f"{tuple(units.shape)} {units.dtype}" if isinstance(units, Tensor) else repr(units)
                return f"you stored {what} for {name!r}; it should be {numbers} booleans, one for each unit"
            if units.tolist() != expected:
                zero = "; a unit that is 0 does not count as fired" if units.equal((x >= 0).any(dim=0)) else ""
                return f"units 0 and 1 fire for some image. You stored {units.tolist()}; it should be {expected}{zero}"
    return None


def _whole_epoch(watch_relus: Tool) -> str | None:
    model = _chain(stem=_Times(3), relu=nn.ReLU())
    with watch_relus(model) as fired:
        for batch in torch.tensor([[[1.0, -1, -1]], [[-1, 2, -1]], [[-1, -1, -1]]]):
            model(batch)
    got = fired["relu"].tolist()
    if got == [True, True, False]:
        return None
    return f"unit 0 fires in batch 1, and unit 1 in batch 2. You stored {got}; it should be [True, True, False]"


def _channels(watch_relus: Tool) -> str | None:
    model = _chain(stem=nn.Identity(), relu=nn.ReLU())
    maps = torch.full((2, 3, 4, 5), -1.0, dtype=torch.float64)
    maps[1, 0, 3, 4], maps[0, 2, 0, 1] = 1, 1
    with watch_relus(model) as fired:
        model(maps)
    if (shape := tuple(fired["relu"].shape)) != (3,):
        return f"for maps of shape (2, 3, 4, 5), you stored {shape}; store one boolean for each of the 3 channels"
    got = fired["relu"].tolist()
    if got == [True, False, True]:
        return None
    return f"channels 0 and 2 fire at one position. You stored {got}; it should be [True, False, True]"


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q1(watch_relus: Tool) -> Wrong | None:
    return judge(
        (
            ("store one boolean for each unit of each ReLU", _each_unit),
            ("if a unit fires in one batch, it stays True", _whole_epoch),
            ("for maps, store one boolean for each channel", _channels),
            (
                "remove the hooks, even after an error; they must not change anything",
                _both(check_removal, _leaves_no_trace),
            ),
        ),
        watch_relus,
    )


def _both(*points: Callable[[Tool], str | None]) -> Callable[[Tool], str | None]:
    return lambda tool: next(filter(None, (point(tool) for point in points)), None)


# -- the push ---------------------------------------------------------------------------------------------------------

Pushed = Callable[..., AbstractContextManager[Any]]


def _adds(pushed: Pushed) -> str | None:
    for size, dtype in ((3, torch.float32), (5, torch.float64)):
        net = nn.Sequential(nn.Linear(2, size), nn.Tanh(), nn.Linear(size, 4)).to(dtype)
        images, labels = torch.randn(240, 2, dtype=dtype), torch.arange(240) % 4
        with torch.no_grad():
            kept = net[1](net[0](images))
            push = kept[labels == 3].mean(0) - kept[labels == 1].mean(0)
            for strength in (1.0, 0.5, -2.0):
                with pushed(net, "1", images, labels, 1, 3, strength):
                    got = net(images)
                sums = {factor: net[2](kept + factor * push) for factor in (strength, -strength, 0.0, 1.0)}
                if found := _not_the_sum(got, strength, sums):
                    return found
    return None


def _not_the_sum(got: Tensor, strength: float, expected: dict[float, Tensor]) -> str | None:
    if torch.allclose(got, expected[strength], atol=1e-6):
        return None
    if torch.allclose(got, expected[-strength], atol=1e-6):
        return "your push points from the goal to the start; it should point from the start to the goal"
    if torch.allclose(got, expected[0.0], atol=1e-6):
        return (
            "inside the block, the layer returns the same value as without your hook; "
            "a forward hook has to return the sum"
        )
    if torch.allclose(got, expected[1.0], atol=1e-6):
        return f"your hook adds the whole push for every strength; here it should add {strength:g} times the push"
    return (
        "the layer returns something else; it should return its output plus strength × push. The push is the mean "
        "output over the images of the goal, minus the mean over the images of the start"
    )


_NO_PUSH = "inside the block, the layer returns the same as without your hook, so there is no push to check"


def _is_not_overwritten(pushed: Pushed) -> str | None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    images, labels = torch.randn(6, 1, 5, 5), torch.arange(6) % 2
    got = dict[bool, Tensor]()
    for inplace in (True, False):
        net[1] = nn.ReLU(inplace=inplace)
        with torch.no_grad(), pushed(net, "0", images, labels, 0, 1, 1.0):
            got[inplace] = net(images)
    if torch.equal(got[False], net(images)):
        return _NO_PUSH
    if torch.allclose(got[True], got[False], atol=1e-6):
        return None
    return "an in-place ReLU overwrote the output that you kept; compute the means in the hook, or keep a clone"


def _passes_gradients(pushed: Pushed) -> str | None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    images, labels, x = torch.randn(8, 2), torch.arange(8) % 2, torch.randn(4, 2, requires_grad=True)
    sources, kept = (x, *net.parameters()), list[Tensor]()
    with (
        pushed(net, "1", images, labels, 0, 1, 0.5),
        net[1].register_forward_hook(lambda module, args, output: kept.append(output.detach().clone())),
    ):
        output = net(x).sum()
    bare = net[1](net[0](x))
    added = kept[0] - bare.detach()  # whether this is the right push is another point
    if not added.any():
        return _NO_PUSH
    expected = torch.autograd.grad(net[2](bare + added).sum(), sources)
    if not output.requires_grad:
        return "inside the block, the output of the model has lost its gradient; it should keep its graph"
    try:
        got: tuple[Tensor | None, ...] = torch.autograd.grad(output, sources, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        return "your hook writes into the output, but the backward pass of the layer needs it; return a new tensor"
    if got[0] is None:
        return "inside the block, the output of the layer has lost its gradient; it should keep its graph"
    if all(one is not None and torch.allclose(one, two, atol=1e-6) for one, two in zip(got, expected, strict=True)):
        return None
    return (
        "your hook changes the gradients of the weights, because your push has the graph of the pass that measured it; "
        "`detach()` it, or use `torch.no_grad()`"
    )


def _off(pushed: Pushed) -> str | None:
    net = add_foreign_hooks(_chain(first=nn.Linear(2, 3), last=nn.Linear(3, 2)))
    images, labels = torch.randn(4, 2), torch.arange(4) % 2
    with pushed(net, "first", images, labels, 0, 1, 1.0):
        net(images)
    if left := count_hooks(net):
        return f"after the `with` block, {format_count(left)} still on the model; remove your hooks"
    for is_early in (False, True):
        when = "while you computed the means" if is_early else "in the `with` block"
        net = _chain(first=nn.Linear(2, 3))
        if is_early:
            net.add_module("breaks", BreakingLayer())
        try:
            with pushed(net, "first", images, labels, 0, 1, 1.0):
                net.add_module("breaks", BreakingLayer())
                net(images)
            raised = False
        except Broken:
            raised = True
        if not raised:
            return f"a layer raised {when}, but your tool swallowed the error; the error should leave your tool"
        if left := count_hooks(net):
            return f"a layer raised {when}, and {format_count(left)} still on; remove it in a `finally`"
    return None


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q2(pushed: Pushed) -> Wrong | None:
    return judge(
        (
            ("inside the block, the layer should return its output plus strength × push", _adds),
            ("a later in-place layer must not change the push", _is_not_overwritten),
            ("gradients must reach the input, and the push must not have a graph", _passes_gradients),
            ("remove the hooks, even after an error", _off),
        ),
        pushed,
    )


# -- one copy of each tensor ------------------------------------------------------------------------------------------

HalfOnce = Callable[..., tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]]


def _pack_all(tensor: Tensor) -> bool:
    return False


def _open(half_once: HalfOnce, skip: Callable[[Tensor], bool] = _pack_all) -> tuple[Any, Any]:
    """Return `pack` and `unpack`, or refuse anything else; `pack` refuses what is not a tensor."""
    made: Any = half_once(skip)
    if not isinstance(made, tuple | list) or len(made) != 2:
        kind = type(made).__name__
        raise RefusedError(f"`half_once` returned a {kind}; it should return two functions, `pack` and `unpack`")
    pack, unpack = made

    def pack_tensor(tensor: Tensor) -> Tensor:
        packed: Any = pack(tensor)
        if not isinstance(packed, Tensor):
            raise RefusedError(f"your `pack` returned {packed!r}; it should return a tensor")
        return packed

    return pack_tensor, unpack


def _told(point: Callable[[HalfOnce], str | None]) -> Callable[[HalfOnce], str | None]:
    """Make a refusal the reason of a point."""

    def run(half_once: HalfOnce) -> str | None:
        try:
            return point(half_once)
        except RefusedError as refused:
            return str(refused)

    return run


def _halves(half_once: HalfOnce) -> str | None:
    for values in ([1.0, 2.0, 4.0], [3.0, 5.0]):
        weight = torch.tensor(values)
        pack, unpack = _open(half_once, partial(operator.is_, weight))
        cases = (("a float32 tensor", 2 * weight), ("integers", torch.arange(3)), ("a tensor to skip", weight))
        for kind, tensor in cases:
            expected = torch.bfloat16 if kind == "a float32 tensor" else tensor.dtype
            packed = pack(tensor)
            if packed.dtype != expected:
                return f"for {kind}, your `pack` returned {packed.dtype}; it should return {expected}"
            back: Any = unpack(packed)
            if not isinstance(back, Tensor) or back.dtype != tensor.dtype:
                found = back.dtype if isinstance(back, Tensor) else repr(back)
                return f"for {kind}, your `unpack` returned {found}; it should return {tensor.dtype}"
            if not torch.equal(back, tensor):
                return f"for {kind}, your `unpack` returned different values; it should return the values before `pack`"
    return None


def _shares(half_once: HalfOnce) -> str | None:
    pack, _ = _open(half_once)
    tensor = torch.ones(4, 3)
    first, again = pack(tensor), pack(tensor.detach())
    if first.data_ptr() != again.data_ptr():
        return (
            "you made two copies of a tensor and its `detach()`, which have the same values in the same memory; "
            "use `memory_of(tensor)` as the key of a dict"
        )
    return None


def _separates(half_once: HalfOnce) -> str | None:
    pack, _ = _open(half_once)
    tensor = torch.arange(6.0).reshape(2, 3)
    pack(tensor)
    for code, view in (("tensor.t()", tensor.t()), ("tensor[1:]", tensor[1:]), ("tensor[:1]", tensor[:1])):
        packed = pack(view)
        if packed.shape != view.shape or not torch.equal(packed.float(), view):
            return f"for `{code}`, your `pack` returned the copy of another view; it should make a new copy"
    tensor.mul_(2)
    if not torch.equal(pack(tensor).float(), tensor):
        return "after `tensor.mul_(2)`, your `pack` returned the copy of the old values; it should make a new copy"
    return None


def _notices_new_tensors(half_once: HalfOnce) -> str | None:
    pack, _ = _open(half_once)
    copies = []
    for value in range(50):
        tensor = torch.full((1000,), float(value))
        copies.append(pack(tensor))
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        del tensor
        if not storage.expired():  # type: ignore[no-untyped-call]
            return "your `pack` keeps the float32 tensor alive, so no memory is saved; keep only the copy"
    if [copy[0].item() for copy in copies] == [float(value) for value in range(50)]:
        return None
    return "a new tensor got the memory of a freed one, but your `pack` returned the copy of the freed tensor"


@blind_to(
    returns_zeros="it returns two functions, and no tensor",
    swallows_errors="nothing in `pack` and `unpack` has to raise",
)
def check_q3(half_once: HalfOnce) -> Wrong | None:
    return judge(
        (
            ("keep float32 as bfloat16 and return it as float32; do not convert anything else", _told(_halves)),
            ("make only one copy of a tensor that comes twice", _told(_shares)),
            ("make a new copy for a different view, or for new values in the same memory", _told(_separates)),
            (
                "make a new copy for a new tensor in freed memory, and keep no float32 tensor alive",
                _told(_notices_new_tensors),
            ),
        ),
        half_once,
    )
