"""`capture` keeps what was returned, and changes nothing, for models, sharing and writes made at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.shared.awkward_models import Case, Do, Pair, Result, seed, tensors_in
from tests.shared.capture_runs import compare_runs

# Every tensor is 2 × 4, so that anything can be passed to anything.
LEAVES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "scale": lambda: Do(lambda x: x * 3),
    "add": lambda: Do(lambda x: x + 1),
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.5),
    "dropout in place": lambda: nn.Dropout(0.5, inplace=True),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "view": lambda: Do(lambda x: x.view(4, 2).view(2, 4)),
    "rows apart": lambda: Do(lambda x: torch.cat([x, x])[::2]),
    "expanded": lambda: Do(lambda x: x[:1].expand(2, 4)),
    "detach": lambda: Do(lambda x: x.detach()),
    "add in place": lambda: Do(lambda x: x.add_(1)),
    "pair": lambda: Do(lambda x: Pair(x, x + 1)),
    "nested": lambda: Do(lambda x: {"a": [x * 2, (x,)], "n": 3}),
    "result": lambda: Do(lambda x: Result(x + 2, [x * 2])),
    "chunk": lambda: Do(lambda x: torch.cat([x, x + 1]).chunk(2)),
}


def set_column(x: Tensor) -> None:
    """Write to part of a tensor."""
    x[:, 0] = 0.5


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(2),
    "column": set_column,
    "transposed": lambda x: x.t().sub_(1),
    "zero_": lambda x: x.zero_(),
    "data": lambda x: x.data.mul_(2),
    "data set": lambda x: setattr(x, "data", torch.ones(2, 4)),
    "detached": lambda x: x.detach().add_(3),
    "random": lambda x: x.data.uniform_(),
}
WRAPS: dict[str, Callable[[list[Tensor]], Any]] = {
    "last": lambda live: live[-1],
    "sum": lambda live: torch.stack(live).sum(0),
    "list": lambda live: list(live),
    "dict": lambda live: {"first": live[0], "rest": tuple(live[1:])},
    "result": lambda live: Result(live[-1], live[:1]),
}

which = st.integers(0, 9)
call = st.tuples(st.just("call"), which, which)
write = st.tuples(st.just("write"), st.sampled_from(sorted(WRITES)), which)
quiet = st.tuples(st.just("no_grad"), which, which)
steps = st.builds(lambda first, more: [first, *more], call, st.lists(st.one_of(call, call, write, quiet), max_size=6))
leaf = st.sampled_from(sorted(LEAVES))


def blocks(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.lists(children, min_size=1, max_size=3), steps, st.sampled_from(sorted(WRAPS)))


trees = blocks(st.one_of(leaf, leaf, blocks(st.one_of(leaf, leaf, blocks(leaf)))))


class Block(nn.Module):
    """Calls its children and overwrites what they returned, step by step."""

    def __init__(self, children: list[nn.Module], steps: list[tuple[str, Any, int]], wrap: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(children)
        self.steps, self.wrap = steps, wrap

    def forward(self, x: Tensor) -> Any:
        live = [x]
        for kind, what, index in self.steps:
            tensor = live[-1 - index % len(live)]
            if kind == "write":
                WRITES[what](tensor)
            else:
                with torch.set_grad_enabled(kind == "call" and torch.is_grad_enabled()):
                    live += tensors_in(self.layers[what % len(self.layers)](tensor))
                del live[:-4]
        return WRAPS[self.wrap](live)


def build(tree: Any, shared: list[nn.Module]) -> nn.Module:
    """Make the modules; about every third leaf is one that is elsewhere in the model, too."""
    if isinstance(tree, str):
        module = shared[len(tree) % len(shared)] if len(shared) > 2 and len(shared) % 3 == 0 else LEAVES[tree]()
        shared.append(module)
        return module
    children, steps, wrap = tree
    return Block([build(child, shared) for child in children], steps, wrap)


drawn = given(trees, st.sampled_from(["no_grad", "grad", "grad", "inference"]), st.booleans(), st.booleans())
always_the_same = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


def is_captured(tree: Any, mode: str, inputs: bool, requires_grad: bool) -> None:
    def case() -> Case:
        seed(0)
        model = build(tree, [])
        return model, (torch.randn(2, 4).requires_grad_(requires_grad),), {}

    error = compare_runs(case, mode, gradients=mode == "grad", inputs=inputs)
    event(f"{mode}: {error.split(':')[0] or 'fine'}")


@pytest.mark.slow
@settings(always_the_same, max_examples=200)
@drawn
def test_random_models(tree: Any, mode: str, inputs: bool, requires_grad: bool) -> None:
    is_captured(tree, mode, inputs, requires_grad)


@pytest.mark.slow
@settings(always_the_same, max_examples=800)
@drawn
def test_more_random_models(tree: Any, mode: str, inputs: bool, requires_grad: bool) -> None:
    is_captured(tree, mode, inputs, requires_grad)
