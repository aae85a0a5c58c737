"""Keep recorded events, and show them as a list, a table, a tree of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import groupby
from typing import Any, Literal

import torch

from hookscope._timeline import draw
from hookscope.picture import Picture, Table

Shapes = tuple["Shapes", ...] | dict[str, "Shapes"] | str | int | None

_SHOWN = 200  # events in a table; `EventLog.events` has all of them
_DEEP = 8  # containers nested deeper are named, not opened: one may contain itself
_GIVEN = {
    "forward_pre": "args",
    "forward": "output",
    "full_backward_pre": "grad_output",
    "full_backward": "grad_input",
    "backward": "grad_input",
    "tensor": "grad",
    "post_accumulate_grad": "param",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One hook that fired.

    Attributes:
        index: place in the recording, from 1.
        kind: one of `KINDS`, or `"backward"` for a legacy hook that was already on the model.
        name: dotted name of the layer (`""` is the root), or the name of the tensor.
        type: class of the module or tensor.
        call: for a layer the number of its call within the recording, from 1; a backward event has the
            number of the forward call that it belongs to. For a tensor how often its hook has fired.
        phase: `"forward"` or `"backward"`.
        shapes: what the hook was given, every tensor replaced by its shape, `None` kept, anything else by
            the name of its type: args (with kwargs, if there are any, as a dict at the end) for
            `forward_pre`, output for `forward`, grad_output for `full_backward_pre`, grad_input for
            `full_backward`, the gradient or the parameter for the hooks of tensors.
        hook: `""` for hookscope's own hook, else the name of the learner's callable.
        depth: how many calls of recorded layers were open around this one; 0 in the backward phase.

    """

    index: int
    kind: str
    name: str
    type: str
    call: int
    phase: Literal["forward", "backward"]
    shapes: Shapes
    hook: str = ""
    depth: int = 0

    @property
    def label(self) -> str:
        """The event in short: kind, name, `#call` from the second call on, the learner's callable."""
        label = f"{self.kind} {self.name or '(root)'}{f' #{self.call}' if self.call > 1 else ''}"
        return f"{label}: {self.hook}" if self.hook else label

    @property
    def given(self) -> str:
        """What the hook was given, in words and shapes: `"args ((2, 4),)"`."""
        return f"{_GIVEN[self.kind]} {self.shapes}"


