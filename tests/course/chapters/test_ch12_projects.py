"""What chapter 12 draws, and what it says in numbers, held against plain torch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope_course.chapters.ch12_projects import (
    draw_blocks,
    draw_dead_units,
    show_channels,
    show_push,
)
from hookscope_course.practice import ____


def test_dead_units_are_counted_by_epoch() -> None:
    epochs = ([True, False, False], [True, True, False], [False, False, False])
    history = [{"1": torch.tensor(fired)} for fired in epochs]
    page = draw_dead_units(history)
    assert page.rows == [
        {"layer": "1", "epoch": 1, "dead": 2, "woke up": 0},
        {"layer": "1", "epoch": 2, "dead": 1, "woke up": 1},
        {"layer": "1", "epoch": 3, "dead": 3, "woke up": 0},
    ]


def test_blocks_add_up() -> None:
    # Two operations keep the tensor at address 1, and each gets a copy with half the bits; the one at 2 stays as it is.
    plain = [(2, 2_000_000), (1, 8_000_000), (1, 8_000_000)]
    page = draw_blocks({"float32": plain, "bfloat16": [(2, 2_000_000), (3, 4_000_000), (4, 4_000_000)]})
    assert [(row["kept as"], row["tensor"], row["bytes"]) for row in page.rows] == [
        ("float32", "A", 8_000_000),
        ("float32", "B", 2_000_000),
        ("bfloat16", "A", 4_000_000),
        ("bfloat16", "A", 4_000_000),
        ("bfloat16", "B", 2_000_000),
    ]
    assert "bfloat16: 3 blocks, 10.0 MB" in page.alt


@contextmanager
def fired_of(model: nn.Module) -> Any:
    yield {"relu": torch.tensor([True, False])}


@contextmanager
def pushed(model: nn.Module, layer: str, images: Tensor, labels: Tensor, start: int, goal: int, strength: float) -> Any:
    with model.get_submodule(layer).register_forward_hook(lambda module, args, output: output + strength):
        yield


def blank(*args: Any) -> Any:
    return ____


@pytest.mark.parametrize(
    ("show", "tool", "said"),
    [
        (show_channels, fired_of, "Dead channels (black)"),
        (show_push, pushed, "scans. With 0 times the push 'toward 7'"),
    ],
)
def test_a_tool_with_a_blank_has_no_picture_yet(
    show: Any, tool: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(tool)
    assert said in capsys.readouterr().out
    show(blank)
    assert "Your picture appears here" in capsys.readouterr().out


def test_the_network_with_an_accident_has_a_dead_layer() -> None:
    from hookscope_course.chapters.ch06_damaged_networks import patient

    fired: list[Tensor] = []
    net = patient()
    net.get_submodule("block2.relu").register_forward_hook(lambda module, args, output: fired.append(output > 0))
    net(samples.digits("test").images)
    assert not fired[0].any()
