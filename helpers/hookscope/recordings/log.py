"""Show recorded events as a list, a table, an image or a tree of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from hookscope.pictures.picture import Picture, Result, Table
from hookscope.recordings.call_tree import CallTree
from hookscope.recordings.event import GIVEN, PHASES, Event, format_values
from hookscope.recordings.timeline import draw

_SHOWN = 200  # events in a table; `EventLog.events` has all of them


class EventLog(Result):
    """Events in the order in which they happened.

    Args:
        title: name of the model, for captions.
        kinds: the kinds of hooks that were logged.
        events: the events. The list can grow.
        notes: remarks, as keys.

    """

    def __init__(self, title: str, kinds: Set[str], events: list[Event], notes: Mapping[str, None]) -> None:
        self._title = title
        self._kinds = kinds
        self._events = events
        self._notes = notes

    @property
    def events(self) -> tuple[Event, ...]:
        """All events in the order in which they happened."""
        return tuple(self._events)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Remarks on the recording, for example hooks that cannot fire, and events that were not logged."""
        return tuple(self._notes)

    def order(self, *kinds: str) -> list[str]:
        """Return the events as short strings, such as `"forward_pre fc1"`.

        The second call of a layer adds `#2`, and your own hooks add their name: `"forward fc1 #2: my_hook"`.

        Args:
            *kinds: return only events of these kinds.

        Raises:
            ValueError: there is no such kind.

        Example:
            >>> import torch
            >>> from hookscope.recordings.record import record
            >>> layer = torch.nn.Linear(4, 2)
            >>> with record(layer) as recording:
            ...     layer(torch.ones(1, 4, requires_grad=True)).sum().backward()
            >>> recording.order("forward_pre", "full_backward")
            ['forward_pre (root)', 'full_backward (root)']

        """
        for kind in kinds:
            if kind not in GIVEN:
                raise ValueError(f"there is no kind {kind!r}. Pass some of {', '.join(GIVEN)}")
        return [event.label for event in self._events if not kinds or event.kind in kinds]

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each event."""
        return _rows(self._events)

    def picture(self) -> Picture:
        """Draw the events from left to right, with one line for each layer or tensor.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: there are no events.

        """
        if not self._events:
            raise ValueError("the recording has no events to draw. Call the model inside the with-block first")
        return draw(self._events, self.caption, _rows(self._events[:_SHOWN]))

    def call_tree(self) -> CallTree:
        """Show which call ran inside which, with the hooks around each `forward()`, then the backward hooks.

        Each thread or asyncio task that ran the model has its own tree.

        Raises:
            ValueError: kinds `forward_pre` and `forward` were not recorded.

        Example:
            >>> import torch
            >>> from hookscope.recordings.record import record
            >>> layer = torch.nn.Linear(4, 2)
            >>> with record(layer) as recording:
            ...     layer(torch.ones(1, 4, requires_grad=True)).sum().backward()
            >>> recording.call_tree()
            forward
            └── (root): Linear.__call__()
                ├── [1] forward_pre  args ((1, 4),)
                ├── forward()
                └── [2] forward  output (1, 2)
            backward
            └── (root): Linear
                ├── [3] full_backward_pre  grad_output ((1, 2),)
                └── [4] full_backward  grad_input ((1, 4),)

        """
        if not {"forward_pre", "forward"} <= self._kinds:
            raise ValueError(
                "a call tree needs kinds 'forward_pre' and 'forward', but only "
                f"{', '.join(sorted(self._kinds))} were recorded. Pass both to record(kinds=...)"
            )
        return CallTree(self._events)

    def _is_drawn(self) -> bool:
        return False  # a notebook shows the table; `picture()` draws the timeline

    @property
    def caption(self) -> str:
        """The model and the number of events in each phase."""
        count = Counter[str](event.phase for event in self._events)
        total = len(self._events)
        parts = ", ".join(f"{count[phase]} {phase}" for phase in PHASES if count[phase])
        return f"{self._title}: {total} event{'' if total == 1 else 's'}{f' ({parts})' if parts else ''}"

    def table(self) -> Table:
        """Return a table of the first 200 events."""
        cut = f"; the first {_SHOWN} of them" if len(self._events) > _SHOWN else ""
        return Table(_rows(self._events[:_SHOWN]), self.caption + cut)


def _rows(events: Sequence[Event]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "#": event.index,
            "phase": event.phase,
            "kind": event.kind,
            "layer": event.name or "(root)",
            "type": event.type,
            "call": event.call,
            "shapes": event.given,
            "hook": event.hook,
        }
        for event in events
    ]
    if not any(event.hook for event in events):
        for row in rows:
            del row["hook"]
    if len({event.by for event in events}) > 1:
        for row, event in zip(rows, events, strict=True):
            row["thread or task"] = event.by
    if any(event.values is not None for event in events):
        for row, event in zip(rows, events, strict=True):
            row["values"] = format_values(event.values) if event.values is not None else ""
    return rows
