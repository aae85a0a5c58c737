"""Keep one object for each thread and each asyncio task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["TaskLocal", "current_task_name"]

_T = TypeVar("_T")


class TaskLocal(Generic[_T]):
    """One object for each thread and each asyncio task, made at the first `get`.

    Args:
        make: makes the object.

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
        # Not a dict by thread ID, because the system reuses the IDs of ended threads.
        self._of_threads = threading.local()
        self._of_tasks: WeakKeyDictionary[asyncio.Task[object], _T] = WeakKeyDictionary()

    def get(self) -> _T:
        """Return the object of the running thread or task."""
        # Not asyncio.current_task(), which raises if no loop runs: this runs at every call of a layer.
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
        """Drop all objects."""
        self._of_threads = threading.local()
        self._of_tasks.clear()


def current_task_name() -> str:
    """Return the name of the running thread or asyncio task.

    Example:
        >>> current_task_name()
        'MainThread'

    """
    if (loop := asyncio._get_running_loop()) is not None and (task := asyncio.current_task(loop)) is not None:
        return task.get_name()
    return threading.current_thread().name
