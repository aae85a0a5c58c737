"""The rows of the cheat sheet, each with facts of torch or a demonstration, for tests/course/test_cheat_sheet.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import graph

from lessons.build import lesson_source

# It is not named test_*.py; without this, a failed assert in it would not say what it compared.
pytest.register_assert_rewrite(f"{__name__}.elsewhere")

PAGE = next(path for path in lesson_source.reference_files() if lesson_source.name_of(path) == "93_cheat_sheet")
TEXT = PAGE.read_text(encoding="utf-8")
OPTIMIZER = import_module("torch.optim.optimizer")  # `torch.optim` has no attribute of this name
NAMES = {"graph": graph}
LISTED = dict(re.findall(r"^- \*\*(.+):\*\* ((?:.+\n)(?: .+\n)*)", TEXT, re.MULTILINE))
"""The hooks that have no row: for whom, and a line about them."""
X = torch.tensor([[3.0]])


@dataclass(frozen=True)
class Row:
    """A row of the sheet.

    Args:
        code: what registers the hook.
        arguments: what the hook gets.
        fires: when.
        returns: what it can return.
        trap: what goes wrong.
        numbers: its places in the drawing, if it has any.

    """

    code: str
    arguments: str
    fires: str
    returns: str
    trap: str
    numbers: str = ""

    @property
    def name(self) -> str:
        """The code without its arguments."""
        return self.code.partition("(")[0].removeprefix("with ")

    def put_on(self, body: Callable[..., object], **names: object) -> Any:
        """Run the row's code, with a hook of exactly the row's parameters; returns the handle."""
        given = self.arguments
        hook = eval(f"lambda {given}: body({given})", {"body": body})  # a wrong number of parameters fails when called
        return eval(self.code, {**NAMES, **names, "hook": hook})

    def take_off(self, handle: object) -> None:
        """Remove the hook as the sheet says below the rows."""
        (way,) = re.findall(r"`handle\.(\w+\(\))` removes the hook", TEXT)
        eval(f"handle.{way}", {"handle": handle})


def _lines(columns: int) -> list[list[str]]:
    """The lines of the tables with this number of columns, without the heads."""
    lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\| .+ \|$", TEXT, re.MULTILINE)]
    return [line for line in lines if len(line) == columns and "`" in "".join(line)]


ROWS = {
    row.name: row
    for numbers, code, *rest in (
        re.findall(r"(?:\*\*(.+)\*\* )?`(.+)`", line[0])[0] + (*line[1:],) for line in _lines(5)
    )
    for row in [Row(code, *rest, numbers=numbers)]
}
ERRORS = {said.strip("`"): (why, instead) for said, why, instead in _lines(3)}
"""What torch says: why, and what to write instead."""
SHOWN: dict[str, Callable[[Row], None]] = {}
WORDS: dict[str, tuple[str, str, str]] = {}


def shows(name: str, *, fires: str, returns: str, trap: str) -> Callable[[Callable[[Row], None]], object]:
    """Mark the function that shows a row, and say which words of the row it shows."""

    def mark(function: Callable[[Row], None]) -> object:
        SHOWN[name], WORDS[name] = function, (fires, returns, trap)
        return function

    return mark


class Noting(nn.Linear):
    """A Linear layer 2·x that notes when its `forward` runs, and what with."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.constant_(self.weight, 2.0)
        self.seen: list[object] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append("forward")
        return super().forward(x)


def x_that_requires() -> torch.Tensor:
    return X.clone().requires_grad_()


def optimizer_of(parameter: nn.Parameter) -> torch.optim.SGD:
    (3 * parameter).backward()
    return torch.optim.SGD([parameter], lr=1.0)
