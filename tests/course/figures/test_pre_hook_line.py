"""The picture of pre-hooks in a line, against what a guard and a normalizer do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hookscope_course.figures.pre_hook_line import draw_pre_hooks


def guard(module: nn.Module, args: Any) -> None:
    if args[0].min() < 0:
        raise ValueError("below 0")


def halve(module: nn.Module, args: Any) -> Any:
    return ((args[0] + 1) / 2,)


def test_a_guard_in_front_stops_the_call_and_one_at_the_end_lets_it_pass() -> None:
    net, image = nn.Flatten(), torch.tensor([[-1.0, 0.0, 1.0]])
    picture = draw_pre_hooks(net, image, [guard, halve], [halve, guard])
    assert picture.rows == [
        {"call": 1, "place": "guard", "gets": "−1 to 1", "then": "ValueError"},
        {"call": 2, "place": "halve", "gets": "−1 to 1", "then": "goes on"},
        {"call": 2, "place": "guard", "gets": "0 to 1", "then": "goes on"},
        {"call": 2, "place": "the network", "gets": "0 to 1", "then": "reads a 2"},
    ]
    assert "Call 1: guard gets −1 to 1; ValueError. Call 2: halve gets −1 to 1" in picture.alt
    assert picture.png.startswith(b"\x89PNG")
    assert not net._forward_pre_hooks
