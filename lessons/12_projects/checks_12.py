"""Exercises of chapter 12: a step that comes too early, a hunter that blames the wrong layer, and the capstone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope.censuses.census import census
from hookscope.layers.find import leaves
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2", "q3"]


def _check_weight(answer: object) -> Wrong | None:
    if isinstance(answer, Tensor) and answer.numel() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return Wrong(f"the answer is a number, not a {type(answer).__name__}")
    weight = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))

    def step(weight: Tensor) -> None:
        assert weight.grad is not None
        weight.data -= 0.25 * weight.grad
        weight.grad = None

    with weight.register_post_accumulate_grad_hook(step):  # type: ignore[no-untyped-call]
        for _ in range(2):
            torch.autograd.backward(weight**2)
    if abs(answer - weight.item()) < 1e-9:
        return None
    reasons: dict[float, str] = {
        0: "that is the usual loop: both gradients were taken at 4 and added before one step",
        2: "that is the weight after the first `backward()`; there are two",
        4: "nothing has changed the weight then, but the hook steps inside `backward()`",
    }
    return Wrong(reasons.get(answer, f"it is not {answer:g}; what is the weight after the first `backward()`?"))


q1 = Exercise(
    "12.1",
    question="""Two passes, one step: that is how you train with twice the batch. In the usual loop the gradients \
add up, 8 + 8, and the step gives 4 - 0.25 · 16 = 0. Here the step is in the hook. What is `weight` in the end?
```
weight = nn.Parameter(torch.tensor(4.0))

def step(weight):
    weight.data -= 0.25 * weight.grad
    weight.grad = None

weight.register_post_accumulate_grad_hook(step)
for _ in range(2):
    (weight ** 2).backward()  # the gradient is 2 * weight
```""",
    difficulty="easy",
    minutes=3,
    check=_check_weight,
    why="4 - 0.25 · 8 = 2, then 2 - 0.25 · 4 = 1. A step in the hook cannot wait for a second pass.",
    hints=(
        "The hook fires in each `backward()`.",
        "After the first pass the weight is 2. What is the gradient there?",
    ),
    solution="""
q1.check(1)
""",
    wrong={
        "q1.check(0)\n": "that is the usual loop",
        "q1.check(2)\n": "after the first `backward()`; there are two",
        "q1.check(4)\n": "nothing has changed the weight",
        "q1.check(3)\n": "it is not 3",
        'q1.check("1")\n': "a number, not a str",
    },
)


class _Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax()


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def _chain(**layers: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def _check_first_bad(first_bad: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    inner = _chain(square=_Square(), act=nn.ReLU())
    model = _chain(stem=nn.Identity(), block=inner, divide=_Divide(), head=nn.Identity())
    cases: list[tuple[str, float, str | None]] = [
        ("zeros, where `divide` makes 0 / 0", 0.0, "divide"),
        ("1e30, whose square is inf", 1e30, "block.square"),
        ("a healthy 3", 3.0, None),
    ]
    for what, value, expected in cases:
        found = first_bad(model, torch.full((1, 2), value))
        if found != expected:
            return Wrong(f"with {what}, your function returned {found!r}, and it should be {expected!r}")
        if len(census(model, include_global=False)):
            return Wrong(f"with {what}, the name is right, but {len(census(model))} hooks are still on the model")

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("this layer stops")

    stopping = _chain(stem=nn.Identity(), stops=Stops())
    try:
        first_bad(stopping, torch.ones(1, 2))
    except ValueError:
        if len(census(stopping, include_global=False)):
            return Wrong(f"a layer raised, and {len(census(stopping))} hooks stayed on; take them off in a `finally`")
        return None
    return Wrong("a layer raised ValueError, and your function kept it to itself")


q2 = Exercise(
    "12.2",
    question="""A colleague's hunter should return the name of the first leaf whose output is not finite, or None. \
It blames the last layer whatever happens, it overlooks inf, and its hooks stay on. Mend all three.
```
def first_bad(model, x):
    bad = []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output):
            if output.isnan().any():
                bad.append(name)
        module.register_forward_hook(hook)
    model(x)
    return bad[0] if bad else None
```""",
    difficulty="medium",
    minutes=5,
    check=_check_first_bad,
    why="Each hook has a name of its own, `isfinite` sees NaN and inf, and `finally` takes the hooks off also when a "
    "layer raises.",
    hints=(
        "When a hook runs, the loop is over. What is `name` then? A default, `name=name`, is fixed at once.",
        "`output.isfinite().all()` is False for NaN and for inf.",
        "Keep the handles in a list; `try: model(x)`, and `finally:` remove each of them.",
    ),
    setup="import hookscope\n",
    solution="""
def first_bad(model, x):
    bad, handles = [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            if not output.isfinite().all():
                bad.append(name)
        handles.append(module.register_forward_hook(hook))
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return bad[0] if bad else None

q2.check(first_bad)
""",
    wrong={
        """
def first_bad(model, x):
    bad = []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output):
            if output.isnan().any():
                bad.append(name)
        module.register_forward_hook(hook)
    model(x)
    return bad[0] if bad else None

