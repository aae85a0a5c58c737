"""Step through a recording: which hook fires, inside which calls, and what it gets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, NamedTuple

import traitlets

from hookscope.layers.find import LayerNotFoundError
from hookscope.pictures.picture import Rows
from hookscope.recordings.call_tree import TreeLine, add_backward_hooks, add_forward_calls, group_by_thread
from hookscope.recordings.event import GIVEN, PHASES, Event, format_values
from hookscope.recordings.record import Recording
from hookscope.recordings.timeline import draw
from hookscope.widgets.base import HookWidget, assets

__all__ = ["OrderPlayer", "describe_event", "draw_events", "select_events"]

_MOST_DRAWN = 300  # most events in the image
_MOST_LISTED = 60  # most events in the text


class _HookKind(NamedTuple):
    """A kind of hook: its name, what it is registered on, what its calls are counted in, and how to register it."""

    name: str
    owner: str
    unit: str
    signature: str


_KINDS = {
    "forward_pre": _HookKind(
        "forward pre-hook", "layer", "call", "module.register_forward_pre_hook(hook) → hook(module, args)"
    ),
    "forward": _HookKind(
        "forward hook", "layer", "call", "module.register_forward_hook(hook) → hook(module, args, output)"
    ),
    "full_backward_pre": _HookKind(
        "full backward pre-hook",
        "layer",
        "call",
        "module.register_full_backward_pre_hook(hook) → hook(module, grad_output)",
    ),
    "full_backward": _HookKind(
        "full backward hook",
        "layer",
        "call",
        "module.register_full_backward_hook(hook) → hook(module, grad_input, grad_output)",
    ),
    "backward": _HookKind(
        "legacy backward hook",
        "layer",
        "call",
        "module.register_backward_hook(hook) → hook(module, grad_input, grad_output); deprecated",
    ),
    "tensor": _HookKind("tensor hook", "tensor", "time", "tensor.register_hook(hook) → hook(grad)"),
    "post_accumulate_grad": _HookKind(
        "post-accumulate-grad hook", "tensor", "time", "tensor.register_post_accumulate_grad_hook(hook) → hook(param)"
    ),
    "retain_grad": _HookKind(
        "retain_grad", "tensor", "time", "tensor.retain_grad(), which fills .grad and calls no hook"
    ),
    "multi_grad": _HookKind(
        "multi-grad hook", "tensors", "time", "torch.autograd.graph.register_multi_grad_hook(tensors, hook)"
    ),
    "node_pre": _HookKind(
        "node pre-hook", "tensor", "time", "tensor.grad_fn.register_prehook(hook) → hook(grad_outputs)"
    ),
    "node_post": _HookKind(
        "node post-hook", "tensor", "time", "tensor.grad_fn.register_hook(hook) → hook(grad_inputs, grad_outputs)"
    ),
    "step_pre": _HookKind(
        "step pre-hook",
        "optimizer",
        "step",
        "optimizer.register_step_pre_hook(hook) → hook(optimizer, args, kwargs)",
    ),
    "step_post": _HookKind(
        "step post-hook",
        "optimizer",
        "step",
        "optimizer.register_step_post_hook(hook) → hook(optimizer, args, kwargs)",
    ),
}


class OrderPlayer(HookWidget):
    """Step through a recording, with the call tree on the left and the current hook on the right.

    Use the buttons, the slider, or the keys: arrows, Home, End, and space to play. Limits: docs/limits/order_player.md.

    Args:
        recording: the result of `record(...)`, after its block.
        kinds: only events of these kinds, for example `"forward"` or `["full_backward_pre", "full_backward"]`.
        layers: only events of these layers or tensors: names, or globs such as `"block.*"`. The root is `"(root)"`.

    Attributes:
        index: the current event, from 0; -1 before the first.
        events: the events, in the order in which they fired.

    Raises:
        TypeError, ValueError, LayerNotFoundError: see `select_events`.
        IndexError: `index` is out of range.

    Example:
        >>> import torch, hookscope
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> with hookscope.record(model) as recording:
        ...     loss = model(torch.ones(1, 4)).sum()
        >>> player = OrderPlayer(recording)
        >>> player.index = 1
        >>> player.event.label
        'forward_pre 0'

    """

    _esm, _css = assets("player")

    index = traitlets.Int(-1).tag(sync=True)
    _events: Any = traitlets.List().tag(sync=True)  # one list of texts per event, see _list_fields
    _lines: Any = traitlets.List().tag(sync=True)  # of the tree: depth, text, index of the event or -1, phase

    def __init__(
        self,
        recording: Recording,
        kinds: str | Iterable[str] | None = None,
        layers: str | Iterable[str] | None = None,
    ) -> None:
        self.events: tuple[Event, ...] = select_events(recording, kinds, layers)
        png, alt = draw_events(self.events)
        super().__init__(
            png=png,
            alt=alt,
            _events=[_list_fields(event, _has_threads(self.events)) for event in self.events],
            _lines=_list_tree(recording, self.events),
        )

    @property
    def event(self) -> Event | None:
        """The current event; None before the first."""
        return self.events[self.index] if self.index >= 0 else None

    @traitlets.validate("index")
    def _check_index(self, proposal: Mapping[str, Any]) -> int:
        index, size = int(proposal["value"]), len(self.events)
        if not -1 <= index < size:
            raise IndexError(f"no event {index}: set index from -1 (before the first event) to {size - 1} (the last)")
        return index

    def numbers(self) -> Rows:
        """Describe each event in a row, in the order in which they fired. Recorded values are included."""
        rows: list[dict[str, object]] = [
            {"event": place, "hook": describe_event(event, _has_threads(self.events))}
            for place, event in enumerate(self.events[:_MOST_LISTED], 1)
        ]
        if any(event.values is not None for event in self.events):
            for row, event in zip(rows, self.events, strict=False):
                row["values"] = _format_event_values(event)
        return rows

    def summary(self) -> str:
        """Describe the events, and mark the current one."""
        size = len(self.events)
        where = f"event {self.index + 1} of {size}" if self.index >= 0 else f"before the first of {size} events"
        lines = [f"OrderPlayer: {where} ({_count_phases(self.events)})"]
        for place, event in enumerate(self.events[:_MOST_LISTED]):
            numbers = f" = {values}" if (values := _format_event_values(event)) else ""
            lit = ">" if place == self.index else " "
            lines.append(
                f"{lit} {place + 1:>{len(str(size))}}  {describe_event(event, _has_threads(self.events))}{numbers}"
            )
        if size > _MOST_LISTED:
            lines.append(f"  and {size - _MOST_LISTED} more")
        return "\n".join(lines)


def select_events(
    recording: Recording, kinds: str | Iterable[str] | None = None, layers: str | Iterable[str] | None = None
) -> tuple[Event, ...]:
    """Return the events of some kinds and layers.

    Args:
        recording: the result of `record(...)`.
        kinds: kinds of events; None for all.
        layers: names of layers or tensors, or globs; None for all.

    Raises:
        TypeError: `recording` is not a recording.
        ValueError: a kind does not exist, or no events are left.
        LayerNotFoundError: a layer has no events.

    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"recording must be a Recording, not {type(recording).__name__}. Make one with "
            "`with hookscope.record(model) as recording: ...`"
        )
    events = recording.events
    if not events:
        raise ValueError("the recording has no events. Run the model inside its with block")
    if kinds is not None:
        wanted = [kinds] if isinstance(kinds, str) else list(kinds)
        for kind in wanted:
            if kind not in GIVEN:
                raise ValueError(f"no kind {kind!r}. The kinds are {', '.join(GIVEN)}")
        recorded = dict.fromkeys(event.kind for event in events)
        events = tuple(event for event in events if event.kind in wanted)
        if not events:
            raise ValueError(f"the recording has no events of kind {', '.join(wanted)}. It has {', '.join(recorded)}")
    if layers is not None:
        names = dict.fromkeys(event.name or "(root)" for event in events)
        found: set[str] = set()
        for glob in [layers] if isinstance(layers, str) else layers:
            if not (fits := [name for name in names if name == (glob or "(root)") or fnmatchcase(name, glob)]):
                near = get_close_matches(str(glob), names, 3, cutoff=0.5)
                hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"The layers are {', '.join(names)}"
                raise LayerNotFoundError(f"no event of layer {glob!r}. {hint}", str(glob), near)
            found.update(fits)
        events = tuple(event for event in events if (event.name or "(root)") in found)
        if not events:
            raise ValueError("layers is empty. Name at least one layer, or leave it out")
    return events


