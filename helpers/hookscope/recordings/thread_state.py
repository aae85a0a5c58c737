"""Know where a thread, or a task of asyncio, is in the model."""

from __future__ import annotations

import sys

from torch import nn

from hookscope.layers import call_of

__all__ = ["ThreadState"]


class ThreadState:
    """Where a thread, or a task of asyncio, is.

    Attributes:
        open: the calls that have begun: layer, number, the exception that was being handled, and what tells them apart.
        coming: numbers of calls that have not begun: their pre-hooks run, or raised.
        last: the layer that returned last.
        at: the layer that torch may warn about.

    """

    def __init__(self) -> None:
        self.open: list[tuple[nn.Module, int, BaseException | None, int]] = []
        self.coming: dict[nn.Module, int] = {}
        self.last = ""
        self.at: nn.Module | None = None

    def find_call(self) -> int | None:
        """Find the place in `open` of the call that a forward hook belongs to; to be asked inside of the hook."""
        this = call_of(sys._getframe(1))
        return next((i for i in range(len(self.open))[::-1] if self.open[i][3] == this), None)
