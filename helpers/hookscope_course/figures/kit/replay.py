"""How the site replays a figure without a kernel: which choices of a reader are recorded, and which change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["ALL", "Choice", "Replay"]

Choice = dict[str, Any]
"""Values of traits that a reader sets together."""
ALL = "What you choose here is answered from a recording of the real widget."


@dataclass(frozen=True)
class Replay:
    """How a figure is recorded for a page without a kernel.

    Attributes:
        controls: the traits that a reader sets.
        choices: the combinations of them that are recorded, and a sentence that tells the reader so; several, where
            fewer will do if more are too large. Without any, the script of the figure has all states already.
        quiet: traits that the page sets by itself, and that change nothing else.
        unseen: traits that the page does not ask for.
        free: whether a combination that was not recorded changes nothing else; if not, the page says so.

    """

    controls: tuple[str, ...]
    choices: dict[str, Callable[[Any], Iterable[Choice]]]
    quiet: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    free: bool = False

    @classmethod
    def alone(cls, *controls: str, says: str = ALL, quiet: Iterable[str] = (), unseen: Iterable[str] = ()) -> Replay:
        """Describe a figure that brings all of its states along: its script asks for nothing."""
        return cls(controls, {says: lambda figure: ()}, tuple(quiet), tuple(unseen), free=True)
