"""End a pass as soon as every chosen layer has returned."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["EarlyStop", "StopForward"]


class StopForward(Exception):  # noqa: N818 (nothing went wrong)
    """Leaves the model's forward; the capture that raised it swallows it at the end of its block.

    Not a BaseException: torch runs the hooks with `always_call=True` of the layers around only for an Exception.
    """

    def __init__(self, early_stop: EarlyStop) -> None:
        super().__init__("capture(..., stop=True) has ended this pass, and has left its block before this")
        self.early_stop = early_stop


class EarlyStop:
    """Counts the calls that are still to come, and raises when there are none.

    Attributes:
        owner: who may be stopped: the thread or task that has entered the block.
        stopped: label of the call after which the pass ended; "" as long as it goes on.
        caught: whether the model has caught the exception, and gone on.

    """

    def __init__(self, names: Iterable[str], calls: int) -> None:
        self._left = dict.fromkeys(names, calls)
        self._waiting = len(self._left)
        self.owner: object = None
        self.stopped = ""
        self.caught = False

    def returned(self, name: str, label: str, here: object) -> bool:
        """Count a call that has returned, and raise if it was the last one that was waited for.

        Returns:
            Whether the pass would have to end here, but is that of another thread or task.

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
        """Raise at the end of a model that has caught the exception: what it returns now is not its output."""
        if self.stopped and here is self.owner:
            self.caught = True
            raise StopForward(self)
