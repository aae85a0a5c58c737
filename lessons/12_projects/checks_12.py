"""Exercises of chapter 12: six tools with gaps to fill, each tried on a network that the page does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.probing import CALLS_NOTHING, hooks_are, left_on, with_others


def _chain(**layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def _hooks_on(model: nn.Module) -> int:
    return left_on(model)


class _Stops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("this layer stops")


class _Times(nn.Module):
    """As many ones as there are numbers, to multiply with: parameters of a size and a dtype, and no change."""

    def __init__(self, numbers: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(numbers, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.ones


IN_THE_BLOCK = "layers raise in the `with` block, and the check sees to it that this comes through"


def _off_again(tool: Callable[[nn.Module], AbstractContextManager[Any]]) -> Wrong | None:
    """A tool that is used in a `with` line takes its hooks off there, also after an exception, and passes that on."""
    model = with_others(_chain(first=nn.Linear(1, 2), act=nn.ReLU()))
    with tool(model):
        model(torch.ones(1, 1))
    if left := _hooks_on(model):
        return Wrong(f"after the `with` block {hooks_are(left)} still on the model")
    model = _chain(first=nn.Linear(1, 2), act=nn.ReLU(), stops=_Stops())
    try:
        with tool(model):
            model(torch.ones(1, 1))
    except ValueError:
        left = _hooks_on(model)
        return Wrong(f"a layer raised, and {left} hooks stayed on; take them off in a `finally`") if left else None
    return Wrong("a layer raised ValueError, and your tool kept it to itself")


# -- the hunter ---------------------------------------------------------------------------------------------------


class _Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax()


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class _Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


Hunter = Callable[[nn.Module], AbstractContextManager[dict[str, dict[str, Any]]]]


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q1(hunt: Hunter) -> Wrong | None:
    cases: list[tuple[str, float, int, torch.dtype, str | None]] = [
        ("zeros, where `divide` makes 0 / 0", 0.0, 2, torch.float32, "divide"),
        ("1e30, whose square is inf", 1e30, 3, torch.float32, "block.square"),
        ("a healthy 3", 3.0, 4, torch.float64, None),
    ]
    for what, value, numbers, dtype, expected in cases:
        inner = _chain(square=_Square(), act=nn.ReLU())
        model = _chain(stem=_Times(numbers, dtype), block=inner, divide=_Divide(), head=nn.Identity())
        with hunt(model) as found:
            model(torch.full((1, numbers), value, dtype=dtype))
        blamed = found.get("forward", {}).get("first bad")
        if blamed != expected:
            return Wrong(f"with {what}, your hunter blames {blamed!r} on the way forward; it should be {expected!r}")
    if wrong := _wrong_row(hunt):
        return wrong
    tuples = _chain(embed=nn.Embedding(4, 3), lstm=nn.LSTM(3, 2, 2))
    with torch.no_grad():
        tuples.get_submodule("lstm").weight_hh_l1.fill_(torch.nan)  # type: ignore[operator]
    with hunt(tuples) as found:
        tuples(torch.tensor([[1, 2]]))
    if (blamed := found.get("forward", {}).get("first bad")) != "lstm":
        return Wrong(f"an LSTM returned NaN in its tuple of tensors, and your hunter blames {blamed!r}, not 'lstm'")
    # The slope of the root at 0 is infinite, and 0 times that is NaN: all that goes forward is finite.
    model = _chain(stem=nn.Identity(), block=_chain(act=nn.ReLU(), root=_Root()), head=nn.Identity())
    with hunt(model) as found:
        model(torch.zeros(1, 3, requires_grad=True)).sum().backward()
    back = found.get("backward", {})
    if (back.get("first bad"), back.get("what came in")) != ("block.root", "finite"):
        return Wrong(
            "going back through a root at 0, the gradient that arrives there is finite and the one it hands on is not; "
            f"your hunter blames {back.get('first bad')!r}, where what came in was {back.get('what came in')!r}"
        )
    return _off_again(hunt)


def _wrong_row(hunt: Hunter) -> Wrong | None:
    """What else is in the row: which call it was, and whether it was bad already."""
    for what, values, expected in (
        ("ones, then zeros, which make 0 / 0", (1.0, 0.0), ("divide", 2, "finite")),
        ("NaN, which is bad already", (float("nan"),), ("stem", 1, "bad already")),
    ):
        model = _chain(stem=_Times(2), divide=_Divide())
        with hunt(model) as found:
            for value in values:
                model(torch.full((1, 2), value))
        row = found.get("forward", {})
        if (got := tuple(map(row.get, ("first bad", "call", "what came in")))) != expected:
            return Wrong(
                f"with {what}, layer, call and what came in should be {expected}, and your hunter writes down {got}"
            )
    return None


# -- the report on dead units -------------------------------------------------------------------------------------


@blind_to(swallows_errors=IN_THE_BLOCK)
def check_q2(watch_relus: Callable[[nn.Module], AbstractContextManager[dict[str, Tensor]]]) -> Wrong | None:
    model = _chain(stem=_Times(5), relu=nn.ReLU(), more=_chain(relu=nn.ReLU()))
    batches = torch.tensor([[[1.0, -1, -1, 0, -1], [-1, 2, -1, 0, -1]], [[1, -1, -1, 0, 3], [-1, -1, -3, 0, -1]]])
    expected = [True, True, False, False, True]
    with watch_relus(model) as fired:
        returned = [model(batch) for batch in batches]
    if set(fired) != {"relu", "more.relu"}:
        return Wrong(f"the ReLUs are 'relu' and 'more.relu', and you have {list(fired)}")
    for name, units in fired.items():
        if not isinstance(units, Tensor) or units.shape != (5,):
            shape = tuple(units.shape) if isinstance(units, Tensor) else ()
            return Wrong(
                f"what you keep for {name!r} is of shape {shape}, and there should be one value for each of 5 units"
            )
        if units.dtype != torch.bool:
            return Wrong(f"keep True or False for each unit, not {units.dtype}")
        got = units.tolist()
        if got == expected:
            continue
        if got[3]:
            return Wrong("the last unit was 0 all the time: no picture made it fire, and your tool says True")
        if got == [False] * 5:
            return Wrong(f"a unit that fires for some pictures is not dead: you have {got}, not {expected}")
        return Wrong(f"units fire in one batch and not in the other; you have {got}, not {expected}")
    if not all(torch.equal(output, batch.relu()) for output, batch in zip(returned, batches, strict=True)):
        return Wrong("what you keep is right, but with your hooks on, the model returns other numbers")
    maps = _chain(stem=_Times(5, torch.float64), relu=nn.ReLU())
    with watch_relus(maps) as fired:
        maps(torch.ones(2, 3, 4, 5, dtype=torch.float64))
    if fired["relu"].shape != (3, 4, 5):
        return Wrong(
            f"of maps (2, 3, 4, 5) you kept {tuple(fired['relu'].shape)}; a unit is one number of one picture's maps"
        )
    return _off_again(watch_relus)


# -- the collector for the probe ----------------------------------------------------------------------------------


def check_q3(features: Callable[[nn.Module, Tensor], dict[str, Tensor]]) -> Wrong | None:
    for channels, dtype in ((5, torch.float32), (3, torch.float64)):
        conv, linear = nn.Conv2d(2, channels, 3), nn.Linear(channels * 4 * 3, 6)
        model = _chain(conv=conv, flat=nn.Flatten(), linear=linear, act=nn.ReLU(inplace=True)).to(dtype)
        if wrong := _wrong_features(features, model, torch.randn(7, 2, 6, 5, dtype=dtype)):
            return wrong
    model = _chain(stem=_Times(5, torch.float64), stops=_Stops())
    try:
        features(model, torch.randn(2, 5, dtype=torch.float64))
    except ValueError:
        return Wrong(f"a layer raised, and {_hooks_on(model)} hooks stayed on") if _hooks_on(model) else None
    return Wrong("a layer raised ValueError, and your function kept it to itself")


def _wrong_features(features: Callable[..., dict[str, Tensor]], model: nn.Sequential, images: Tensor) -> Wrong | None:
    maps = model[0](images)
    expected = {"conv": maps.mean((2, 3)), "flat": maps.flatten(1), "linear": model[2](maps.flatten(1))}
    expected["act"] = expected["linear"].relu()
    kept = features(with_others(model), images)
    if left := _hooks_on(model):
        return Wrong(f"{hooks_are(left)} still on the model")
    if set(kept) != set(expected):
        return Wrong(f"the children are {list(expected)}, and you kept {list(kept)}")
    for name, values in expected.items():
        if kept[name].shape != values.shape:
            shapes = tuple(kept[name].shape), tuple(values.shape)
            return Wrong(f"of {name!r} you kept shape {shapes[0]}, and it should be {shapes[1]}")
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("what you kept requires grad: it holds the graph, and all that autograd saved in it")
    if torch.equal(kept["linear"], expected["act"]):
        return Wrong("an in-place ReLU came after 'linear' and changed what you kept; keep a copy")
    for name, values in expected.items():
        if not torch.allclose(kept[name], values, atol=1e-6):
            what = "the means of its maps" if name == "conv" else "its output"
            return Wrong(f"your numbers for {name!r} are not {what}")
    return None


# -- the switch for a head ----------------------------------------------------------------------------------------


class _Heads(nn.Module):
    """Heads side by side that go through `out`; what goes in is kept, so that a check sees whether it was changed."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(width, width)
        self.made = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.made = x * 1
        return self.out(self.made)  # type: ignore[no-any-return]


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q4(silence: Callable[[nn.Module, int], Any]) -> Wrong | None:
    for heads, width, head, dtype in ((3, 6, 1, torch.float32), (2, 10, 0, torch.float32), (4, 4, 3, torch.float64)):
        attention, x = _Heads(heads, width).to(dtype), torch.randn(2, 5, width, dtype=dtype)
        plain = attention(x)
        zeroed = x.clone()
        zeroed[..., head * width // heads : (head + 1) * width // heads] = 0
        with_others(attention)
        looked: list[object] = []
        attention.out.register_forward_pre_hook(lambda module, args, looked=looked: looked.append(args))
        handle = silence(attention, head)
        if not hasattr(handle, "remove"):
            return Wrong(f"return the handle, so that it can take the hook off; you returned {handle!r}")
        try:
            attention(x)
            got = attention(x.requires_grad_())  # twice, as a hook stays on
        except TypeError as error:
            return Wrong(f"a forward hook is called with three arguments, a pre-hook with two: {error}")
        finally:
            handle.remove()
        if len(looked) != 2:
            return Wrong("a pre-hook that was on `attention.out` before is gone; leave the others alone")
        if not got.requires_grad or torch.autograd.grad(got.sum(), x, allow_unused=True)[0] is None:
            return Wrong("the head is silent, and no gradient comes back to the others; leave `detach` and `.data` out")
        if not torch.equal(attention.made, x):
            return Wrong("your hook wrote into the tensor that the network had made; write into a copy")
        if torch.equal(got, plain):
            return Wrong("the head is as loud as before: what does the hook return?")
        if not torch.allclose(got, attention.out(zeroed), atol=1e-6):
            return Wrong(
                f"with {heads} heads in {width} numbers, the output is not what it should be without head {head}"
            )
        if _hooks_on(attention) > 1:
            return Wrong("after `handle.remove()` a hook is still there")
    return None


# -- the step in backward() ---------------------------------------------------------------------------------------


def _trained(step: Callable[..., AbstractContextManager[None]] | None) -> tuple[nn.Module, int]:
    """A small network after three steps, and the most bytes of gradients that were alive at once, in backward."""
    torch.manual_seed(1)
    net, most = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), 0

    def look(_: Tensor) -> None:
        nonlocal most
        most = max(most, sum(p.grad.nbytes for p in net.parameters() if p.grad is not None))

    def make(parameters: Iterable[Tensor]) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    looking = [p.register_post_accumulate_grad_hook(look) for p in net.parameters()]  # type: ignore[no-untyped-call]
    usual = make(net.parameters())
    x = torch.randn(5, 3)

    def three_passes() -> Iterator[None]:
        for _ in range(3):
            net(x).pow(2).sum().backward()
            yield

    if step is None:
        for _ in three_passes():
            usual.step()
            usual.zero_grad()
    else:
        with step(net.parameters(), make):
            for _ in three_passes():
                pass
    for handle in looking:
        handle.remove()
    return net, most


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q5(step_in_backward: Callable[..., AbstractContextManager[None]]) -> Wrong | None:
    wanted, before = _trained(None)
    start = nn.Linear(2, 1)
    kept = start.weight.detach().clone()
    with step_in_backward(start.parameters(), lambda parameters: torch.optim.SGD(parameters, lr=0.5)):
        start(torch.ones(1, 2)).sum().backward()
    if torch.equal(start.weight, kept):
        return Wrong("your hook takes no step: after a `backward()` the weights are what they were")
    if any(p.grad is not None and p.grad.any() for p in start.parameters()):
        return Wrong("after `backward()` there are still gradients")
    net, most = _trained(step_in_backward)
    if not all(map(torch.equal, net.parameters(), wanted.parameters())):
        return Wrong("the weights are not those of the usual loop (SGD with momentum, three steps)")
    largest = max(p.nbytes for p in net.parameters())
    if most > largest:
        return Wrong(
            f"{most} bytes of gradients were alive at once, and the largest gradient takes {largest} of {before}"
        )
    if left := _hooks_on(net):
        return Wrong(f"{hooks_are(left)} still on the parameters")
    try:
        with step_in_backward(start.parameters(), lambda parameters: torch.optim.SGD(parameters, lr=0.5)):
            _Stops()(torch.ones(1))
    except ValueError:
        left = _hooks_on(start)
        return Wrong(f"the training raised, and {left} hooks stayed on; use a `finally`") if left else None
    return Wrong("the training raised ValueError in the `with` block, and your tool kept it to itself")


