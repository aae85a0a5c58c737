"""A guess that a learner commits to before a cell runs, held against what the cell then shows."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hookscope_course.exercises.blank import holds_blank
from hookscope_course.exercises.card import Card

if TYPE_CHECKING:
    from collections.abc import Sequence


class Guess:
    """What you expect to see. Nobody judges it: a guess that was off is where you learn something.

    Args:
        guess: a value, or a list of values in the order you expect; `____` while you have none.

    Example:
        >>> from hookscope_course import ____
        >>> Guess(____)
        No guess yet: replace ____ and run this cell again.
        >>> Guess(3).compare(4)
        You guessed 3. It is 4.
        >>> Guess(["forward", "pre-hook"]).compare(["pre-hook", "forward"])
        Place 1 differs: you guessed forward, it was pre-hook.

    """

    def __init__(self, guess: Any) -> None:
        self.guess = guess

    def compare(self, actual: object) -> Card:
        """Say how the guess and what was seen agree.

        Args:
            actual: what the cell showed: a value, or a list that is compared place by place.

        """
        if holds_blank(self.guess):
            return Card("No guess this time.", f"It is {_say(actual)}.")
        if self.guess == actual:
            return Card("As you guessed:", _say(actual), "right")
        if isinstance(self.guess, list | tuple) and isinstance(actual, list | tuple):
            return _first_difference(self.guess, actual)
        return Card(f"You guessed {_say(self.guess)}.", f"It is {_say(actual)}.")

    def _card(self) -> Card:
        if holds_blank(self.guess):
            return Card("No guess yet:", "replace ____ and run this cell again.", "not attempted")
        return Card("Your guess:", f"{_say(self.guess)}. Now run the next cell.")

    def __repr__(self) -> str:
        return repr(self._card())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._card()._repr_mimebundle_()


def _first_difference(guess: Sequence[object], actual: Sequence[object]) -> Card:
    nothing = object()
    for place, (ours, theirs) in enumerate(zip_longest(guess, actual, fillvalue=nothing), start=1):
        if ours != theirs:
            left = "nothing more" if ours is nothing else _say(ours)
            right = "over" if theirs is nothing else _say(theirs)
            return Card(f"Place {place} differs:", f"you guessed {left}, it was {right}.")
    return Card("As you guessed:", _say(list(actual)), "right")


def _say(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