def shapes_of(value: object, depth: int = 0) -> Shapes:
    """Describe a value by the shapes of the tensors in it.

    Example:
        >>> shapes_of((torch.ones(2, 4), None, {"mask": torch.ones(4)}, 3))
        ((2, 4), None, {'mask': (4,)}, 'int')

    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor) and not (value.is_nested and value.layout == torch.strided):
        # The ragged side of a nested tensor is a symbol, not an int.
        return tuple(side if type(side) is int else str(side) for side in value.shape)
    if isinstance(value, Mapping) and depth < _DEEP:
        return {str(key): shapes_of(item, depth + 1) for key, item in value.items()}
    if isinstance(value, tuple | list) and depth < _DEEP:
        return tuple(shapes_of(item, depth + 1) for item in value)
    return "nested tensor" if isinstance(value, torch.Tensor) else type(value).__name__


class EventLog:
    """Events in the order in which they happened, and the ways to show them.

    Args:
        title: what was recorded, for captions.
        kinds: the kinds of hooks that were logged.
        events: the events; more may come.
        notes: what else there is to know, as keys.

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
    def notes(self) -> tuple[str, ...]:
        """What else there is to know: hook points that cannot fire or fire early, events left out."""
        return tuple(self._notes)

    def order(self, *kinds: str) -> list[str]:
        """List the events in short, as `"forward_pre fc1"`.

        A call after the first adds `#2`, a learner's own hook its name: `"forward fc1 #2: my_hook"`.

        Args:
            *kinds: keep events of these kinds only.

        Raises:
            ValueError: no such kind.

        Example:
            >>> from hookscope.record import record
            >>> layer = torch.nn.Linear(4, 2)
            >>> with record(layer) as recording:
            ...     layer(torch.ones(1, 4, requires_grad=True)).sum().backward()
            >>> recording.order("forward_pre", "full_backward")
            ['forward_pre (root)', 'full_backward (root)']

        """
        for kind in kinds:
            if kind not in _GIVEN:
                raise ValueError(f"no kind {kind!r}; kinds are {', '.join(_GIVEN)}")
        return [event.label for event in self._events if not kinds or event.kind in kinds]

    def compare(self, guess: Sequence[str], *kinds: str) -> Table:
        """Put a guessed order beside the recorded one and mark where they differ.

        Args:
            guess: strings as `order` returns them.
            *kinds: compare with the events of these kinds only.

        Raises:
            TypeError: `guess` is one string, not a list of them.
            ValueError: no such kind.

        Example:
            >>> from hookscope.record import record
            >>> layer = torch.nn.Linear(4, 2)
            >>> with record(layer) as recording:
            ...     layer(torch.ones(1, 4, requires_grad=True)).sum().backward()
            >>> recording.compare(["full_backward (root)"], "full_backward_pre", "full_backward")
            The first difference is at place 1 of 2
            #  guess                 recorded
            -  --------------------  ------------------------  ----------------
            1  full_backward (root)  full_backward_pre (root)  first difference
            2                        full_backward (root)      differs

        """
        recorded = self.order(*kinds)
        if isinstance(guess, str):
            raise TypeError(f"guess must be a list of strings such as {recorded[:2]}, not one string")
        size = max(len(guess), len(recorded))
        pairs = [
            (" ".join(guess[i].split()) if i < len(guess) else "", recorded[i] if i < len(recorded) else "")
            for i in range(size)
        ]
        wrong = [i for i, (left, right) in enumerate(pairs) if left != right]
        marks = dict.fromkeys(wrong, "differs") | dict.fromkeys(wrong[:1], "first difference")
        if wrong:
            caption = f"The first difference is at place {wrong[0] + 1} of {size}"
        else:
            caption = f"The guess is right in all {size} places"
        rows = [
            {"#": i + 1, "guess": left, "recorded": right, "": marks.get(i, "same")}
            for i, (left, right) in enumerate(pairs)
        ]
        return Table(rows, caption)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the events as plain dicts that `json.dumps` takes; tuples in `shapes` become lists."""
        return [{**asdict(event), "shapes": _as_json(event.shapes)} for event in self._events]

    def timeline(self) -> Picture:
        """Draw the events from left to right, one line per layer or tensor. Needs matplotlib.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: there are no events.

        """
        if not self._events:
            raise ValueError("there are no events to draw")
        return draw(self._events, self._caption(), _rows(self._events[:_SHOWN]))

    def call_tree(self) -> CallTree:
        """Show the forward calls nested as they ran with the hooks around each, then the backward hooks.

        `forward()` in the tree is the layer's own method; the hooks are called around it, by `__call__`.

        Raises:
            ValueError: kinds `forward_pre` and `forward` were not recorded: it is not known what nested.

        Example:
            >>> from hookscope.record import record
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
            raise ValueError("a call tree needs kinds 'forward_pre' and 'forward' to be recorded")
        return CallTree(self._events)

    def _caption(self) -> str:
        count = Counter[str](event.phase for event in self._events)
        total = len(self._events)
        parts = ", ".join(f"{count[phase]} {phase}" for phase in ("forward", "backward") if count[phase])
        return f"{self._title}: {total} event{'' if total == 1 else 's'}{f' ({parts})' if parts else ''}"

    def _table(self) -> Table:
        cut = f"; the first {_SHOWN} of them" if len(self._events) > _SHOWN else ""
        return Table(_rows(self._events[:_SHOWN]), self._caption() + cut)

    def __repr__(self) -> str:
        return "\n".join([repr(self._table()), *(f"note: {note}" for note in self._notes)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        notes = "".join(f"\n<p>note: {escape(note)}</p>" for note in self._notes)
        return {"text/plain": repr(self), "text/html": self._table().to_html() + notes}


def _rows(events: Sequence[Event]) -> list[dict[str, object]]:
    return [
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


def _as_json(shapes: Shapes) -> Any:
    if isinstance(shapes, tuple):
        return [_as_json(item) for item in shapes]
    if isinstance(shapes, dict):
        return {key: _as_json(item) for key, item in shapes.items()}
    return shapes


@dataclass
class _Branch:
    """A line of the tree and what hangs below it."""

    text: str
    below: list[_Branch] = field(default_factory=list)

    def lines(self, indent: str = "") -> list[str]:
        lines = []
        for branch in self.below:
            last = branch is self.below[-1]
            lines.append(f"{indent}{'└── ' if last else '├── '}{branch.text}")
            lines += branch.lines(indent + ("    " if last else "│   "))
        return lines


class CallTree:
    """The calls of a recording as a tree, in text and HTML.

    Args:
        events: what happened, with the kinds `forward_pre` and `forward`.

    """

    def __init__(self, events: Sequence[Event]) -> None:
        returned = {(event.name, event.call) for event in events if event.kind == "forward" and not event.hook}
        lines: list[str] = []
        for phase, group in groupby(events, key=lambda event: event.phase):
            top = _Branch(phase)
            if phase == "forward":
                _grow(top, group, returned)
            else:
                _grow_backward(top, list(group))
            lines += [top.text, *top.lines()]
        self._text = "\n".join(lines) or "(no events)"

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self._text, "text/html": f"<pre>{escape(self._text)}</pre>"}


def _grow(top: _Branch, events: Iterable[Event], returned: set[tuple[str, int]]) -> None:
    """Hang the calls of one forward phase below `top`."""
    calls: list[tuple[int, tuple[str, int], _Branch, _Branch]] = []  # open: depth, key, __call__, forward()
    for event in events:
        key = (event.name, event.call)
        while calls and calls[-1][:2] != (event.depth, key) and calls[-1][0] >= event.depth:
            calls.pop()
        if not calls or calls[-1][:2] != (event.depth, key):
            again = f" #{event.call}" if event.call > 1 else ""
            call = _Branch(f"{event.name or '(root)'}{again}: {event.type}.__call__()")
            (calls[-1][3] if calls else top).below.append(call)
            forward = _Branch("forward()" if key in returned else "forward() did not return")
            calls.append((event.depth, key, call, forward))
        _, _, call, forward = calls[-1]
        whose = f": {event.hook}" if event.hook else ""
        call.below.append(_Branch(f"[{event.index}] {event.kind}{whose}  {event.given}"))
        if event.kind == "forward_pre" and not event.hook:  # hookscope's own is the last pre-hook
            call.below.append(forward)


def _grow_backward(top: _Branch, events: Sequence[Event]) -> None:
    """Hang the hooks of one backward phase below `top`, each layer inside the one whose hooks enclose its own."""
    spans: dict[tuple[str, int, int], list[int]] = {}  # layer, call, pass -> places of its first and last hook
    passes: Counter[tuple[str, int]] = Counter()
    closed: set[tuple[str, int, int]] = set()
    keys: list[tuple[str, int, int] | None] = []
    for place, event in enumerate(events):
        if not event.kind.startswith("full_backward"):
            keys.append(None)
            continue
        key = (event.name, event.call, passes[event.name, event.call])
        if event.kind == "full_backward_pre" and key in closed:  # the same graph, run backward once more
            passes[event.name, event.call] += 1
            key = (event.name, event.call, passes[event.name, event.call])
        elif event.kind == "full_backward":
            closed.add(key)
        spans.setdefault(key, [place, place])[1] = place
        keys.append(key)
    # Innermost last: the layer, the place of its last hook, its line of the tree.
    around: list[tuple[object, int, _Branch]] = [(None, len(events), top)]
    for place, (event, of) in enumerate(zip(events, keys, strict=True)):
        while around[-1][1] < place:
            around.pop()
        if of is not None and spans[of][0] == place:
            again = f" #{event.call}" if event.call > 1 else ""
            layer = _Branch(f"{event.name or '(root)'}{again}: {event.type}")
            around[-1][2].below.append(layer)
            around.append((of, min(spans[of][1], around[-1][1]), layer))
        whose = f": {event.hook}" if event.hook else ""
        # Two branches of a model may interleave; then a hook says itself which layer it belongs to.
        what = f"{event.kind}{whose}" if of is not None and of == around[-1][0] else event.label
        around[-1][2].below.append(_Branch(f"[{event.index}] {what}  {event.given}"))
