"""Results of the model are unchanged: outputs, gradients, buffers, flags, random numbers, inputs, hooks of others."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hookscope import collect, record
from tests.package.promises.test_values import NOT_COLLECTED, SMALL
from tests.package.promises.tools import BLOCKS, RUNS, Block
from tests.shared.awkward_models import FUSED, MODELS, Case, Do, Net, cloning
from tests.shared.capture_runs import RunResult, assert_same_run, run_watched
from tests.shared.language_models import READER_IDS, Reader
from tests.shared.recording_helpers import list_hooks
from tests.shared.table_checks import check_each

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, and our notes, which other files compare

# --- tools that are a block around a pass

MODES: dict[str, tuple[str, Block]] = {
    **{name: ("grad", block) for name, block in BLOCKS.items() if name != "record"},
    "record, without grad": ("inference", record),
    "record, numbers": ("no_grad", partial(record, values=True)),
}


@cache
def plain(name: str, mode: str) -> RunResult:
    """Play a model without any tool, or with hooks that clone, where any hook switches a fused path off."""
    return run_watched(MODELS[name], mode, cloning if name in FUSED else lambda model: contextlib.nullcontext())


@pytest.mark.parametrize("name", [*SMALL, "resnet18"])
def test_no_block_changes_anything(name: str) -> None:
    def check(tool: str) -> None:
        mode, block = MODES[tool]
        watched = run_watched(MODELS[name], mode, block)
        expected = plain(name, mode)
        if tool == "edit" and name in FUSED:  # without edits there is no hook on a layer inside
            expected = run_watched(MODELS[name], mode, lambda model: contextlib.nullcontext())
        assert_same_run(watched, expected)
        assert watched.hooks == 0

    check_each(MODES, check)


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
    expected = run_watched(MODELS[name], "grad", full_hooks)
    watched = run_watched(MODELS[name], "grad", BLOCKS["record"])
    assert watched.hooks == 0
    if not expected.error:
        assert_same_run(watched, expected)
    elif watched.error.startswith("FullBackwardHookError"):
        assert re.search(r'inside (layer|the with-block).* with kinds=\("forward_pre", "forward"\)', watched.error)
    else:
        assert watched.error == expected.error


@pytest.mark.parametrize("tool", BLOCKS)
def test_parameters_buffers_and_inputs_keep_their_addresses(tool: str) -> None:
    """A layer may return its own parameter, which the next optimizer step writes to."""
    net, x = Net(lambda self, x: [self.same(t) for t in (self.weight, self.mean, x)]), torch.ones(3)
    net.weight, net.mean = nn.Parameter(torch.ones(3)), nn.Buffer(torch.ones(3))
    owned = [net.weight, net.mean, x]
    addresses = [tensor.data_ptr() for tensor in owned]
    for same in (lambda x: x, lambda x: x.detach(), lambda x: x.data, lambda x: x.view(1, 3)):
        for grad in (True, False):
            net.same = Do(same)
            with torch.set_grad_enabled(grad), BLOCKS[tool](net) as seen:
                net(x)
            with torch.no_grad():
                assert [tensor.add_(1).data_ptr() for tensor in owned] == addresses, seen


@pytest.mark.parametrize("tool", BLOCKS)
def test_threads_get_what_one_thread_gets(tool: str) -> None:
    def run(self: nn.Module, x: Tensor, depth: int = 5) -> Tensor:
        return self(self.fc(x).tanh(), depth - 1) if depth else x

    net, inputs = Net(run, fc=nn.Linear(4, 4)), [torch.full((1, 4), float(number)) for number in range(40)]
    block = BLOCKS[tool](net)
    if tool == "edit":
        block.add("", 1)
        block.scale("fc", 2)
    with block:
        expected = [net(x) for x in inputs]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(net, inputs))
        finally:
            sys.setswitchinterval(interval)
    assert all(map(torch.equal, found, expected))


# --- tools that run the model themselves, or look at what it made


def reader() -> Case:
    """Build a language model in train(), of which a block is in eval(), and whose embedding takes a random number."""
    net = Reader().train()
    net.blocks[1].eval()
    net.words.register_forward_hook(lambda module, args, output: torch.rand(1) * 0 + output)
    return net, (READER_IDS,), {}


REFUSED = {
    "compare": "requires a gradient|begins with a string",
    "lens": "could not find the blocks of|not a residual stream",
    "sweep": "",
    "collect": "",
}
CHANGED = {
    "a parameter returned, then changed": ("profile", "sweep", "attention", "diagnose"),
    "counting": ("lens", "attention"),
    "a module made during forward": ("attention",),
    "a module replaced during forward": ("attention",),
    "the user's input passed on, then overwritten": ("attention",),
}
"""What is not put back: parameters; by a lens and by `attention` attributes; by `attention` inputs (docs/limits)."""
RESTORING = [name for name in RUNS if name != "collect"]  # which is a pass for each batch


def count(self: nn.Module, x: Tensor) -> Tensor:
    """Count passes in a buffer and in an attribute, and add a random number."""
    self.passes += 1
    self.total += 1
    return self.fc(x) * self.passes * self.total + torch.rand(())


def counting() -> Case:
    torch.manual_seed(0)
    counts = Net(count, passes=0, fc=nn.Linear(4, 4), total=nn.Buffer(torch.zeros(())))
    return nn.Sequential(counts), (torch.randn(2, 4),), {}


RUN = {name: MODELS[name] for name in SMALL} | {"reader": reader, "counting": counting}


@pytest.mark.parametrize("name", RUN)
def test_no_run_changes_anything(name: str) -> None:
    made: list[Case] = []

    def build() -> Case:
        made[:] = [RUN[name]()]
        for parameter in made[0][0].parameters():
            parameter.grad = torch.ones_like(parameter)
        return made[0]

    @contextlib.contextmanager
    def watch(model: nn.Module, tool: str) -> Iterator[str]:
        before = list_hooks(model), [vars(module).keys() for module in model.modules()]
        error = ""
        try:
            RUNS[tool](*made[0])
        except (ValueError, TypeError, RuntimeError) as raised:
            error = str(raised)
        after = list_hooks(model), [vars(module).keys() for module in model.modules()]
        yield error if after == before else "hooks or attributes"

    expected = run_watched(build, "grad", lambda model: contextlib.nullcontext())

    def check(tool: str) -> None:
        watched = run_watched(build, "grad", partial(watch, tool=tool))
        if tool not in CHANGED.get(name, ()):
            assert watched.seen != "hooks or attributes"
            assert re.search(REFUSED.get(tool, "^$"), watched.seen) or not watched.seen
            assert_same_run(watched, expected)
        assert watched.hooks == 0

    check_each(RESTORING, check)


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

    expected, watched = (run_watched(build, "grad", partial(watch, collects=collects)) for collects in (False, True))
    assert_same_run(watched, expected)
    assert watched.hooks == 0


# --- nothing is kept alive


@pytest.mark.parametrize("tool", BLOCKS)
def test_a_block_keeps_neither_the_model_nor_the_graph(tool: str) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4, requires_grad=True)
    with BLOCKS[tool](net) as seen:
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
    if tool == "sweep":
        net = net.words  # a position is not called
    seen = RUNS[tool](net.eval(), args, kwargs)
    model = weakref.ref(net)
    del net, args, seen
    gc.collect()
    assert model() is None
