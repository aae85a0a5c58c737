"""Show a question on the page: buttons, cards, a slider or a field for a guess, and a second try after a wrong one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import traitlets

from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.practice.card import Card
from hookscope_course.practice.question import Question


class _Guess(Protocol):
    """What the widget needs of a `Guess`; by its form, because `guess` imports this module."""

    question: Question

    def choose(self, guess: Any) -> None: ...
    def card(self) -> Card: ...


class _Comparison(Protocol):
    """What the widget needs of a `Comparison`."""

    card: Card

    @property
    def is_open(self) -> bool: ...
    def try_again(self, guess: Any) -> Card: ...
    def show(self) -> Card: ...


class GuessWidget(HookWidget):
    """Take a guess by click or key.

    Args:
        guess: what the page fills in.
        comparison: the comparison that was wrong, when this is the second try.

    """

    _esm, _css = assets(Path(__file__).with_name("guess_widget"))
    kind = traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Unicode()).tag(sync=True)
    range = traitlets.List(traitlets.Float()).tag(sync=True)
    example = traitlets.Unicode().tag(sync=True)
    answer = traitlets.Any(None, allow_none=True).tag(sync=True)
    heading = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    mood = traitlets.Unicode().tag(sync=True)
    is_second = traitlets.Bool(False).tag(sync=True)
    is_over = traitlets.Bool(False).tag(sync=True)

    def __init__(self, guess: _Guess, comparison: _Comparison | None = None) -> None:
        asked = guess.question
        self._guess = guess
        self._comparison = comparison
        self._values: tuple[Any, ...] = asked.choices or asked.cards or asked.several
        card = comparison.card if comparison else guess.card()
        super().__init__(
            kind=asked.kind,
            options=[_label(each) for each in self._values],
            example=asked.example,
            range=list(map(float, asked.slider)),
            is_second=comparison is not None,
            **_said(card, comparison is not None),
        )

    @traitlets.observe("answer")
    @show_errors
    def _take(self, change: Any) -> None:
        if change["new"] is None or self.is_over:
            return
        if change["new"] == "show" and self._comparison is not None:
            card = self._comparison.show()
        else:
            value = self._value(change["new"])
            if value is None:
                return
            if self._comparison is None:
                self._guess.choose(value)
                card = self._guess.card()
            else:
                card = self._comparison.try_again(value)
        with self.hold_sync():
            for name, said in _said(card, False).items():
                setattr(self, name, said)
            self.is_over = self._comparison is not None and not self._comparison.is_open

    def _value(self, answer: Any) -> Any:
        """Return what the page says as a guess; None while it is not complete."""
        if self.kind == "choices":
            return self._values[int(answer["at"])]
        if self.kind == "cards":
            return list(answer["order"]) if len(answer["order"]) == len(self._values) else None
        if self.kind == "several":
            return [value for at, value in enumerate(self._values) if at in answer["those"]] or None
        if self.kind == "slider":
            return float(answer["number"])
        # Who types a list or a name as in Python means the same.
        return re.sub(r"[\[\]'\"]", " ", str(answer["text"])).strip() or None

    def summary(self) -> str:
        """Say what a reader without a kernel sees."""
        return repr(self._comparison or self._guess)


def _label(choice: Any) -> str:
    """What stands on a button: a list without brackets."""
    if isinstance(choice, list):
        return ", ".join(map(str, choice)) or "none of them"
    return str(choice)


def _said(card: Card, again: bool) -> dict[str, str]:
    more = " Try once more, or let it show you the answer." if again else ""
    return {"heading": card.heading, "message": card.sentence() + more, "mood": card.kind}
