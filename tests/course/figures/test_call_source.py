"""The lines that the figure lights are those that torch runs, in that order."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from hookscope_course.figures import CallSource
from hookscope_course.figures.call_source.figure import Double, _find_lines

FILE = inspect.getsourcefile(nn.Module)
OWN = inspect.getsourcefile(Double)


@contextmanager
def traced(ran: list[int]) -> Iterator[None]:
    """Note the lines of `_call_impl` that run; 0 stands for a line of `forward`."""

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if event == "line" and code.co_filename == FILE and code.co_qualname.startswith("Module._call_impl"):
            ran.append(frame.f_lineno)
        if event == "line" and code.co_filename == OWN and code.co_name == "forward":
            ran.append(0)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("way", ["call", "forward"])
def test_the_lit_lines_are_those_that_run(way: str) -> None:
    figure, double, x, ran = CallSource(), Double(), torch.tensor([3.0]), list[int]()
    numbers = [line["number"] for line in figure._lines]
    with double.register_forward_pre_hook(lambda *_: None), double.register_forward_hook(lambda *_: None), traced(ran):
        _ = double(x) if way == "call" else double.forward(x)
    lit = [numbers[at] for at, _ in figure._ways[way]["steps"]]
    assert [number for number in dict.fromkeys(ran) if number in numbers] == lit
    assert way == "call" or ran == [0]


def test_without_a_hook_only_forward_is_called() -> None:
    double, ran = Double(), list[int]()
    with traced(ran):
        double(torch.tensor([3.0]))
    check, shortcut = (line["number"] for line in CallSource()._lines[:2])
    found = [number for number in ran if number in (check, shortcut, 0)]
    assert list(dict.fromkeys(found)) == [check, shortcut, 0]


def test_each_hook_line_names_as_many_arguments_as_torch_passes() -> None:
    for line, count in zip([each for each in CallSource()._lines if each["kind"] == "hook"], (2, 3), strict=True):
        inside = line["code"].partition("hook(")[2].rstrip(")")
        assert len(inside.split(", ")) == count
        assert f"{count} arguments" in line["note"]


def test_a_torch_without_such_a_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "getsourcelines", lambda _: (["pass\n"], 1))
    with pytest.raises(LookupError, match=r"has no line 'if not .* install one of these"):
        _find_lines()


def test_the_words_tell_both_ways() -> None:
    figure = CallSource()
    assert "so no hook is called" in figure.alt
    assert [row["double.forward(x)"] for row in figure.numbers()].count("runs") == 1
