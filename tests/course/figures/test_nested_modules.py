"""The boxes in boxes: numbers as torch fired them, at the doors where hooks sit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope_course.figures.nested_modules import draw_nesting


def test_a_container_opens_first_and_closes_last_both_ways() -> None:
    fired = list[tuple[str, str]]()
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    with hookscope.record(net) as recording:
        for name, module in net.named_modules():
            module.register_forward_hook(lambda *_, name=name: fired.append((name or "(root)", "forward")))
            module.register_full_backward_hook(lambda *_, name=name: fired.append((name or "(root)", "full_backward")))
        net(torch.ones(1, 1, requires_grad=True)).backward()
    rows = [row for row in draw_nesting(recording).rows if row["hook"] in ("forward", "full_backward")]
    assert [(row["of"], row["hook"]) for row in rows] == fired
    every = draw_nesting(recording).rows
    assert every[0] == {"fires": 1, "hook": "forward_pre", "of": "(root)", "door": "left"}
    assert every[-1]["of"] == "(root)"
    assert every[-1]["door"] == "left"


def test_what_has_no_such_picture_is_refused() -> None:
    layer = nn.Linear(1, 1)
    with hookscope.record(layer, kinds="forward") as recording:
        layer(torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"no forward_pre hook of '\(root\)' fired"):
        draw_nesting(recording)
    with hookscope.record(layer) as recording:
        layer(layer(torch.ones(1, 1)))
    with pytest.raises(ValueError, match="called twice"):
        draw_nesting(recording)
