"""Show a question on the page: buttons, cards, a slider or a field for a guess, and a second try after a wrong one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import traitlets

from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.practice.blank import ____
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.question import Question, label

_unfinished_guesses: dict[str, Any] = {}
"""By question, what was clicked and is not complete yet: if the cell runs again, it is still there."""


class _GuessProtocol(Protocol):
    """What the widget needs of a `Guess`; by its form, because `guess` imports this module."""

    guess: Any
    about: str
    question: Question

    @property
    def text(self) -> str: ...
    def choose(self, guess: Any) -> None: ...
    def card(self, is_clicked: bool = False) -> Card: ...


class _ComparisonProtocol(Protocol):
    """What the widget needs of a `Comparison`."""

    card: Card
    is_on_page: bool

    @property
    def is_open(self) -> bool: ...
    def try_again(self, guess: Any) -> Card: ...
    def show(self) -> Card: ...


class GuessWidget(HookWidget):
    """Take a guess by click or key.

    Args:
        guess: what the page fills in.
        comparison: what was seen, if the answer is asked for after the cell ran: without a guess, or after a wrong one.

    """

    _esm, _css = assets(Path(__file__).with_name("guess_widget"))
    kind = traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Unicode()).tag(sync=True)
    range = traitlets.List(traitlets.Float()).tag(sync=True)
    example = traitlets.Unicode().tag(sync=True)
    given = traitlets.Any(None, allow_none=True).tag(sync=True)
    tried = traitlets.Unicode().tag(sync=True)
    begun = traitlets.Any(None, allow_none=True).tag(sync=True)
    answer = traitlets.Any(None, allow_none=True).tag(sync=True)
    heading = traitlets.Unicode().tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    mood = traitlets.Unicode().tag(sync=True)
    is_comparison = traitlets.Bool(False).tag(sync=True)
    is_over = traitlets.Bool(False).tag(sync=True)

    def __init__(self, guess: _GuessProtocol, comparison: _ComparisonProtocol | None = None) -> None:
        asked = guess.question
        self._guess = guess
        self._comparison = comparison
        self._values: tuple[Any, ...] = asked.choices or asked.cards or asked.several
        options = [label(each) for each in self._values]
        super().__init__(
            kind=asked.kind,
            options=options,
            example=asked.example,
            range=list(map(float, asked.slider)),
            # A second try begins with nothing chosen, but a slider has to stand somewhere.
            given=None
            if comparison and asked.kind != "slider"
            else _encode_guess(guess, options) or _unfinished_guesses.get(guess.about),
            is_comparison=comparison is not None,
            **self._get_status(),
        )

    @traitlets.observe("begun")
    def _keep_unfinished(self, change: Any) -> None:
        if self._comparison is None:
            _unfinished_guesses[self._guess.about] = change["new"]

    @traitlets.observe("answer")
    @show_errors
    def _take_answer(self, change: Any) -> None:
        if change["new"] is None or self.is_over:
            return
        if change["new"] == "show" and self._comparison is not None:
            self._comparison.show()
        else:
            value = self._decode_answer(change["new"])
            if value is None:
                return
            if self._comparison is None:
                self._guess.choose(value)
            else:
                self._comparison.try_again(value)
        with self.hold_sync():
            for name, said in self._get_status().items():
                setattr(self, name, said)
            self.is_over = self._comparison is not None and not self._comparison.is_open

    def _decode_answer(self, answer: Any) -> Any:
        """Return what the page says as a guess; None while it is not complete."""
        if self.kind == "choices":
            return self._values[int(answer["at"])]
        if self.kind == "cards":
            return list(answer["order"]) if len(answer["order"]) == len(self._values) else None
        if self.kind == "several":
            return [value for at, value in enumerate(self._values) if at in answer["those"]] or ____
        if self.kind == "slider":
            number = float(answer["number"])
            return int(number) if all(part.is_integer() for part in self.range) else number
        # Who types a list or a name as in Python means the same.
        return re.sub(r"[\[\]'\"]", " ", str(answer["text"])).strip() or None

    def _get_status(self) -> dict[str, str]:
        """Return what the status says, and which guess was wrong."""
        if self._comparison is None:
            card, more = self._guess.card(is_clicked=True), ""
        else:
            card = self._comparison.card
            # On a web page there is no next cell that could tell the answer.
            again = "Try once more" + ("" if self._comparison.is_on_page else " before you run the next cell")
            more = {
                "not attempted": "Guess now, or show the answer.",
                "wrong": f"{again}, or show the answer.",
            }.get(card.kind, "")
        message = f"{card.sentence()} {more}".strip()
        tried = self._guess.text if card.kind == "wrong" else ""
        return {"heading": card.heading, "message": message, "mood": card.kind, "tried": tried}

    def summary(self) -> str:
        """Say what a reader without a kernel sees."""
        return repr(self._comparison or self._guess)


def _encode_guess(guess: _GuessProtocol, options: list[str]) -> dict[str, Any] | None:
    """Return a guess in the form in which the page sends it, so that its button is pressed; None if it has none."""
    value, kind = guess.guess, guess.question.kind
    names = [option.casefold() for option in options]
    if kind == "choices" and guess.text.casefold() in names:
        return {"at": names.index(guess.text.casefold())}
    if kind == "cards" and isinstance(value, list) and {*map(str, value)} <= {*options}:
        return {"order": value}
    if kind == "several" and isinstance(value, list) and {*map(str, value)} <= {*options}:
        return {"those": [options.index(str(each)) for each in value]}
    if kind == "slider" and isinstance(value, int | float):
        return {"number": float(value)}
    return {"text": guess.text} if kind == "field" and guess.text else None
