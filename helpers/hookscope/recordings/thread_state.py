"""Track which layers a thread, or an asyncio task, is calling."""

from __future__ import annotations

import sys

from torch import nn

from hookscope.layers import ModuleMap, call_id

__all__ = ["ThreadState"]


class ThreadState:
    """The open calls of one thread or asyncio task.

    Attributes:
        open: calls that have begun: layer, number, the exception being handled, and the ID of the call.
        coming: layer -> number of a call whose pre-hooks are running.
        last: the layer that returned last.
        at: the layer that torch might warn about.

    """

    def __init__(self) -> None:
        self.open: list[tuple[nn.Module, int, BaseException | None, int]] = []
        self.coming = ModuleMap[int]()
        self.last = ""
        self.at: nn.Module | None = None

    def find_call(self) -> int | None:
        """Return the index in `open` of the call that the running forward hook belongs to."""
        this = call_id(sys._getframe(1))
        return next((i for i in range(len(self.open))[::-1] if self.open[i][3] == this), None)
