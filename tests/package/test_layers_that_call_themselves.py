"""A layer calls itself, and the call inside ends without a word to hooks: what came of the outer one stays its own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, profile, record


class CallsItself(nn.Module):
    """Returns 10 times what it is given, after a call of itself that fails."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.weight = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor, inner: bool = False) -> Tensor:
        if inner:
            raise self.error
        with suppress(self.error):
            self(-x, True)
        return x * self.weight


def _refuses_inner_calls(module: nn.Module, args: tuple[Any, ...]) -> None:
    if len(args) > 1:
        raise ValueError


def model(why: str) -> nn.Module:
    layer = CallsItself({"interrupt": KeyboardInterrupt}.get(why, ValueError))
    if why == "a hook before":
        layer.register_forward_pre_hook(_refuses_inner_calls)
    return nn.Sequential(nn.Identity(), layer)


WHYS = pytest.mark.parametrize("why", ["a hook before", "error", "interrupt"])


@WHYS
def test_capture_gives_each_call_what_it_returned(why: str) -> None:
    net = model(why)
    with capture(net, "1", inputs=True) as seen:
        for value in (5.0, 7.0):
            net(torch.tensor(value))
    found = {call.args[0].item(): call.output.item() for call in seen.calls if not call.args[1:]}
    assert found == {5: 50, 7: 70}
    inner = [call for call in seen.calls if call.args[1:]]
    assert len(inner) == (0 if why == "a hook before" else 2)
    for call in inner:
        with pytest.raises(RuntimeError, match="raised an exception and returned nothing"):
            call.output  # noqa: B018


@WHYS
@pytest.mark.parametrize("kinds", [("forward_pre", "forward"), ("forward_pre", "forward", "full_backward")])
def test_a_recording_logs_the_end_of_each_call_by_its_number(why: str, kinds: tuple[str, ...]) -> None:
    net = model(why)
    net[1].register_forward_hook(lambda *_: None)
    with record(net, kinds=kinds) as log:
        for value in (5.0, 7.0):
            net(torch.tensor(value))
    events = [event for event in log.events if event.name == "1"]
    begun = [event.call for event in events if event.kind == "forward_pre" and not event.hook and len(event.shapes) < 2]
    ended = [(event.call, bool(event.hook)) for event in events if event.kind == "forward"]
    outer = [1, 2] if why == "a hook before" else [1, 3]
    assert [call for call in begun if call in outer] == outer
    assert ended == [(call, hooked) for call in outer for hooked in (True, False)]


@WHYS
def test_a_profile_counts_the_outer_call_to_its_end(why: str) -> None:
    costs = profile(model(why), torch.tensor(5.0))
    row = next(row for row in costs.rows if row["layer"] == "1")
    assert row["calls"] == (1 if why == "a hook before" else 2)
    assert row["outputs KiB"] == 4 / 1024
