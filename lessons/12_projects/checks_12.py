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

from hookscope import samples
from hookscope.layers.find import leaves
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

    model[0].register_forward_hook(watch)
    expected = model(x)
    alive.clear()
    with tool(model) as found:
        output = model(x)
    same, graph = torch.equal(output, expected), output.requires_grad
    del output
    gc.collect()
    if not same:
        return "with your hooks on, the model returns other numbers"
    if not graph:
        return "with your hooks on, the model's output has lost its gradient"
    kept = alive[0]() is not None
    del found
    return "what you keep holds the output of a layer, with its graph; keep numbers or booleans" if kept else None


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
            return f"the ReLUs are 'relu' and 'more.relu', and you have {list(fired)}"
        for name, units in fired.items():
            if not isinstance(units, Tensor) or units.dtype != torch.bool or units.shape != (numbers,):
                what = f"{tuple(units.shape)} {units.dtype}" if isinstance(units, Tensor) else repr(units)
                return f"keep {numbers} booleans for {name!r}, one for each unit; you keep {what}"
            if units.tolist() != expected:
                zero = "; a unit that is 0 has not fired" if units[2] else ""
                return f"for some image, the units 0 and 1 fire; you have {units.tolist()}, not {expected}{zero}"
    return None


def _whole_epoch(watch_relus: Tool) -> str | None:
    model = _chain(stem=_Times(3), relu=nn.ReLU())
    with watch_relus(model) as fired:
        for batch in torch.tensor([[[1.0, -1, -1]], [[-1, 2, -1]], [[-1, -1, -1]]]):
            model(batch)
    got = fired["relu"].tolist()
    if got == [True, True, False]:
        return None
    return f"unit 0 fires in batch 1, unit 1 in batch 2, and none in batch 3; in the end you have {got}"


def _channels(watch_relus: Tool) -> str | None:
    model = _chain(stem=nn.Identity(), relu=nn.ReLU())
    maps = torch.full((2, 3, 4, 5), -1.0, dtype=torch.float64)
    maps[1, 0, 3, 4], maps[0, 2, 0, 1] = 1, 1
    with watch_relus(model) as fired:
        model(maps)
    if (shape := tuple(fired["relu"].shape)) != (3,):
        return f"of maps (2, 3, 4, 5) you keep {shape}; keep one boolean for each of the 3 channels"
    got = fired["relu"].tolist()
    return None if got == [True, False, True] else f"channels 0 and 2 fire at one position; you have {got}"


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q1(watch_relus: Tool) -> Wrong | None:
    return judge(
        (
            ("for each ReLU, one boolean for each unit", _each_unit),
            ("a unit that fired in one batch has fired", _whole_epoch),
            ("of maps, one boolean for each channel", _channels),
            (
                "the hooks come off, also after an error, and change nothing",
                _both(check_removal, _leaves_no_trace),
            ),
        ),
        watch_relus,
    )


def _both(*points: Callable[[Tool], str | None]) -> Callable[[Tool], str | None]:
    return lambda tool: next(filter(None, (point(tool) for point in points)), None)


# -- the ledger -------------------------------------------------------------------------------------------------------


def _column(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in rows]


class _FirstColumn(nn.Module):
    """Returns a part of its input, which shares the memory of the whole."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def _names_and_bytes(ledger: Tool) -> str | None:
    net = samples.digit_cnn()
    with ledger(net) as rows:
        net(samples.digit(5))
    got, expected = _column(rows, "layer"), list(leaves(net))
    if got != expected:
        return f"on the digit CNN your layers are {got[:3]} … ({len(got)}), not {expected[:3]} … ({len(expected)})"
    if (size := rows[0]["bytes"]) != 50176:
        return f"block1.conv returns 16 · 28 · 28 numbers of 4 bytes, 50176; you wrote {size}"
    double = _chain(stem=_Times(3, torch.float64))
    with ledger(double) as rows:
        double(torch.ones(2, 3, dtype=torch.float64))
    size = rows[0]["bytes"]
    if size != 48:
        return f"a layer returns 2 · 3 numbers of 8 bytes, 48; you wrote {size}"
    part = _chain(first=_FirstColumn())
    with ledger(part) as rows:
        part(torch.ones(4, 6))
    size = rows[0]["bytes"]
    return None if size == 16 else f"a layer returns one column, 4 numbers of 4 bytes, 16; you wrote {size}"


class _Twice(nn.Module):
    """One ReLU, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.first(x))))  # type: ignore[no-any-return]


def _shared_calls(ledger: Tool) -> str | None:
    net = _Twice()
    expected, found = ["first", "act", "second", "act"], list[list[dict[str, Any]]]()
    for times in (1, 2):
        with ledger(net) as rows:
            for _ in range(times):
                net(torch.ones(1, 1))
        if (got := _column(rows, "layer")) != times * expected:
            return f"a ReLU is called twice, and your layers are {got}, not {times * expected}"
        found.append(rows)
    if len(found[0]) != len(expected):
        return f"a second `with` block has changed the rows of the first: there were 4, now {len(found[0])}"
    return None