# -- the store of half the bits -----------------------------------------------------------------------------------


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q6(halved: Callable[[nn.Module], Any]) -> Wrong | None:
    # Both live at once: the second must not get the first one's places in memory.
    nets = [_chain(a=nn.Linear(3, n), b=nn.Tanh(), c=nn.Linear(n, 2)).to(t) for n, t in _STORED.items()]
    for net, dtype in zip(nets, _STORED.values(), strict=True):
        if wrong := _wrong_store(halved, net, dtype):
            return wrong
    return None


_STORED = {4: torch.float64, 7: torch.float32}


def _wrong_store(halved: Callable[[nn.Module], Any], net: nn.Sequential, dtype: torch.dtype) -> Wrong | None:
    first = next(net.parameters())
    hooks = halved(with_others(net))
    if not isinstance(hooks, saved_tensors_hooks):
        return Wrong(f"return what `with` can use, a saved_tensors_hooks; you returned a {hooks.__class__.__name__}")
    tensor = torch.tensor([1 / 3, 100.1], dtype=dtype)
    try:
        packed = hooks.pack_hook(tensor)
    except (TypeError, ValueError):
        return Wrong("saved_tensors_hooks takes first the function that packs, then the one that unpacks")
    small = packed[1] if isinstance(packed, tuple) and len(packed) == 2 else packed
    if not isinstance(small, Tensor) or small.dtype != torch.bfloat16:
        what = f"a tensor of {small.dtype}" if isinstance(small, Tensor) else repr(small)
        return Wrong(f"you keep {what}, not torch.bfloat16")
    back = hooks.unpack_hook(packed)
    if back.dtype != dtype or not torch.equal(back, tensor.bfloat16().to(dtype)):
        return Wrong(f"a {str(dtype)[6:]} tensor came back as {back.dtype}: {back.tolist()}")
    weight = hooks.pack_hook(first.t())
    if not isinstance(weight, Tensor) or weight.data_ptr() != first.data_ptr():
        return Wrong("weights are there anyway; leave them as they are")
    x = torch.randn(6, 3, dtype=dtype)
    net(x).sum().backward()
    exact = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with hooks:
        loss = net(x).sum()
    loss.backward()
    near = [p.grad for p in net.parameters() if p.grad is not None]
    if not all(torch.allclose(a, b, rtol=0.05, atol=0.05) for a, b in zip(exact, near, strict=True)):
        return Wrong("the gradients are far from those without your hooks")
    return None
