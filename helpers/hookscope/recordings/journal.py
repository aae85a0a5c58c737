"""Keep what was logged, and everything that has to be undone when the log ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hookscope.recordings.event import Event, phase_of, shapes_of, values_of
from hookscope.recordings.tap import Hooks, Point, name_of

__all__ = ["Journal", "Undoing"]


class Undoing:
    """What there is to undo, noted before it is done: an interrupt may come in between, and lose a handle."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def add(self, step: Callable[..., None], *given: Any) -> None:
        """Note a step; it may run more than once, and where there is nothing to undo."""
        self._steps.append(partial(step, *given))

    def close(self) -> None:
        """Undo, last first; after an interrupt, call it again. What goes wrong is raised at the end."""
        errors = []
        while self._steps:
            try:
                self._steps[-1]()
            except Exception as error:
                errors.append(error)
            self._steps.pop()
        if errors:
            raise errors[0]


class Journal:
    """Where the hooks of one recording log that they fire, until it is closed.

    Args:
        max_events: how many events to log at most.
        values: whether events keep the numbers that hooks were given.

    Attributes:
        events: what was logged.
        notes: what else there is to know, as keys.
        running: whether it is open.
        cleanup: takes off and puts back, last first, when the recording is over.
        settle: logs what happened without a hook, before anything else is logged; does nothing at first.

    """

    def __init__(self, max_events: int, values: bool) -> None:
        self.events: list[Event] = []
        self.notes: dict[str, None] = {}  # an ordered set
        self.running = False
        self.cleanup = Undoing()
        self.settle: Callable[[], None] = lambda: None
        self._max_events = max_events
        self._values = values

    def log(self, kind: str, name: str, of: str, call: int, value: Any, hook: str = "", depth: int = 0) -> None:
        """Add an event; `value` is what the hook was given."""
        if not self.running:
            return
        self.settle()
        if len(self.events) == self._max_events:
            self.note(f"Only the first {self._max_events} events were logged. A larger max_events= logs more.")
            return
        values = None
        if self._values:
            values = values_of(value.grad if kind == "post_accumulate_grad" else value)
        index = len(self.events) + 1
        event = Event(index, kind, name, of, call, phase_of(kind), shapes_of(value), hook, depth, values)
        self.events.append(event)

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
            if key not in known and not isinstance(hook, Point):
                self.note(f"The hook {name_of(hook)} was registered {where} inside the block, so it is not logged.")
