"""What each figure says of itself for the tests: how it is made, what a reader does with it, what it refuses and hides.

A figure has two dicts in its `promises.py`: `PROMISES` for Python, `CONTROLS` for the page. Several rows are several
ways to make it, `"TwoRuns"` and `"TwoRuns, guess"`. No learner needs these files, so the wheel leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hookscope.widgets.base import HookWidget

__all__ = ["Controls", "Layout", "Promises", "list_boxes"]

Layout = tuple[tuple[float, float], list[tuple[float, ...]]]
"""Width and height of a drawing; and of each box in it, its center, its width and its height."""


@dataclass(frozen=True)
class Promises:
    """What a figure promises in Python.

    Attributes:
        make: makes it, of what `model` returns.
        sets: what a reader sets, trait by trait, from Python and from the page.
        refused: a trait, a value that it does not take, and the key words of the reason.
        calls: what else is refused: something done with the figure, and the key words.
        model: makes the model that the figure looks at.
        secret: what no reader may find in the words of a figure before the guess, as patterns.
        reveal: sets what shows it.
        final: a trait, another guess, and the key words: after `reveal`, guesses stay.
        hidden: an attribute that raises an error until then.
        together: whether all of `sets` may come in one message, as a kernel that was busy gets them.
        follows: whether its words, its numbers or its picture follow what is set.
        has_picture: whether a picture stands in for it.
        is_random: whether it draws random numbers that are the reader's.
        boxes: by layout, its width and its height, and what must be within and apart.

    """

    make: Callable[[Any], HookWidget]
    sets: dict[str, Any]
    refused: tuple[tuple[str, Any, str], ...] = ()
    calls: tuple[tuple[Callable[[Any], object], str], ...] = ()
    model: Callable[[], Any] = lambda: None
    secret: Callable[[Any], tuple[str, ...]] | None = None
    reveal: dict[str, Any] | None = None
    final: tuple[tuple[str, Any, str], ...] = ()
    hidden: str = ""
    together: bool = True
    follows: bool = True
    has_picture: bool = True
    is_random: bool = False
    boxes: Callable[[bool], Layout] | None = None


@dataclass(frozen=True)
class Controls:
    """What a reader does with a figure on a page.

    Attributes:
        label: what its region says of itself.
        code: makes it; the last line returns it.
        clicks: what a reader clicks, one after the other, as Playwright finds it.
        reads: what is printed to see what Python knows.
        clicked: what that is after the clicks.
        focus: where the keyboard begins.
        keys: what is pressed then.
        pressed: what Python knows after the keys.
        pane: whether it fits into what JupyterLab shows at 1280×720, so that nobody has to scroll in it.
        touch: whether its words are drawn in a scene, where they must not touch.
        alone: whether it works without a kernel.

    """

    label: str
    code: str
    clicks: tuple[str, ...]
    reads: str
    clicked: str
    focus: str
    keys: tuple[str, ...]
    pressed: str
    pane: bool = True
    touch: bool = False
    alone: bool = True


def list_boxes(layout: Mapping[str, Any]) -> Layout:
    """Return the boxes of most layouts: a dict by name, or a list with a name and a direction in front."""
    if isinstance(boxes := layout["boxes"], dict):
        return layout["size"], [box[:4] for box in boxes.values()]
    return layout["size"], [box[2:6] for box in boxes]
