"""Show recorded events as a tree of the calls that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hookscope.pictures.words import html_of, visible
from hookscope.recordings.event import Event

_SHOWN = 1000  # lines


@dataclass
class _TreeLine:
    """A line of the tree and its children."""

    text: str
    children: list[_TreeLine] = field(default_factory=list)

    def lines(self, indent: str = "") -> list[str]:
        """Return the lines of the children, indented as a tree."""
        lines = []
        for branch in self.children:
            last = branch is self.children[-1]
            lines.append(f"{indent}{'└── ' if last else '├── '}{branch.text}")
            lines += branch.lines(indent + ("    " if last else "│   "))
        return lines


class CallTree:
    """The calls of a recording as a tree in text and HTML, one for each thread or task.

    Args:
        events: the events, including kinds `forward_pre` and `forward`.

    """

    def __init__(self, events: Sequence[Event]) -> None:
        returned = {(event.name, event.call) for event in events if event.kind == "forward" and not event.hook}
        trees = [_TreeLine(by, _phases(own, returned)) for by, own in _group_by_thread(events).items()]
        tops = trees[0].children if len(trees) == 1 else trees
        lines = [line for top in tops for line in (top.text, *top.lines())]
        if (more := len(lines) - _SHOWN) > 0:
            lines[_SHOWN:] = [
                f"… and {more:,} more lines. All events are in .events; to see the tree, record fewer layers"
            ]
        self._text = visible("\n".join(lines)) or "(no events)"

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self._text, "text/html": f"<pre>{html_of(self._text)}</pre>"}


def _group_by_thread(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Return the events of each thread or asyncio task, because calls nest only within one of them."""
    threads: dict[str, list[Event]] = {}
    for event in events:
        threads.setdefault(event.by, []).append(event)
    return threads


def _phases(events: Sequence[Event], returned: set[tuple[str, int]]) -> list[_TreeLine]:
    """Return the trees of one thread, one for each phase."""
    tops = []
    for phase, group in groupby(events, key=lambda event: event.phase):
        tops.append(top := _TreeLine(phase))
        if phase == "forward":
            _add_forward_calls(top, group, returned)
        else:
            _add_backward_hooks(top, list(group))
    return tops


def _add_forward_calls(top: _TreeLine, events: Iterable[Event], returned: set[tuple[str, int]]) -> None:
    """Add the calls of one forward phase below `top`."""
    calls: list[_OpenCall] = []  # open, outermost first
    for event in events:
        key = (event.depth, event.name, event.call)
        while calls and calls[-1].key != key and calls[-1].key[0] >= event.depth:
            calls.pop()
        if not calls or calls[-1].key != key:
            again = f" #{event.call}" if event.call > 1 else ""
            line = _TreeLine(f"{event.name or '(root)'}{again}: {event.type}.__call__()")
            (calls[-1].inside if calls else top).children.append(line)
            calls.append(_OpenCall(key, line, line))
        call = calls[-1]
        whose = f": {event.hook}" if event.hook else ""
        call.line.children.append(_TreeLine(f"[{event.index}] {event.kind}{whose}  {event.given}"))
        if event.kind == "forward_pre" and not event.hook:  # hookscope's is the last pre-hook
            call.inside = _TreeLine("forward()" if key[1:] in returned else "forward() did not return")
            call.line.children.append(call.inside)


@dataclass
class _OpenCall:
    """A call that has not returned: depth, name and number, its line, and the line for the calls inside it.

    The two lines are the same if `forward()` began in an earlier phase.
    """

    key: tuple[int, str, int]
    line: _TreeLine
    inside: _TreeLine


def _add_backward_hooks(top: _TreeLine, events: Sequence[Event]) -> None:
    """Add the hooks of one backward phase below `top`, each layer inside the layer whose hooks enclose it."""
    spans: dict[tuple[str, int, int], list[int]] = {}  # layer, call, pass -> indices of its first and last hook
    passes: Counter[tuple[str, int]] = Counter()
    closed: set[tuple[str, int, int]] = set()
    keys: list[tuple[str, int, int] | None] = []
    for place, event in enumerate(events):
        if not event.kind.startswith("full_backward"):
            keys.append(None)
            continue
        key = (event.name, event.call, passes[event.name, event.call])
        if event.kind == "full_backward_pre" and key in closed:  # a second backward pass over the same graph
            passes[event.name, event.call] += 1
            key = (event.name, event.call, passes[event.name, event.call])
        elif event.kind == "full_backward":
            closed.add(key)
        spans.setdefault(key, [place, place])[1] = place
        keys.append(key)
    # Innermost last: the layer, the index of its last hook, its line.
    around: list[tuple[object, int, _TreeLine]] = [(None, len(events), top)]
    for place, (event, of) in enumerate(zip(events, keys, strict=True)):
        while around[-1][1] < place:
            around.pop()
        if of is not None and spans[of][0] == place:
            again = f" #{event.call}" if event.call > 1 else ""
            layer = _TreeLine(f"{event.name or '(root)'}{again}: {event.type}")
            around[-1][2].children.append(layer)
            around.append((of, min(spans[of][1], around[-1][1]), layer))
        whose = f": {event.hook}" if event.hook else ""
        # If two branches of a model interleave, the line of a hook also names its layer.
        what = f"{event.kind}{whose}" if of is not None and of == around[-1][0] else event.label
        around[-1][2].children.append(_TreeLine(f"[{event.index}] {what}  {event.given}"))
