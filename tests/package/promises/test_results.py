"""Results of the model are unchanged: outputs, gradients, buffers, flags, random numbers, inputs, hooks of others."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, census, collect, compare_backward_hooks, edit, graph, profile, record
from hookscope.censuses.census import removing_new_hooks
from hookscope.interp.lenses import Streams
from tests.package.promises.test_values import LARGE, NOT_COLLECTED
from tests.shared.awkward import FUSED, MODELS, Case, cloning, tensors_in
from tests.shared.captured import Played, assert_same_run, play
from tests.shared.read import IDS, Reader
from tests.shared.recorded import hooks_on

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, and our notes, which other files compare
FORWARD = {"kinds": ("forward_pre", "forward")}
Block = Callable[[nn.Module], AbstractContextManager[Any]]

# --- tools that are a block around a pass

BLOCKS: dict[str, tuple[str, Block]] = {
    "capture, all": ("grad", partial(capture, gradients=True, inputs=True)),
    "capture, references": ("grad", partial(capture, copy=False, inputs=True)),
    "capture, statistics": ("grad", partial(capture, stats=True, gradients=True)),
    "record, forward": ("grad", partial(record, **FORWARD)),
    "record, without grad": ("inference", record),
    "record, numbers": ("no_grad", partial(record, values=True)),
    "census": ("grad", removing_new_hooks),
    "edit": ("grad", edit),
}
SMALL = [name for name in MODELS if name not in LARGE]


@cache
def plain(name: str, mode: str) -> Played:
    """Play a model without any tool, or with hooks that clone, where any hook switches a fused path off."""
    return play(MODELS[name], mode, cloning if name in FUSED else lambda model: contextlib.nullcontext())


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
@pytest.mark.parametrize("tool", BLOCKS)
def test_a_block_changes_nothing(tool: str, name: str) -> None:
    mode, block = BLOCKS[tool]
    watched = play(MODELS[name], mode, block)
    expected = plain(name, mode)
    if tool == "edit" and name in FUSED:  # without edits there is no hook on a layer inside
        expected = play(MODELS[name], mode, lambda model: contextlib.nullcontext())
    assert_same_run(watched, expected)
    assert watched.hooks == 0


@contextlib.contextmanager
def full_hooks(model: nn.Module) -> Iterator[None]:
    """Put plain full backward hooks on every module, as a recording does: torch makes views for them."""
    handles = []
    for module in model.modules():
        handles.append(module.register_full_backward_pre_hook(lambda *_: None))
        handles.append(module.register_full_backward_hook(lambda *_: None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", SMALL)
def test_a_recording_changes_what_full_backward_hooks_change_or_names_the_layer(name: str) -> None:
    expected = play(MODELS[name], "grad", full_hooks)
    watched = play(MODELS[name], "grad", partial(record, parameters=True))
    assert watched.hooks == 0
    if not expected.error:
        assert_same_run(watched, expected)
    elif watched.error.startswith("FullBackwardHookError"):
        assert re.search(r'inside (layer|the with-block).* with kinds=\("forward_pre", "forward"\)', watched.error)
    else:
        assert watched.error == expected.error


# --- tools that run the model themselves, or look at what it made


def looks_at_its_graphs(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Read the graph of everything that a copy returns: nothing is added to the tensors."""
    with torch.random.fork_rng(devices=[]):
        output = copy.deepcopy(model)(*copy.deepcopy(args), **kwargs)
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            before = hooks_on(model), tensor._backward_hooks, tensor.retains_grad, tensor._version
            graph(tensor, model=model)
            assert (hooks_on(model), tensor._backward_hooks, tensor.retains_grad, tensor._version) == before


def reader() -> Case:
    """A language model in train(), of which one block is in eval(), and whose embedding takes a random number."""
    net = Reader().train()
    net.blocks[1].eval()
    net.words.register_forward_hook(lambda module, args, output: torch.rand(1) * 0 + output)
    return net, (IDS,), {}


