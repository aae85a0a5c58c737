"""End a pass as soon as every chosen layer has returned."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["EarlyStop", "StopForward"]


class StopForward(Exception):  # noqa: N818 (nothing went wrong)
    """Raised to leave the forward of a model; the capture that raised it catches it at the end of its block.

    It is not a BaseException, because torch runs hooks with `always_call=True` only after an Exception.
    """

    def __init__(self, early_stop: EarlyStop) -> None:
        super().__init__("capture(..., stop=True) ended this pass, but its block had already been left")
        self.early_stop = early_stop


class EarlyStop:
    """Counts the calls that are still missing, and raises an exception after the last one.

    Attributes:
        owner: the thread or task that entered the block; only this one is stopped.
        stopped: label of the call after which the pass ended; "" until then.
        caught: whether the model caught the exception and continued.

    """

    def __init__(self, names: Iterable[str], calls: int) -> None:
        self._left = dict.fromkeys(names, calls)
        self._waiting = len(self._left)
        self.owner: object = None
        self.stopped = ""
        self.caught = False

    def returned(self, name: str, label: str, here: object) -> bool:
        """Count a call that returned, and raise an exception if it was the last missing one.

        Returns:
            Whether the pass should end here but belongs to another thread or task.

        """
        self._left[name] -= 1
        if self._left[name] == 0:
            self._waiting -= 1
        if self._waiting:
            return False
        if here is not self.owner:
            return True
        self.caught = bool(self.stopped)
        self.stopped = self.stopped or label
        raise StopForward(self)

    def again(self, here: object) -> None:
        """Raise the exception again if the model caught it, because it now returns something other than its output."""
        if self.stopped and here is self.owner:
            self.caught = True
            raise StopForward(self)