def _opens_tuples(ledger: Tool) -> str | None:
    net = nn.Sequential(nn.LSTM(1, 2, batch_first=True))
    with ledger(net) as rows:
        net(torch.ones(1, 3, 1))
    got = _column(rows, "bytes")
    return None if got == [40] else f"an LSTM returns tensors of 6, 2 and 2 numbers, 40 bytes in all; you wrote {got}"


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q2(ledger: Tool) -> Wrong | None:
    return judge(
        (
            ("a row for each call, in order, with name and bytes", _names_and_bytes),
            ("a layer that is called twice has two rows", _shared_calls),
            ("an LSTM returns a tuple in a tuple: all its tensors count", _opens_tuples),
            (
                "the hooks come off, also after an error, and keep no tensor",
                _both(check_removal, _leaves_no_trace),
            ),
        ),
        ledger,
    )


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
        return "your push leads from the goal to the start; turn it around"
    if torch.allclose(got, expected[0.0], atol=1e-6):
        return "in the block, the layer returns what it returns without; a forward hook has to return the sum"
    if torch.allclose(got, expected[1.0], atol=1e-6):
        return f"your hook adds the whole push, whatever the strength; here it is {strength:g}"
    return (
        "it is not its output plus the strength times the push: the mean output over the images of the goal, minus the "
        "mean over those of the start"
    )


def _is_not_overwritten(pushed: Pushed) -> str | None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True))
    images, labels = torch.randn(6, 1, 5, 5), torch.arange(6) % 2
    with torch.no_grad():
        kept = net[0](images)
        push = kept[labels == 1].mean(0) - kept[labels == 0].mean(0)
        with pushed(net, "0", images, labels, 0, 1, 1.0):
            got = net(images)
    if torch.allclose(got, (kept + push).relu(), atol=1e-6):
        return None
    return "behind the layer, an in-place ReLU overwrote what you kept; take the means in the hook, or keep a clone"


def _passes_gradients(pushed: Pushed) -> str | None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    images, labels, x = torch.randn(8, 2), torch.arange(8) % 2, torch.randn(4, 2, requires_grad=True)
    with torch.no_grad():
        kept = net[1](net[0](images))
    push = kept[labels == 1].mean(0) - kept[labels == 0].mean(0)
    sources = (x, *net.parameters())
    expected = torch.autograd.grad(net[2](net[1](net[0](x)) + 0.5 * push).sum(), sources)
    with pushed(net, "1", images, labels, 0, 1, 0.5):
        output = net(x).sum()
    if not output.requires_grad:
        return "in the block, the output of the model has lost its gradient"
    try:
        got: tuple[Tensor | None, ...] = torch.autograd.grad(output, sources, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        return "your hook writes into the output, which the layer needs for its gradient; return a new tensor"
    if got[0] is None:
        return "in the block, the output of the layer has lost its gradient"
    if all(one is not None and torch.allclose(one, two, atol=1e-6) for one, two in zip(got, expected, strict=True)):
        return None
    return (
        "the weights get another gradient than from the output plus a constant: your push holds the graph of the pass "
        "that measured it; `detach()` it, or use `torch.no_grad()`"
    )


def _off(pushed: Pushed) -> str | None:
    net = add_foreign_hooks(_chain(first=nn.Linear(2, 3), last=nn.Linear(3, 2)))
    images, labels = torch.randn(4, 2), torch.arange(4) % 2
    with pushed(net, "first", images, labels, 0, 1, 1.0):
        net(images)
    if left := count_hooks(net):
        return f"after the `with` block {format_count(left)} still on the model"
    for is_early in (False, True):
        when = "while you took the means" if is_early else "in the `with` block"
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
            return f"a layer raised {when}, and your tool kept it to itself"
        if left := count_hooks(net):
            return f"a layer raised {when}, and {format_count(left)} still on; take it off in a `finally`"
    return None


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q3(pushed: Pushed) -> Wrong | None:
    return judge(
        (
            ("in the block, the layer returns its output plus the strength times the push", _adds),
            ("a later in-place layer does not change the push", _is_not_overwritten),
            ("gradients reach the input, and the push has no graph", _passes_gradients),
            ("the hooks come off, also after an error", _off),
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
        raise RefusedError("`half_once` should return two functions, `pack` and `unpack`")
    pack, unpack = made

    def pack_tensor(tensor: Tensor) -> Tensor:
        packed: Any = pack(tensor)
        if not isinstance(packed, Tensor):
            raise RefusedError(f"`pack` should return a tensor; yours returns {packed!r}")
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
                return f"`pack` should return {expected} for {kind}; yours returns {packed.dtype}"
            back: Any = unpack(packed)
            if not isinstance(back, Tensor) or back.dtype != tensor.dtype:
                found = back.dtype if isinstance(back, Tensor) else repr(back)
                return f"for {kind}, `unpack` should return {tensor.dtype}; yours returns {found}"
            if not torch.equal(back, tensor):
                return f"for {kind}, `unpack` should return the values that `pack` got; yours returns others"
    return None


def _shares(half_once: HalfOnce) -> str | None:
    pack, _ = _open(half_once)
    tensor = torch.ones(4, 3)
    first, again = pack(tensor), pack(tensor.detach())
    if first.data_ptr() != again.data_ptr():
        return (
            "a tensor and its `detach()` have the same values in the same memory, but got two copies; "
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
            return f"`{code}` shares the memory of `tensor`, but it got the copy of another view"
    tensor.mul_(2)
    if not torch.equal(pack(tensor).float(), tensor):
        return "after `tensor.mul_(2)` the memory is the same, but it got the copy of the old values"
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
    return "a tensor was freed, a new one got its memory, and then `pack` returned the copy of the freed tensor"


@blind_to(
    returns_zeros="it returns two functions, and no tensor",
    swallows_errors="nothing in `pack` and `unpack` has to raise",
)
def check_q4(half_once: HalfOnce) -> Wrong | None:
    return judge(
        (
            ("float32 is kept as bfloat16 and comes back as float32, everything else stays", _told(_halves)),
            ("a tensor that comes twice has one copy", _told(_shares)),
            ("another view, or other values in the same memory, get another copy", _told(_separates)),
            (
                "a new tensor in freed memory gets another copy, and none is kept alive",
                _told(_notices_new_tensors),
            ),
        ),
        half_once,
    )
