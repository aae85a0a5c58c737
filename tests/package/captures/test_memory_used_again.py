"""The memory of captures that are gone is used by the next, within bounds, and never while somebody holds it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hookscope import capture
from hookscope.captures import Capture, release_memory, reuse
from hookscope.captures.keep import shares_memory


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU())


OUTPUT = 2 * 8 * 4  # bytes: two samples with eight float32 each
COPIES: dict[str, Any] = {"keep": "copies"}  # of all four outputs; else only "0" is copied, which is overwritten


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    gc.collect()
    release_memory()
    yield
    release_memory()


def seen_by(model: nn.Module, factor: float = 1.0, **options: Any) -> Capture:
    with torch.no_grad(), capture(model, **options) as seen:
        model(factor * torch.ones(2, 4))
    return seen


def place(seen: Capture, layer: str) -> int:
    address: int = torch._C._data_address(seen[layer].output)
    return address


def places(seen: Capture) -> set[int]:
    return {place(seen, layer) for layer in seen}


def test_a_fresh_capture_in_a_loop_copies_to_where_the_last_one_copied():
    model, found = small(), []
    for factor in range(4):
        with torch.no_grad(), capture(model, **COPIES) as seen:
            model(factor * torch.ones(2, 4))
        found.append(places(seen))
    # The last one is gone only when its name is given to the next, which is when that is entered.
    assert found[1] == found[0] == found[2] == found[3]


def test_only_what_is_overwritten_is_copied_and_that_where_the_last_copy_was():
    model, found = small(), []
    seen_by(model)  # from which the next learns what will be
    for factor in range(3):
        seen = seen_by(model, factor)
        found.append(place(seen, "0"))
        assert [layer for layer in seen if shares_memory(seen[layer].output)] == ["1", "2", "3"]
        del seen
        assert reuse.held() == OUTPUT
    assert found[1] == found[0] == found[2]


def test_a_capture_that_is_still_there_keeps_its_memory():
    model = small()
    first, second = seen_by(model, **COPIES), seen_by(model, 2.0, **COPIES)
    assert places(first).isdisjoint(places(second))
    assert reuse.held() == 0


HOLDS: dict[str, tuple[Callable[[Capture], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda seen: seen["0"].output, lambda held: held),
    "view": (lambda seen: seen["0"].output[:1, 1:3], lambda held: held),
    "storage": (lambda seen: seen["0"].output.untyped_storage(), lambda held: torch.tensor(list(held))),
    "numpy": (lambda seen: seen["0"].output.numpy(), torch.tensor),
    "numpy of a view": (lambda seen: seen["2"].output[1:].numpy(), torch.tensor),
    "dlpack": (lambda seen: torch.from_dlpack(seen["0"].output), lambda held: held),
    "detached": (lambda seen: seen["2"].output.detach(), lambda held: held),
    "call": (lambda seen: seen.calls[0], lambda held: held.output),
    "layer": (lambda seen: seen["3"], lambda held: held.output),
}


@pytest.mark.parametrize(("hold", "read"), HOLDS.values(), ids=HOLDS)
def test_what_somebody_holds_stays_what_it_was(hold: Callable[[Capture], Any], read: Callable[[Any], Any]):
    model = small()
    seen = seen_by(model)
    held = hold(seen)
    before = copy.deepcopy(read(held))
    del seen
    for factor in (2.0, 3.0, 4.0):
        seen_by(model, factor)
        assert torch.equal(read(held), before)
    assert before.any()


def test_what_somebody_holds_is_not_copied_either():
    model = small()
    seen = seen_by(model, **COPIES)
    held = seen["0"].output
    del seen
    assert reuse.held() == 4 * OUTPUT - held.nbytes


def test_what_somebody_writes_to_does_not_reach_the_next_capture():
    model = small()
    array = seen_by(model)["0"].output.numpy()
    second = seen_by(model, 2.0)
    was = second["0"].output.clone()
    array[:] = 7
    assert torch.equal(second["0"].output, was)


def test_it_is_given_back_on_request_with_the_model_and_at_the_end_of_the_next_block():
    model = small()
    seen_by(model, **COPIES)
    assert reuse.held() == 4 * OUTPUT
    assert release_memory() == 4 * OUTPUT
    assert (reuse.held(), release_memory()) == (0, 0)
    seen_by(model, **COPIES)
    seen = seen_by(model, sample=0)  # has no use for all of it
    assert reuse.held() == 0
    del seen
    assert reuse.held() == 4 * OUTPUT // 2
    del model
    gc.collect()
    assert reuse.held() == 0


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reuse, "_MOST", 2 * OUTPUT)
    models = [small() for _ in range(3)]
    for model in models:
        seen_by(model, **COPIES)
        assert reuse.held() == 2 * OUTPUT


def test_none_is_held_where_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    assert reuse._available() > 0
    monkeypatch.setattr(reuse, "_FREE", 1.0)  # all of the machine's memory must stay available
    assert reuse._available() < 0
    model = small()
    seen_by(model, **COPIES)
    assert reuse.held() == 0


def test_with_gradients_what_the_graph_holds_is_not_taken():
    model = small()
    with capture(model, "2", "3") as seen:
        model(torch.ones(2, 4))
    del seen
    assert reuse.held() == 0


@pytest.mark.parametrize("context", [torch.inference_mode, FakeTensorMode], ids=["inference", "fake"])
def test_a_capture_that_goes_in_the_middle_of_something_else(context: Callable[[], Any]):
    model = small()
    seen = seen_by(model)
    with context():
        del seen
    after = seen_by(model, 2.0)
    assert torch.equal(after["2"].output, model[2](torch.relu(model[0](2 * torch.ones(2, 4)))))
    assert all(type(call.output) is torch.Tensor and not call.output.is_inference() for call in after.calls)