def _has_threads(events: Iterable[Event]) -> bool:
    """Tell whether several threads or asyncio tasks ran these hooks."""
    return len({event.by for event in events}) > 1


def describe_event(event: Event, by: bool = False) -> str:
    """Describe which hook fired and what it got; with `by`, also in which thread.

    Example:
        >>> describe_event(Event(2, "forward", "conv1", "Conv2d", 1, "forward", (1, 8, 28, 28)))
        "forward hook of layer 'conv1', call 1: output (1, 8, 28, 28)"

    """
    kind = _KINDS[event.kind]
    whose = f" {event.hook!r}" if event.hook else ""
    name = repr(event.name) if event.name or kind.owner != "layer" else "(root)"
    on = "parameter" if event.type == "Parameter" and kind.owner == "tensor" else kind.owner
    turn = "" if kind.unit == "time" and event.call == 1 else f", {kind.unit} {event.call}"
    where = f", in {event.by}" if by else ""
    return f"{kind.name}{whose} of {on} {name}{turn}{where}: {event.given}"


def draw_events(events: Sequence[Event]) -> tuple[bytes, str]:
    """Draw the timeline of some events; return PNG and alt text. Without matplotlib, the PNG is empty."""
    shown = [replace(event, index=place) for place, event in enumerate(events[:_MOST_DRAWN], 1)]
    cut = f" The first {_MOST_DRAWN} of {len(events)} events." if len(events) > _MOST_DRAWN else ""
    try:
        picture = draw(shown, "", ())
    except ModuleNotFoundError:
        return b"", f"The order of {len(events)} events, {_count_phases(events)}."
    return picture.png, picture.alt + cut


