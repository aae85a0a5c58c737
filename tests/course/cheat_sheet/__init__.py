"""The rows of the cheat sheet, and for each a demonstration, which tests/course/test_cheat_sheet.py runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import graph
from torch.nn.modules.module import register_module_forward_hook

from lessons.build import reading

# These files are not named test_*.py; without this, a failed assert in them would not say what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("passes", "elsewhere")))

PAGE = next(path for path in reading.reference_files() if reading.name_of(path) == "93_cheat_sheet")
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = {"graph": graph, "register_module_forward_hook": register_module_forward_hook}
X = torch.tensor([[3.0]])


@dataclass(frozen=True)
class Row:
    """A row of the sheet."""

    hook: str
    register: str
    arguments: str
    fires: str
    returns: str
    trap: str

    @property
    def code(self) -> str:
        """The code that registers it, without the place where the line may break."""
        return self.register.replace("`<br>`", "").strip("`")

    def put_on(self, body: Callable[..., object], **names: object) -> Any:
        """Run the row's code, with a hook of exactly the row's parameters; returns the handle."""
        given = self.arguments.strip("`")
        hook = eval(f"lambda {given}: body({given})", {"body": body})  # a wrong number of parameters fails when called
        return eval(self.code, {**NAMES, **names, "hook": hook})

    def take_off(self, handle: object) -> None:
        """Take the hook off as the sheet says above the rows."""
        (way,) = re.findall(r"Its `(\w+\(\))` takes the hook off", TEXT)
        eval(f"handle.{way}", {"handle": handle})


ROWS = {
    hook: Row(hook, *rest.strip(" |").split(" | "))
    for hook, rest in re.findall(r"^\| \*\*([\w -]+)\*\*<br>(.+)$", TEXT, re.MULTILINE)
}
REFUSED = {
    what: (said, instead)
    for what, said, instead in re.findall(
        r"^\| (.+) \| (.+) \| (.+) \|$", TEXT.partition("**What torch refuses**")[2], re.MULTILINE
    )
    if what not in ("You write", "---")
}
"""What torch refuses: what it says, and what to write instead."""
SHOWN: dict[str, Callable[[Row], None]] = {}
WORDS: dict[str, tuple[str, str, str]] = {}


def shows(hook: str, *, fires: str, returns: str, trap: str) -> Callable[[Callable[[Row], None]], object]:
    """Mark the function that shows a row, and say which words of the row it shows."""

    def mark(function: Callable[[Row], None]) -> object:
        SHOWN[hook], WORDS[hook] = function, (fires, returns, trap)
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
