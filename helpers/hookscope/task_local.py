"""Give each thread, and each task of asyncio, something of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["TaskLocal", "current_task_name"]

_T = TypeVar("_T")


class TaskLocal(Generic[_T]):
    """One object for each thread and each asyncio task, made when it is asked for first.

    Args:
        make: makes one.

    Example:
        >>> mine = TaskLocal(list)
        >>> mine.get().append(1)
        >>> other = threading.Thread(target=lambda: mine.get().append(2))
        >>> other.start(); other.join()
        >>> mine.get()
        [1]

    """

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        # Not by thread number, which the system gives to the next thread when one has ended.
        self._of_threads = threading.local()
        self._of_tasks: WeakKeyDictionary[asyncio.Task[object], _T] = WeakKeyDictionary()

    def get(self) -> _T:
        """Return what belongs to the code that is running."""
        # Not asyncio.current_task(), which raises where no loop runs: this is asked at every call of a layer.
        if (loop := asyncio._get_running_loop()) is not None and (task := asyncio.current_task(loop)) is not None:
            if task not in self._of_tasks:
                self._of_tasks[task] = self._make()
            return self._of_tasks[task]
        try:
            found: _T = self._of_threads.mine
        except AttributeError:
            found = self._of_threads.mine = self._make()
        return found

    def clear(self) -> None:
        """Forget what everybody had."""
        self._of_threads = threading.local()
        self._of_tasks.clear()


def current_task_name() -> str:
    """Name the thread, or the task of asyncio, that is running.

    Example:
        >>> current_task_name()
        'MainThread'

    """
    if (loop := asyncio._get_running_loop()) is not None and (task := asyncio.current_task(loop)) is not None:
        return task.get_name()
    return threading.current_thread().name
