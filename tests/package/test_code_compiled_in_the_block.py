"""Layers that torch.compile compiles while a block is open are seen and changed as they are without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, edit, record
from tests.shared import PATIENCE

INPUTS = [torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples)) for samples in (1, 1, 3, 2)]


class Breaks(nn.Module):
    """Makes torch end what it compiles before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        found: Tensor = self.inner(x)
        return found


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def with_hooks() -> nn.Module:
    net = plain()
    net[0].register_forward_pre_hook(lambda *_: print(end=""))
    net[0].register_forward_hook(lambda *_: print(end=""))
    return net


def breaking() -> nn.Module:
    return nn.Sequential(Breaks(), nn.ReLU(), Breaks())


WAYS = {"aot_eager": (plain, breaking), "eager": (with_hooks, breaking)}


@pytest.fixture(
    params=[(make, backend) for backend, nets in WAYS.items() for make in nets],
    ids=lambda way: f"{way[0].__name__}-{way[1]}",
)
def way(request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
    """A model, and the backend with which it is compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, backend = request.param
    return make(), backend


def passes(model: Callable[[Tensor], Tensor]) -> list[Tensor]:
    return [model(x) for x in INPUTS]


def compiled(net: nn.Module, backend: str) -> Any:
    return torch.compile(net, backend=backend)


def test_a_capture_is_that_of_the_model_as_it_is_written(way: tuple[nn.Module, str]) -> None:
    net, backend = way
    with capture(net, "*") as plainly:
        outputs = passes(net)
    torch._dynamo.reset()
    with capture(net, "*") as seen:
        for output, right in zip(passes(compiled(net, backend)), outputs, strict=True):
            torch.testing.assert_close(output, right)
    assert [call.label for call in seen.calls] == [call.label for call in plainly.calls]
    for call, right in zip(seen.calls, plainly.calls, strict=True):
        torch.testing.assert_close(call.output, right.output)


def test_a_recording_is_that_of_the_model_as_it_is_written(way: tuple[nn.Module, str]) -> None:
    net, backend = way

    def recorded(model: Callable[[Tensor], Tensor]) -> list[tuple[object, ...]]:
        with record(net) as log:
            passes(model)
        made = {event.name for event in log.events if event.type == "GraphModule"}  # by aot_eager; they are run, too
        events = [event for event in log.events if event.name not in made]
        return [(each.kind, each.name, each.call, each.shapes, each.hook) for each in events]

    plainly = recorded(net)
    torch._dynamo.reset()
    assert recorded(compiled(net, backend)) == plainly


def test_an_edit_is_that_of_the_model_as_it_is_written(way: tuple[nn.Module, str]) -> None:
    net, backend = way

    def edited(model: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with edit(net) as e:
            e.map("0", lambda x: x.sign())
            e.scale("2", 3, calls={2, 4})
            return passes(model)

    plainly = edited(net)
    torch._dynamo.reset()
    for output, right in zip(edited(compiled(net, backend)), plainly, strict=True):
        torch.testing.assert_close(output, right)


FIRST = """
import sys, torch
from torch import nn
from hookscope import capture, edit, record

assert "torch._dynamo" not in sys.modules
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
with TOOL(net) as tool:
    getattr(tool, "scale", lambda *_: None)("0", 2)
    torch.compile(net, backend="eager")(torch.ones(1, 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["capture", "edit", "record"])
def test_a_compiler_that_comes_first_inside_of_the_block_is_right_or_says_what_to_do(tool: str) -> None:
    words = [sys.executable, "-W", "ignore", "-c", FIRST.replace("TOOL", tool)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0 or "Write `import torch._dynamo` before the block" in done.stderr
