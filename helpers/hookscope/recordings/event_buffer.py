"""Store the events of one recording, and the cleanup to run when it ends."""

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
    """Unique names for the threads and asyncio tasks in which hooks fire."""

    def __init__(self) -> None:
        self._per_task = TaskLocal(lambda: self._new(current_task_name()))
        self._given: set[str] = set()
        self._last: dict[int, str] = {}  # thread ID -> latest name, since one thread can run many tasks
        self._passes: dict[int, str] = {}  # backward pass on a thread of torch's -> name

    def get(self) -> str:
        """Return the name of the running thread or task."""
        task = torch._C._current_graph_task_id()
        if task >= 0 and isinstance(threading.current_thread(), threading._DummyThread):  # a thread of torch
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
        """Name the thread that waits for a backward pass on a thread of torch's; `""` if there are several."""
        inside = {i for i, frame in sys._current_frames().items() if frame.f_code.co_name == "_engine_run_backward"}
        waiting = {name for thread, name in self._last.items() if thread in inside} or set(self._last.values())
        return waiting.pop() if len(waiting) == 1 else ""


class EventBuffer:
    """Store the events that the hooks of one recording log.

    Args:
        max_events: how many events to log at most.
        values: whether events store the values that hooks get.

    Attributes:
        events: the logged events.
        notes: remarks on the recording, as keys.
        running: whether events are logged.
        lock: guards the events, since several threads can run the model.
        names: names of these threads.
        cleanup: removes hooks and restores state, in reverse order, when the recording ends.
        flush: logs events that torch calls no hook for, before the next event.

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
        """Add an event. `value` is what the hook got, `by` the thread or task if it is not the running one."""
        if not self.running:
            return
        with self.lock:
            self.flush()
            if self.full:
                self.note(
                    f"Only the first {self._max_events:,} events were logged. To log more, pass record a larger "
                    "max_events."
                )
                return
            values = None
            if self._values:
                values = summarize_values(value.grad if kind == "post_accumulate_grad" else value)
            index, shapes, by = len(self.events) + 1, describe_shapes(value), by or self.names.get()
            self.events.append(Event(index, kind, name, of, call, find_phase(kind), shapes, hook, depth, values, by))

    @property
    def full(self) -> bool:
        """Whether `max_events` has been reached."""
        return len(self.events) >= self._max_events

    def note(self, text: str) -> None:
        """Add a note, unless it is there."""
        self.notes[text] = None

    def note_new(self, hooks: Hooks, known: set[int], where: str) -> None:
        """Add a note for each hook that was registered inside the block."""
        for key, hook in hooks.items():
            if key not in known and not isinstance(hook, OwnHook):
                self.note(
                    f"The hook {short_name(hook)} was registered {where} inside the block, so it is not logged. "
                    "Register it before the block."
                )