def _count_phases(events: Sequence[Event]) -> str:
    count = Counter(event.phase for event in events)
    return ", ".join(f"{count[phase]} {phase}" for phase in PHASES if count[phase])


def _format_event_values(event: Event) -> str:
    return "" if event.values is None else format_values(event.values).replace("\n", " ")


def _list_fields(event: Event, by: bool) -> list[str]:
    """List the texts that the page shows for an event: the sentence, and its facts one by one."""
    kind = _KINDS[event.kind]
    of = f"{event.name or '(root)'} ({event.type}), {kind.unit} {event.call}{f', in {event.by}' if by else ''}"
    given = [GIVEN[event.kind], event.given.partition(" ")[2]]
    return [
        event.phase,
        describe_event(event, by),
        kind.name,
        of,
        event.hook or "hookscope's own hook",
        *given,
        _format_event_values(event),
        kind.signature,
    ]


def _list_tree(recording: Recording, events: Sequence[Event]) -> list[tuple[int, str, int, str]]:
    """Return the lines of the call tree, thread by thread. Branches without chosen events are left out."""
    try:
        recording.call_tree()
    except ValueError:  # the recording does not show which calls are nested
        nested = False
    else:
        nested = True
    returned = {(event.name, event.call) for event in recording.events if event.kind == "forward" and not event.hook}
    places = {event.index: place for place, event in enumerate(events)}
    lines: list[tuple[int, str, int, str]] = []
    threads = group_by_thread(recording.events)
    phases = [(by, *each) for by, own in threads.items() for each in _group_phases(own)]
    for by, phase, group in phases:
        top = TreeLine(f"{phase}, in {by}" if len(threads) > 1 else phase)
        if phase != "forward":
            add_backward_hooks(top, group)
        elif nested:
            add_forward_calls(top, group, returned)
        else:
            top.children += [TreeLine(f"[{event.index}] {event.label}  {event.given}") for event in group]
        lines += [(depth, text.replace("\n", " "), place, phase) for depth, text, place in _flatten(top, 0, places)]
    return lines


def _group_phases(events: Iterable[Event]) -> list[tuple[str, list[Event]]]:
    return [(phase, list(group)) for phase, group in groupby(events, key=lambda event: event.phase)]


def _flatten(branch: TreeLine, depth: int, places: Mapping[int, int]) -> list[tuple[int, str, int]]:
    """Return a branch and its chosen events, as depth, text, and index of the event or -1."""
    lines, found = [(depth, branch.text, -1)], False
    for twig in branch.children:
        if twig.children:
            more = _flatten(twig, depth + 1, places)
            found = found or bool(more)
            lines += more
        elif (event := re.fullmatch(r"\[(\d+)\] (.*)", twig.text, re.DOTALL)) is None:  # forward() of a leaf
            lines.append((depth + 1, twig.text, -1))
        elif (place := places.get(int(event[1]))) is not None:
            lines.append((depth + 1, event[2], place))
            found = True
    return lines if found else []
