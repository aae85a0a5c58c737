"""A capture copies into the memory of earlier captures of its model, and never while anybody holds it."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hookscope import capture
from hookscope.captures import Capture, buffers

X = torch.ones(64, 4)
OUTPUT = 64 * 512 * 4  # bytes


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 512), nn.ReLU(inplace=True), nn.Linear(512, 512), nn.ReLU())


def seen_by(model: nn.Module, factor: float = 1.0, **options: Any) -> Capture:
    with torch.no_grad(), capture(model, **options) as seen:
        model(factor * X)
    return seen


def places(seen: Capture) -> set[int]:
    return {call.output.data_ptr() for call in seen.calls}


def waiting(model: nn.Module) -> int:
    return sum(size * len(arrays) for size, arrays in buffers._arrays[model].items())


@pytest.mark.parametrize("options", [{}, {"samples": slice(0, 32)}, {"inputs": True}], ids=str)
def test_a_capture_in_a_loop_copies_to_where_the_last_one_copied(options: dict[str, Any]) -> None:
    model, found = wide(), []
    for factor in range(4):
        with torch.no_grad(), capture(model, **options) as seen:
            model(factor * X)
        found.append(places(seen))
    # The last one is gone only when its name is given to the next, which is when that is entered.
    assert found[0] == found[1] == found[2] == found[3]


def test_a_capture_that_is_still_there_keeps_its_memory() -> None:
    model = wide()
    first, second = seen_by(model), seen_by(model, 2.0)
    assert places(first).isdisjoint(places(second))


HOLDS: dict[str, tuple[Callable[[Capture], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda seen: seen["0"].output, lambda held: held),
    "view": (lambda seen: seen["0"].output[:1, 1:3], lambda held: held),
    "storage": (lambda seen: seen["0"].output.untyped_storage(), lambda held: torch.tensor([*held[:64]])),
    "numpy": (lambda seen: seen["0"].output.numpy(), torch.tensor),
    "numpy of a view": (lambda seen: seen["2"].output[1:].numpy(), torch.tensor),
    "dlpack": (lambda seen: torch.from_dlpack(seen["0"].output), lambda held: held),
    "detached": (lambda seen: seen["2"].output.detach(), lambda held: held),
    "graph": (lambda seen: seen["2"].output * torch.ones(1, requires_grad=True), lambda held: held.grad_fn._saved_self),
    "call": (lambda seen: seen.calls[0], lambda held: held.output),
    "layer": (lambda seen: seen["3"], lambda held: held.output),
}


@pytest.mark.parametrize(("hold", "read"), HOLDS.values(), ids=HOLDS)
def test_what_somebody_holds_stays_what_it_was(hold: Callable[[Capture], Any], read: Callable[[Any], Any]) -> None:
    model = wide()
    seen = seen_by(model)
    held = hold(seen)
    before = copy.deepcopy(read(held))
    del seen
    for factor in (2.0, 3.0, 4.0):
        seen_by(model, factor)
        assert torch.equal(read(held), before)
    assert before.any()


def test_what_somebody_writes_to_does_not_reach_the_next_capture() -> None:
    model = wide()
    array = seen_by(model)["0"].output.numpy()
    second = seen_by(model, 2.0)
    was = second["0"].output.clone()
    array[:] = 7
    assert torch.equal(second["0"].output, was)


def test_memory_goes_at_the_end_of_the_next_block_and_with_the_model() -> None:
    model = wide()
    seen_by(model)
    assert waiting(model) == 4 * OUTPUT
    seen_by(model, samples=slice(0, 32))  # has no use for it
    assert waiting(model) == 4 * OUTPUT // 2
    count = len(buffers._arrays)
    del model
    gc.collect()
    assert len(buffers._arrays) < count


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_MOST", 2 * OUTPUT)
    model = wide()
    seen = seen_by(model)
    assert waiting(model) == 2 * OUTPUT
    assert len(places(seen)) == 4


def test_captures_of_one_model_in_several_threads_share_no_memory() -> None:
    model, errors = wide(), []
    expected = [seen_by(model, factor)["2"].output.clone() for factor in range(4)]

    def work(factor: int) -> None:
        for _ in range(20):
            # Each thread has the calls of all in its capture: only its own are looked at.
            with torch.no_grad(), capture(model, "2") as seen:
                model(factor * X)
            own = [call for call in seen.calls if call.by == threading.current_thread().name]
            if not torch.equal(own[0].output, expected[factor]):
                errors.append(factor)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_strides_and_dtypes_are_those_of_the_output(layout: str, dtype: torch.dtype) -> None:
    made = torch.randn(4, 8, 64, 64).to(dtype)
    if layout == "channels_last":
        made = made.to(memory_format=torch.channels_last)
    elif layout == "transposed":
        made = made.transpose(0, 1)
    elif layout == "expanded":
        made = made[:1].expand(4, 8, 64, 64)
    net = nn.Identity()
    with capture(net) as seen:
        net(made)
    kept = seen[""].output
    assert torch.equal(kept, made)
    assert kept.dtype is dtype
    assert kept.stride() == made.clone().stride()
    assert not kept._is_view()


@pytest.mark.parametrize("context", [torch.inference_mode, FakeTensorMode], ids=["inference", "fake"])
def test_a_capture_that_goes_in_the_middle_of_something_else(context: Callable[[], Any]) -> None:
    model = wide()
    seen = seen_by(model)
    with context():
        del seen
    after = seen_by(model, 2.0)
    assert torch.equal(after["2"].output, model[2](torch.relu(model[0](2 * X))))
    assert all(type(call.output) is torch.Tensor and not call.output.is_inference() for call in after.calls)
