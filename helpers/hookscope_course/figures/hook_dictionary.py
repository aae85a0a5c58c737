"""Draw the dictionary in which a module stores its forward hooks, at several moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookscope.pictures.colors import follow_page

__all__ = ["Entries", "EntriesDrawing", "draw_entries", "read_entries"]

_ROW, _TOP, _LEFT = 32, 56, 72
_LETTER, _BOLD, _BOX = 8.3, 9.2, 100  # of text, of a title; the least width of a box: four fit into 700 pixels
_MOST = 8  # rows that fit below each other
_PEG, _LINE, _SOFT = map(follow_page, ("hook", "line", "muted"))


@dataclass(frozen=True)
class Entries:
    """The entries of `_forward_hooks` at one moment.

    Attributes:
        title: what had just happened.
        hooks: the name of each hook, by its key.
        handle: the key that a handle stores; None if there is no handle to draw.

    """

    title: str
    hooks: dict[int, str]
    handle: int | None = None


@dataclass(frozen=True)
class EntriesDrawing:
    """A drawing with words, for pages and for readers who cannot see it."""

    svg: str
    alt: str

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self.alt, "text/html": self.svg}


def read_entries(module: nn.Module, handle: RemovableHandle | None = None, title: str = "") -> Entries:
    """Read the forward hooks of a module from its dictionary, and the key from a handle.

    Example:
        >>> relu = nn.ReLU()
        >>> handle = relu.register_forward_hook(print)
        >>> [*read_entries(relu, handle).hooks.values()]
        ['print']

    """
    hooks = {key: getattr(hook, "__name__", type(hook).__name__) for key, hook in module._forward_hooks.items()}
    return Entries(title, hooks, None if handle is None else handle.id)


def draw_entries(states: Sequence[Entries]) -> EntriesDrawing:
    """Draw the dictionary at each of these moments, side by side, with the handle beside the key that it stores.

    If the handle stores a key that is no longer there, its row is dashed.

    Raises:
        ValueError: there is nothing to draw, or there are more than 8 hooks.

    Example:
        >>> relu = nn.ReLU()
        >>> handle = relu.register_forward_hook(print)
        >>> draw_entries([read_entries(relu, handle, "after one run")])
        The dictionary _forward_hooks after one run: 1 entry, and the handle stores its last key.

    """
    rows = [_rows(state) for state in states]
    most = max(map(len, rows), default=0)
    if not states or most > _MOST:
        raise ValueError(
            f"{len(states)} states with up to {most} hooks: draw 1 state or more, and at most {_MOST} hooks"
        )
    longest = max((len(f"{key}: {name}") for each in rows for key, name in each), default=0)
    box = max(_BOX, round(_LETTER * longest) + 26)
    titles = [round(_BOLD * len(state.title)) for state in states]
    column = max(_LEFT + box + 6, 12 + max(titles))  # a title can reach as far as the next one
    wide = column * (len(states) - 1) + _LEFT + max(box + 6, titles[-1] + 14)
    high = _TOP + _ROW * max(most, 1) + 14
    drawn = "".join(_column(state, rows[at], column * at, high, box) for at, state in enumerate(states))
    alt = "The dictionary _forward_hooks " + "; ".join(map(_words, states)) + "."
    svg = (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {wide} {high}" xmlns="http://www.w3.org/2000/svg" '
        f'style="width: 100%; max-width: {round(1.2 * wide)}px; font-family: var(--jp-ui-font-family, sans-serif); '
        f'font-size: 15px; fill: currentColor; color: var(--jp-content-font-color1, currentColor)">{drawn}</svg>'
    )
    return EntriesDrawing(svg, alt)


def _rows(state: Entries) -> list[tuple[int, str]]:
    """The entries, and the one that the handle points at where it is gone."""
    gone = {} if state.handle is None or state.handle in state.hooks else {state.handle: ""}
    return sorted((state.hooks | gone).items())


def _column(state: Entries, rows: list[tuple[int, str]], left: int, high: int, box: int) -> str:
    x = left + _LEFT
    parts = [
        f'<text x="{x}" y="16" font-weight="600">{escape(state.title)}</text>',
        f'<text x="{x}" y="38" style="fill: {_SOFT}; font-size: 13px">_forward_hooks</text>',
        f'<rect x="{x}" y="{_TOP - 6}" width="{box}" height="{high - _TOP}" rx="10" fill="none" stroke="{_LINE}"/>',
    ]
    if not rows:
        parts.append(f'<text x="{x + 12}" y="{_TOP + 18}" style="fill: {_SOFT}">empty</text>')
    for at, (key, name) in enumerate(rows):
        y = _TOP + _ROW * at
        there = key in state.hooks
        edge = f'fill="none" stroke="{_PEG if there else _LINE}"' + ("" if there else ' stroke-dasharray="4 4"')
        parts.append(f'<rect x="{x + 8}" y="{y}" width="{box - 16}" height="26" rx="6" stroke-width="1.6" {edge}/>')
        if there:
            parts.append(f'<text x="{x + 16}" y="{y + 18}">{key}: {escape(name)}</text>')
        if key == state.handle:
            parts.append(
                f'<text x="{left}" y="{y + 18}" style="fill: {_PEG}; font-weight: 600">handle</text>'
                f'<path d="M{left + 58} {y + 13}H{x}" fill="none" style="stroke: {_PEG}" stroke-width="2"/>'
                f'<path d="M{x + 7} {y + 13}l-9 -5v10z" style="fill: {_PEG}"/>'
            )
    return "".join(parts)


def _words(state: Entries) -> str:
    count = len(state.hooks)
    said = f"{state.title}: {count} {'entry' if count == 1 else 'entries'}"
    if state.handle is None:
        return said
    if state.handle not in state.hooks:
        return f"{said}, and the handle stores a key that is no longer there"
    last = "its last key" if state.handle == [*state.hooks][-1] else "one of its keys"
    return f"{said}, and the handle stores {last}"