q2.check(first_bad)
""": "with zeros, where `divide` makes 0 / 0, your function returned 'head', and it should be 'divide'",
        """
def first_bad(model, x):
    bad, handles = [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            if output.isnan().any():
                bad.append(name)
        handles.append(module.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return bad[0] if bad else None

q2.check(first_bad)
""": "with 1e30, whose square is inf, your function returned 'divide', and it should be 'block.square'",
        """
def first_bad(model, x):
    bad = []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            if not output.isfinite().all():
                bad.append(name)
        module.register_forward_hook(hook)
    model(x)
    return bad[0] if bad else None

q2.check(first_bad)
""": "the name is right, but 5 hooks are still on the model",
        """
def first_bad(model, x):
    bad, handles = [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            if not output.isfinite().all():
                bad.append(name)
        handles.append(module.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return bad[0] if bad else None

q2.check(first_bad)
""": "a layer raised, and 2 hooks stayed on",
        """
def first_bad(model, x):
    bad = []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            if not output.isfinite().all():
                bad.append(name)
        handle = module.register_forward_hook(hook)
    try:
        model(x)
    finally:
        handle.remove()
    return bad[0]

q2.check(first_bad)
""": "hooks are still on the model",
    },
)


# -- the capstone -------------------------------------------------------------------------------------------------

Ledger = Callable[[nn.Module], AbstractContextManager[list[dict[str, Any]]]]


def _column(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _names_every_call(ledger: Ledger) -> str | None:
    net = samples.digit_cnn()
    with ledger(net) as rows:
        net(samples.digit(5))
    got, expected = _column(rows, "layer"), list(leaves(net))
    if got != expected:
        return f"on the digit CNN your layers are {got[:3]} … ({len(got)}), not {expected[:3]} … ({len(expected)})"
    size = rows[0]["bytes"]
    return None if size == 50176 else f"block1.conv returns 16 · 28 · 28 numbers of 4 bytes, 50176; you wrote {size}"


class _Twice(nn.Module):
    """One ReLU, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.first(x))))  # type: ignore[no-any-return]


def _counts_shared_calls(ledger: Ledger) -> str | None:
    net = _Twice()
    with ledger(net) as rows:
        net(torch.ones(1, 1))
    got, expected = _column(rows, "layer"), ["first", "act", "second", "act"]
    return None if got == expected else f"a ReLU is called twice, and your layers are {got}, not {expected}"


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"x": x, "pair": [x, None]}


def _opens_outputs(ledger: Ledger) -> str | None:
    for net, what, expected in (
        (nn.Sequential(nn.LSTM(1, 2, batch_first=True)), "an LSTM returns tensors of 6, 2 and 2 numbers", 40),
        (nn.Sequential(_Pair()), "a layer returns 3 numbers in a dict and again in a list in it", 24),
    ):
        with ledger(net) as rows:
            net(torch.ones(1, 3, 1))
        if _column(rows, "bytes") != [expected]:
            return f"{what}, {expected} bytes in all; you wrote {_column(rows, 'bytes')}"
    return None


def _reads_before_in_place(ledger: Ledger) -> str | None:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(inplace=True))
    net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    with ledger(net) as rows:
        net(torch.tensor([[3.0]]))
    got = [float(lowest) for lowest in _column(rows, "lowest")]
    return None if got == [-3, 0] else f"a Linear returns [3, -3], then an in-place ReLU; your lowest are {got}"


class _Stops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("this layer stops")


def _survives_errors(ledger: Ledger) -> str | None:
    net = nn.Sequential(nn.Linear(1, 1), _Stops())
    rows: list[dict[str, Any]] = []
    try:
        with ledger(net) as rows:
            net(torch.ones(1, 1))
    except ValueError:
        pass
    else:
        return "a layer raised ValueError, and your ledger swallowed it"
    if left := len(census(net, include_global=False)):
        return f"a layer raised, and {left} hooks stayed on"
    got = _column(rows, "layer")
    return None if got == ["0"] else f"layer 0 ran before layer 1 raised, and your layers are {got}"


