"""Hold the events of one recording, and what has to be undone when it ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, count
from typing import Any

import torch

from hookscope.recordings.event import Event, describe_shapes, find_phase, summarize_values
from hookscope.recordings.wrapped_hook import Hooks, OwnHook, short_name
from hookscope.task_local import TaskLocal, current_task_name

__all__ = ["EventBuffer"]


class ThreadNames:
    """Names of the threads and the tasks of asyncio in which hooks fire; no two have the same."""

    def __init__(self) -> None:
        self._per_task = TaskLocal(lambda: self._new(current_task_name()))
        self._given: set[str] = set()
        self._last: dict[int, str] = {}  # by number of the thread, what it was at last: one thread may run many tasks
        self._passes: dict[int, str] = {}  # the same of backward passes on threads of torch's own

    def get(self) -> str:
        """Return the name of what is running."""
        task = torch._C._current_graph_task_id()
        if task >= 0 and isinstance(threading.current_thread(), threading._DummyThread):  # not one of Python's
            if task not in self._passes:
                self._passes[task] = self._waiting() or self._new(f"backward pass {len(self._passes) + 1}")
            return self._passes[task]
        name = self._last[threading.get_ident()] = self._per_task.get()
        return name

    def _new(self, name: str) -> str:
        numbered = (f"{name} ({number})" for number in count(2))
        new = next(each for each in chain([name], numbered) if each not in self._given)
        self._given.add(new)
        return new

    def _waiting(self) -> str:
        """Name who waits for a backward pass that torch runs on a thread of its own; "" if it may be several."""
        inside = {i for i, frame in sys._current_frames().items() if frame.f_code.co_name == "_engine_run_backward"}
        waiting = {name for thread, name in self._last.items() if thread in inside} or set(self._last.values())
        return waiting.pop() if len(waiting) == 1 else ""


class EventBuffer:
    """Where the hooks of one recording log that they fire, until it is closed.

    Args:
        max_events: how many events to log at most.
        values: whether events keep the numbers that hooks were given.

    Attributes:
        events: what was logged.
        notes: what else there is to know, as keys.
        running: whether it is open.
        lock: several threads may run the model.
        names: knows which of them is running.
        cleanup: removes hooks and restores state, last first, when the recording is over.
        flush: logs what happened without a hook, before anything else is logged; does nothing at first.

    """

    def __init__(self, max_events: int, values: bool) -> None:
        self.events: list[Event] = []
        self.notes: dict[str, None] = {}  # an ordered set
        self.running = False
        self.lock = threading.RLock()
        self.names = ThreadNames()
        self.cleanup = ExitStack()
        self.flush: Callable[[], None] = lambda: None
        self._max_events = max_events
        self._values = values

    def log(
        self, kind: str, name: str, of: str, call: int, value: Any, hook: str = "", depth: int = 0, by: str = ""
    ) -> None:
        """Add an event; `value` is what the hook was given, `by` whose it is, if not that of what is running."""
        if not self.running:
            return
        with self.lock:
            self.flush()
            if self.full:
                self.note(f"Only the first {self._max_events} events were logged. A larger max_events= logs more.")
                return
            values = None
            if self._values:
                values = summarize_values(value.grad if kind == "post_accumulate_grad" else value)
            index, shapes, by = len(self.events) + 1, describe_shapes(value), by or self.names.get()
            self.events.append(Event(index, kind, name, of, call, find_phase(kind), shapes, hook, depth, values, by))

    @property
    def full(self) -> bool:
        """Whether no more events are logged."""
        return len(self.events) >= self._max_events

    def note(self, text: str) -> None:
        """Say what else there is to know, once."""
        self.notes[text] = None

    def note_new(self, hooks: Hooks, known: set[int], where: str) -> None:
        """Note the hooks that are not among the known ones."""
        for key, hook in hooks.items():
            if key not in known and not isinstance(hook, OwnHook):
                self.note(f"The hook {short_name(hook)} was registered {where} inside the block, so it is not logged.")