RUNS: dict[str, Callable[[nn.Module, Any, Any], Any]] = {
    "census": lambda model, args, kwargs: census(model).table(),
    "compare": lambda model, args, kwargs: compare_backward_hooks(model, *args, kwargs=kwargs),
    "graph": looks_at_its_graphs,
    "profile": lambda model, args, kwargs: profile(model, *args, kwargs=kwargs, repeats=1, warmup=1),
    "lens": lambda model, args, kwargs: Streams(model, args, kwargs),
}
REFUSED = {
    "compare": "requires a gradient|begins with a string",
    "lens": "could not find the blocks of|not a residual stream",
}
CHANGED = {("profile", "a parameter returned, then changed"), ("lens", "counting")}
"""A profile restores what a pass changed, but not the parameters (docs/limits/profile.md); a lens no attributes."""


class Counts(nn.Module):
    """Counts its passes in a buffer and in an attribute, and adds a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.passes, self.fc = 0, nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.total += 1
        y: Tensor = self.fc(x) * self.passes * self.total + torch.rand(())
        return y


def counting() -> Case:
    torch.manual_seed(0)
    return nn.Sequential(Counts()), (torch.randn(2, 4),), {}


RUN = {name: MODELS[name] for name in (*SMALL, "resnet18")} | {"reader": reader, "counting": counting}


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("tool", RUNS)
def test_a_run_changes_nothing(tool: str, name: str) -> None:
    made: list[Case] = []

    def build() -> Case:
        made[:] = [RUN[name]()]
        for parameter in made[0][0].parameters():
            parameter.grad = torch.ones_like(parameter)
        return made[0]

    @contextlib.contextmanager
    def watch(model: nn.Module) -> Iterator[str]:
        before = hooks_on(model), [vars(module).keys() for module in model.modules()]
        error = ""
        try:
            RUNS[tool](*made[0])
        except (ValueError, TypeError, RuntimeError) as raised:
            error = str(raised)
        assert (hooks_on(model), [vars(module).keys() for module in model.modules()]) == before
        yield error

    expected = play(build, "grad", lambda model: contextlib.nullcontext())
    watched = play(build, "grad", watch)
    assert re.search(REFUSED.get(tool, "^$"), watched.seen) or not watched.seen
    if (tool, name) not in CHANGED:
        assert_same_run(watched, expected)
    assert watched.hooks == 0


@pytest.mark.parametrize("name", [name for name in (*SMALL, "counting") if name not in NOT_COLLECTED])
def test_a_collection_is_one_pass_of_the_model_for_each_batch(name: str, tmp_path: Path) -> None:
    made: list[Case] = []

    def build() -> Case:
        made[:] = [RUN[name]()]
        made[0][0].eval()
        return made[0]

    if len(build()[1]) != 1 or not isinstance(made[0][1][0], Tensor):
        pytest.skip("collect calls a model with one tensor")

    @contextlib.contextmanager
    def watch(model: nn.Module, collects: bool) -> Iterator[None]:
        (batch,) = made[0][1]
        if collects:
            collect(model, [batch], to=tmp_path, progress=False)
        else:
            with torch.no_grad():
                model(batch)
        yield

    expected, watched = (play(build, "grad", partial(watch, collects=collects)) for collects in (False, True))
    assert_same_run(watched, expected)
    assert watched.hooks == 0


# --- nothing is kept alive


@pytest.mark.parametrize("tool", BLOCKS)
def test_a_block_keeps_neither_the_model_nor_the_graph(tool: str) -> None:
    mode, block = BLOCKS[tool]
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4, requires_grad=mode == "grad")
    with block(net) as seen:
        y = net(x)
    given = weakref.ref(x)
    del x, y
    gc.collect()
    assert given() is None, "the graph is kept"
    model = weakref.ref(net)
    if tool.startswith(("capture", "edit")):  # which can be entered again
        del seen
    del net
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("tool", RUNS)
def test_a_run_keeps_neither_the_model_nor_what_it_was_given(tool: str) -> None:
    net, args, kwargs = reader()
    seen = RUNS[tool](net, args, kwargs)
    model = weakref.ref(net)
    del net, args, seen
    gc.collect()
    assert model() is None