def _leaves_no_trace(ledger: Ledger) -> str | None:
    net, x, fired, alive = nn.Sequential(nn.Linear(1, 4), nn.Tanh()), torch.ones(1, 1), [], []

    def someone_else(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        fired.append(module)
        alive.append(weakref.ref(output))

    expected = net(x)
    other = net[0].register_forward_hook(someone_else)
    with ledger(net) as rows:
        output = net(x)
    fired.clear()
    same = torch.equal(output, expected)
    del output
    gc.collect()
    if not same:
        return "the model's output is another with your ledger"
    if alive[0]() is not None or any(isinstance(value, Tensor) for row in rows for value in row.values()):
        return "your rows keep tensors alive; keep numbers (`.item()`)"
    left = len(census(net, include_global=False)) - 1
    net(x)
    if not fired:
        return "you took off a hook that someone else had put on"
    other.remove()
    return f"{left} of your hooks are still on the model" if left else None


_RUBRIC: tuple[tuple[str, Callable[[Ledger], str | None]], ...] = (
    ("a row for each call, in order, with name and bytes", _names_every_call),
    ("a shared layer has a row for each call", _counts_shared_calls),
    ("all tensors in a tuple, list or dict count", _opens_outputs),
    ("`lowest` is right before an in-place layer", _reads_before_in_place),
    ("after an exception: rows kept, hooks off", _survives_errors),
    ("no trace: same output, no tensor kept, others' hooks stay", _leaves_no_trace),
)


def _check_ledger(ledger: Ledger) -> Wrong | None:
    lines, points = [], 0
    for number, (asked, point) in enumerate(_RUBRIC, start=1):
        try:
            problem = point(ledger)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
        points += problem is None
        lines.append(f"{number}. {'✓' if problem is None else '✗'} {asked}{f': {problem}' if problem else ''}")
    return None if points == len(_RUBRIC) else Wrong("\n".join([f"{points} of {len(_RUBRIC)} points.", *lines]))


q3 = Exercise(
    "12.3",
    question="""The capstone: a tool of your own. Write `ledger(model)`, to be used as
```
with ledger(model) as rows:
    model(x)
```
`rows` is a list. Each call of each leaf adds `{"layer": its dotted name, "bytes": of all tensors in the output, \
"lowest": the lowest number in them}`. The check runs it on networks that you do not see. One point for each line:

1. A row for each call, in order, with name and bytes.
2. A shared layer has a row for each call.
3. All tensors in a tuple, list or dict count.
4. `lowest` is right before an in-place layer.
5. After an exception: it passes on, the rows so far are there, the hooks are off.
6. No trace: same output, no tensor kept, no hook left, and hooks of others stay.""",
    difficulty="hard",
    minutes=12,
    check=_check_ledger,
    why="""6 of 6 points. It names every call, shared layers and all, opens what a layer returns, reads numbers while
they are there, lets errors pass, and leaves nothing behind. It works on your own models, too.""",
    hints=(
        "Begin with `@contextmanager` and `def ledger(model):`. Register, `try: yield rows`, `finally:` remove.",
        "A hook that writes numbers at once, with `.item()`, is right for in-place layers and keeps no tensor.",
        "For point 3, write a function that returns the tensors in anything: of a tensor, itself in a list; of a tuple "
        "or list, those of each entry; of a dict, those of its values.",
    ),
    setup="from contextlib import contextmanager\nimport hookscope\n",
    solution="""
def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for entry in value for tensor in tensors_in(entry)]
    return []

@contextmanager
def ledger(model):
    rows, handles = [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            found = tensors_in(output)
            size = sum(tensor.numel() * tensor.element_size() for tensor in found)
            lowest = min(tensor.min().item() for tensor in found)
            rows.append({"layer": name, "bytes": size, "lowest": lowest})
        handles.append(module.register_forward_hook(hook))
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()

q3.check(ledger)
""",
    wrong={
        """
@contextmanager
def ledger(model):
    rows, handles = [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            size = output.numel() * output.element_size()
            rows.append({"layer": name, "bytes": size, "lowest": output.min().item()})
        handles.append(module.register_forward_hook(hook))
    yield rows
    for handle in handles:
        handle.remove()

q3.check(ledger)
""": "4 of 6 points.\n1. ✓",
        """
@contextmanager
def ledger(model):
    rows, handles, kept = [], [], []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            kept.append((name, output))
        handles.append(module.register_forward_hook(hook))
    yield rows
    for name, output in kept:
        size = output.numel() * output.element_size()
        rows.append({"layer": name, "bytes": size, "lowest": output.min().item()})
    for module in model.modules():
        module._forward_hooks.clear()

q3.check(ledger)
""": "a Linear returns [3, -3], then an in-place ReLU; your lowest are [0.0, 0.0]",
        """
@contextmanager
def ledger(model):
    rows = []
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            rows.append({"layer": name, "bytes": output.nbytes, "lowest": output.min()})
        module.register_forward_hook(hook)
    try:
        yield rows
    finally:
        for module in model.modules():
            module._forward_hooks.clear()

q3.check(ledger)
""": "your rows keep tensors alive",
        """
@contextmanager
def ledger(model):
    rows, seen = [], {}
    for name, module in hookscope.leaves(model).items():
        def hook(module, args, output, name=name):
            seen[name] = {"layer": name, "bytes": output.nbytes, "lowest": output.min().item()}
        module.register_forward_hook(hook)
    try:
        yield rows
    except ValueError:
        pass
    rows.extend(seen.values())
    for module in model.modules():
        module._forward_hooks.clear()

q3.check(ledger)
""": "a ReLU is called twice, and your layers are ['first', 'act', 'second']",
        """
@contextmanager
def ledger(model):
    rows = []
    for name, module in model.named_modules():
        def hook(module, args, output):
            rows.append({"layer": name, "bytes": output.numel(), "lowest": 0})
            return output.relu()
        module.register_forward_hook(hook)
    yield rows

q3.check(ledger)
""": "0 of 6 points.",
    },
)
