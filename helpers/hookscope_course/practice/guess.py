"""A guess that a learner commits to before a cell runs, held against what the cell then shows."""

from __future__ import annotations

import math
import re
import sys
from contextlib import suppress
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from hookscope_course.learner.why_texts import read_reason
from hookscope_course.practice import guess_results
from hookscope_course.practice.blank import ____, holds_blank
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.guess_results import ORDINALS, TRIES
from hookscope_course.practice.output_gate import gate
from hookscope_course.practice.question import Question, label, question

if TYPE_CHECKING:
    from collections.abc import Sequence

_Figure = TypeVar("_Figure")


class Guess:
    """What you expect to see. Nobody judges it: a guess that was off is where you learn something.

    Args:
        guess: a value, or several in the order you expect, as a list or one by one; `____` while you have none. In a
            notebook you can click instead; then `____` stands for what you clicked, also when the cell runs again.
        about: the question, as chapter and section, for example "03.1". It knows what there is to choose, and what a
            wrong guess reveals.

    Raises:
        LookupError: there is no such chapter.

    Example:
        >>> from hookscope_course import ____
        >>> Guess(____)
        Your guess? Replace ____ and run this cell again.
        >>> Guess(3).compare(4)
        You guessed 3. It is 4.
        >>> Guess(0.8, 0.4).compare([0.8, 0.4])
        As you guessed: 0.8, 0.4.
        >>> Guess("seven").compare(7)
        Not understood: a guess is a number, as in Guess(3), but you wrote 'seven'. The answer is 7.

    """

    def __init__(self, *guess: Any, about: str = "") -> None:
        self.guess: Any = guess[0] if len(guess) == 1 else list(guess) if guess else ____
        self.about = about
        self.question = question(about) if about else Question()
        self._widget: Any = None
        _forget_when_a_cell_fails()
        if not isinstance(self.guess, str):  # on a button there is text: 7 is "7"
            self.guess = next((each for each in self.question.choices if each == str(self.guess)), self.guess)
        if about and holds_blank(self.guess):
            made = guess_results.get_guess(about)
            self.guess = ____ if made is None else made
        if self.is_open:
            gate.open_question(about)
        else:
            gate.leave_question()

    @property
    def is_open(self) -> bool:
        """Whether a learner has yet to answer: on the page of a learner's copy nothing tells the answer until then."""
        in_copy = bool(self.about) and is_notebook() and guess_results.is_learner_copy()
        return in_copy and self.about not in guess_results.read_outcomes()

    def choose(self, guess: Any) -> None:
        """Make a guess by a click: it takes the place of the one before, until the answer is known."""
        self.guess = guess
        if self.about:
            guess_results.store_guess(self.about, None if holds_blank(guess) else guess)

    def compare(self, actual: object) -> Comparison:
        """Say how the guess and what was seen agree.

        What is meant counts: "16" and [16] are 16, "True" is True, "C, E, B" is a list, "root" is "(root)", and case
        makes no difference. A question that is named (`about`) gives a reason for a wrong guess, and a second try
        before it shows the answer.

        Args:
            actual: what the cell showed: a value, a list that is compared position by position, or a set of strings,
                where the order makes no difference.

        Example:
            >>> Guess("C, A").compare({"A", "B", "C"})
            Not complete: you left out B. It is A, B, C.

        """
        return Comparison(self, actual)

    def show(self, figure: _Figure) -> _Figure:
        """Show a figure in which the answer can be looked for at once; all other outputs wait for the answer."""
        gate.let_pass()
        return figure

    def why(self) -> None:
        """Show the reason behind the answer, in a learner's copy as soon as the question has been answered."""
        reason = {"text/markdown": read_reason(self.about)}
        if self.is_open:
            gate.show(reason, self.about)
        else:
            from IPython.display import display

            display(reason, raw=True)  # type: ignore[no-untyped-call]

    @property
    def text(self) -> str:
        """The guess in words, as on its button if it has one; empty while there is none."""
        return "" if holds_blank(self.guess) else _format_as_choice(self.guess, self.guess, self.question)

    def card(self, is_clicked: bool = False) -> Card:
        """Return what is said while the answer is not known.

        Args:
            is_clicked: the widget shows it, with the choices and what to do.

        """
        if misfit := self.find_misfit():
            return misfit
        if holds_blank(self.guess):
            if is_clicked:
                return Card("No guess yet.", "", "not attempted")
            if choices := self.question.choices or self.question.cards or self.question.several:
                what = {"choices": "Choose", "cards": "Put in order"}.get(self.question.kind, "Choose one or more")
                return Card("Your guess?", f"{what}: {_format(choices)}.", "not attempted")
            if self.question.example:
                return Card(
                    "Your guess?",
                    f"Replace ____ by {self.question.example} and run this cell again.",
                    "not attempted",
                )
            return Card("Your guess?", "Replace ____ and run this cell again.", "not attempted")
        todo = "" if is_clicked else " Now run the cells below."
        return Card("Your guess:", f"{self.text}.{todo}")

    def find_misfit(self) -> Card | None:
        """Say what to write, if the guess is of another type than each answer that the question offers."""
        asked = self.question
        many, one = asked.cards or asked.several, asked.choices or asked.slider[:1]
        if holds_blank(self.guess) or not (many or one):
            return None
        guess = [*self.guess] if isinstance(self.guess, set | frozenset) else self.guess
        for answer in [list(many)] if many else one:
            with suppress(_UnclearGuess):
                _convert_guess(guess, answer)
                return None
        if asked.slider:
            what = f"Write a number from {asked.slider[0]:g} to {asked.slider[1]:g}"
        else:
            offers = ", ".join('"' + each + '"' if isinstance(each, str) else repr(each) for each in many or one)
            some = {"choices": "one of these", "cards": "these in order"}.get(asked.kind, "some of these")
            what = f"Write {some}: {offers}"
        return Card(f"{self.guess!r} is none of the answers.", f"{what}.", "not attempted")

    def __repr__(self) -> str:
        return repr(self.card())

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if not self.about or not is_notebook():
            return self.card()._repr_mimebundle_()
        from hookscope_course.practice.guess_widget import GuessWidget  # widgets are loaded when there is a page

        self._widget = self._widget or GuessWidget(self)
        return self._widget._repr_mimebundle_(**kwargs)


THE_ANSWER = "The answer:"
"""The heading of an answer that nobody guessed, as in a built notebook."""


class _Match(Enum):
    """How near a guess is to the answer."""

    EXACT, CLOSE, WRONG, UNCLEAR = range(4)


class Comparison:
    """How a guess and what was seen agree; after a first wrong guess with a reason, and without the answer.

    In a learner's copy a question without a guess is asked again. Elsewhere nobody clicks, so the answer is shown.

    Args:
        guess: what was guessed.
        actual: what was seen.
        on_page: it is asked on a web page, which keeps the score by itself.

    """

    def __init__(self, guess: Guess, actual: object, on_page: bool = False) -> None:
        self.guess = guess
        self.actual = actual
        self.is_on_page = on_page
        self._wrong: list[str] = [] if on_page else guess_results.get_wrong_guesses(guess.about)
        self._widget: Any = None
        self.card = self._judge()

    @property
    def is_open(self) -> bool:
        """Whether it can be answered: the answer has not been shown."""
        return self.card.kind in ("wrong", "not attempted")

    @property
    def is_known(self) -> bool:
        """Whether the answer was shown on this learner's page before, so that no try is left."""
        is_kept = bool(self.guess.about) and not self.is_on_page and guess_results.is_learner_copy()
        return is_kept and guess_results.read_outcomes().get(self.guess.about) == "shown"

    def try_again(self, guess: Any) -> Card:
        """Judge a guess that was made after the cell ran: the first one, or the second after a wrong one."""
        if self.is_on_page:
            self.guess.guess = guess
        else:
            self.guess.choose(guess)
        self.card = self._judge()
        return self.card

    def show(self) -> Card:
        """Show the answer without another try."""
        self._store_outcome("shown")
        self.card = Card(self._answer_sentence, self.guess.question.because)
        return self.card

    @property
    def _answer(self) -> str:
        return _format_as_choice(self.actual, self.actual, self.guess.question)

    @property
    def _answer_sentence(self) -> str:
        return f"The answer is {self._answer}."

    def _judge(self) -> Card:
        guess, actual, asked = self.guess.guess, self.actual, self.guess.question
        if self.is_known and (holds_blank(guess) or _compare(guess, actual, asked.close)[0] is _Match.WRONG):
            return Card(self._answer_sentence, asked.because)
        if holds_blank(guess):
            if self.guess.about and (self.is_on_page or (is_notebook() and guess_results.is_learner_copy())):
                return Card("You have not guessed yet.", "", "not attempted")
            return self._make_answer_card()
        if misfit := self.guess.find_misfit():  # another guess can follow, so the answer is not told
            return Card(misfit.heading, misfit.message, "wrong")
        match, found = _compare(guess, actual, asked.close)
        if not self.guess.about or match is _Match.UNCLEAR:
            return found
        wrong, text = self._wrong, _format_as_choice(guess, actual, asked)
        if match in (_Match.EXACT, _Match.CLOSE):
            ordinal = ORDINALS[len(wrong)]
            self._store_outcome(ordinal)
            if match is _Match.CLOSE:
                return found
            if wrong:
                return Card(
                    f"Right, at the {ordinal} try.", f"{self._answer_sentence} {asked.because}".strip(), "right"
                )
            return Card(found.heading, self._answer, "right")
        reason, can_try_again = _find_reason(guess, actual, asked), len({*wrong, text}) < TRIES
        only = "only " if _is_subset(guess, actual) else ""
        not_it = "Not this time."
        if not isinstance(actual, bool):
            not_it = f"Not {only}{text}{_describe_side(guess, actual, asked)}."
        if can_try_again and text not in wrong:
            if self.is_on_page:
                wrong.append(text)
            else:
                guess_results.store_wrong_guess(self.guess.about, text)
        if can_try_again and not _is_either_or(actual, asked):
            if not (self.is_on_page or is_notebook()):
                reason += " Try again: change your guess and run both cells once more."
            return Card(not_it, reason.strip(), "wrong")
        self._store_outcome("shown")
        if can_try_again:  # another try would ask nothing: only one answer is left
            return Card(not_it, " ".join(filter(None, (_drop_questions(reason), self._answer_sentence, asked.because))))
        return Card(f"You guessed {text}.", f"{self._answer_sentence} {asked.because or reason}".strip())

    def _store_outcome(self, outcome: guess_results.GuessOutcome) -> None:
        if not self.is_on_page:
            guess_results.store_outcome(self.guess.about, outcome)
            gate.answer(self.guess.about)

    def _make_answer_card(self) -> Card:
        return Card(THE_ANSWER, f"{self._answer}.")

    def __repr__(self) -> str:
        if self.card.kind != "not attempted":
            return repr(self.card)
        if self.guess.is_open:  # what a front end without widgets shows
            return "You have not guessed yet: replace ____ by your guess, and run both cells again."
        return repr(self._make_answer_card())

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        gate.let_pass()
        if not self.is_open or not is_notebook():
            return self.card._repr_mimebundle_()
        from hookscope_course.practice.guess_widget import GuessWidget

        self._widget = self._widget or GuessWidget(self.guess, self)
        return self._widget._repr_mimebundle_(**kwargs)


def _describe_side(guess: Any, actual: Any, asked: Question) -> str:
    """Say on which side of the answer a slider was; elsewhere that would give the answer away."""
    if not asked.slider or not isinstance(guess, int | float):
        return ""
    return ": too high" if guess > actual else ": too low"


def _is_subset(guess: Any, actual: object) -> bool:
    """Whether all that was chosen is right, and something is missing."""
    if not isinstance(actual, set | frozenset) or not isinstance(guess, set | frozenset | list | tuple):
        return False
    return {*map(str, guess)} < {*map(str, actual)}


def _drop_questions(reason: str) -> str:
    """Return a reason without its questions, which nobody can answer once the answer is there."""
    return " ".join(part for part in re.split(r"(?<=[.?!])\s+", reason.strip()) if not part.endswith("?"))


def _is_either_or(actual: object, asked: Question) -> bool:
    return 2 in (len(asked.choices), len(asked.cards)) or isinstance(actual, bool)


def _compare(guess: Any, actual: object, close: float) -> tuple[_Match, Card]:
    if isinstance(actual, set | frozenset):
        return _compare_sets(guess, actual)
    try:
        value = _convert_guess(guess, actual)
    except _UnclearGuess as unclear:
        return _refuse_guess(unclear, guess, actual)
    if isinstance(actual, list | tuple):
        return _compare_lists(value, actual)
    if _is_equal(value, actual):
        return _Match.EXACT, Card("As you guessed:", _format(actual), "right")
    if close and isinstance(value, int | float) and isinstance(actual, int | float) and abs(value - actual) <= close:
        return _Match.CLOSE, Card("Close:", f"you guessed {_format(value)}, it is {_format(actual)}.", "right")
    return _Match.WRONG, Card(f"You guessed {_format(value)}.", f"It is {_format(actual)}.")


def _find_reason(guess: Any, actual: object, asked: Question) -> str:
    """Return what a wrong guess reveals: its own reason, or the one that any guess gets."""
    return next((reason for wrong, reason in asked.wrong if _is_same_guess(wrong, guess, actual)), asked.otherwise)


def _format_as_choice(value: Any, actual: object, asked: Question) -> str:
    """Return a value in words, as on the button that means it; a yes and a no as they stand within a sentence."""
    found = next((choice for choice in asked.choices if _is_same_guess(choice, value, actual)), None)
    if found is None:
        return _format(value)
    return label(found).lower() if isinstance(found, bool) else label(found)


def _is_same_guess(one: Any, other: Any, actual: object) -> bool:
    """Whether two guesses mean the same, where a value of the type of `actual` is expected."""
    ordered = [sorted(each) if isinstance(each, set | frozenset) else each for each in (one, other, actual)]
    with suppress(_UnclearGuess):
        return _is_equal_or_all_equal(_convert_guess(ordered[0], ordered[2]), _convert_guess(ordered[1], ordered[2]))
    return False


def _is_equal_or_all_equal(one: object, other: object) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return _is_equal(one, other)


def is_notebook() -> bool:
    """Whether this is the kernel of a page, on which a widget can be drawn."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


# -- what is meant --------------------------------------------------------------------------------------------------


class _UnclearGuess(Exception):  # noqa: N818  # not an error: a sentence about the guess
    """Says of which type a guess has to be.

    Args:
        kind: in words.
        example: what is written between the parentheses then.

    """

    def __init__(self, kind: str, example: str) -> None:
        super().__init__(f"a guess is {kind}, as in Guess({example})")
        self.kind = kind


_PAIRS = {"True or False": "True, False", "a number": "3, 4", "text": '"red", "blue"'}


def _convert_guess(guess: Any, actual: object) -> Any:
    """Return a guess as a value of the type of what was seen.

    Raises:
        _Unclear: it cannot be one.

    """
    if hasattr(guess, "tolist"):  # a tensor or an array
        guess = guess.tolist()
    if isinstance(actual, list | tuple):
        return _convert_to_list(guess, actual)
    if isinstance(guess, list | tuple | set) and len(guess) == 1:
        (guess,) = guess
    match actual:
        case bool():
            if not isinstance(guess, bool):
                guess = {"true": True, "yes": True, "false": False, "no": False}.get(str(guess).strip().lower())
            if guess is None:
                raise _UnclearGuess("True or False", "True")
        case int() | float():
            if isinstance(guess, str) and re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", guess, re.I):
                guess = float(guess)
            if isinstance(guess, bool) or not isinstance(guess, int | float):
                raise _UnclearGuess("a number", "3")
            guess = int(guess) if math.isfinite(guess) and guess == int(guess) else guess
        case str():
            if isinstance(guess, type):
                guess = guess.__name__
            if not isinstance(guess, str):
                raise _UnclearGuess("text", '"red"')
    return guess


def _convert_to_list(guess: Any, actual: Sequence[object]) -> list[Any]:
    if isinstance(guess, str):
        letters = all(isinstance(each, str) and len(each) == 1 for each in actual)
        guess = (
            re.findall(r"\w", guess) if letters and actual else [part for part in re.split(r"[,;\s]+", guess) if part]
        )
    if not isinstance(guess, list | tuple):
        guess = [guess]
    some = actual[0] if actual else ""
    mixed = len({"number" if isinstance(each, int | float) else type(each) for each in actual}) > 1
    converted = []
    for guessed, shown in zip(guess, [*actual, *[some] * len(guess)], strict=False):
        try:
            converted.append(_convert_guess(guessed, shown))
        except _UnclearGuess as unclear:
            if not mixed:
                raise _UnclearGuess(f"a list whose items are each {unclear.kind}", _PAIRS[unclear.kind]) from None
            converted.append(guessed)  # where a number or a word may stand, the other one is a guess as well
    return converted


def _is_equal(guess: object, actual: object) -> bool:
    if isinstance(guess, str) and isinstance(actual, str):
        guess, actual = guess.strip().casefold(), actual.strip().casefold()
        return actual in (guess, f"({guess})")
    if isinstance(guess, int | float) and isinstance(actual, int | float):
        return math.isclose(guess, actual, rel_tol=1e-6)
    return guess == actual


def _refuse_guess(unclear: _UnclearGuess, guess: Any, actual: object) -> tuple[_Match, Card]:
    message = f"{unclear}, but you wrote {guess!r}. The answer is {_format(actual)}."
    return _Match.UNCLEAR, Card("Not understood:", message)


def _compare_lists(guess: Sequence[object], actual: Sequence[object]) -> tuple[_Match, Card]:
    nothing = object()
    for position, (guessed, shown) in enumerate(zip_longest(guess, actual, fillvalue=nothing), start=1):
        if not _is_equal(guessed, shown):
            left = "nothing more" if guessed is nothing else _format(guessed)
            right = "over" if shown is nothing else _format(shown)
            return _Match.WRONG, Card(f"Position {position} differs:", f"you guessed {left}, it was {right}.")
    return _Match.EXACT, Card("As you guessed:", _format(list(actual)), "right")


def _compare_sets(guess: Any, actual: set[str] | frozenset[str]) -> tuple[_Match, Card]:
    ordered = sorted(actual)
    if isinstance(guess, set | frozenset):
        guess = sorted(guess, key=str)
    try:
        converted = _convert_to_list(guess, ordered)
    except _UnclearGuess as unclear:
        return _refuse_guess(unclear, guess, ordered)
    missing = [each for each in ordered if not any(_is_equal(one, each) for one in converted)]
    wrong = [one for one in converted if not any(_is_equal(one, each) for each in ordered)]
    if not missing and not wrong:
        return _Match.EXACT, Card("As you guessed:", _format(ordered), "right")
    said = [f"you left out {_format(missing)}"] * bool(missing)
    said += [f"{_format(wrong)} does not belong there"] * bool(wrong)
    return _Match.WRONG, Card(
        "Not complete:" if not wrong else "Not quite:", f"{', and '.join(said)}. It is {_format(ordered)}."
    )


def _format(value: object) -> str:
    if not isinstance(value, list | tuple | set | frozenset):
        return str(value)
    value = sorted(value, key=str) if isinstance(value, set | frozenset) else value
    return ", ".join(map(str, value)) or "an empty list"


# -- a guess whose cell failed --------------------------------------------------------------------------------------


def _forget_when_a_cell_fails() -> None:
    """In a notebook: where `guess = Guess(…)` raised, the guess before it must not be compared."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or _forget_failed_guesses in shell.events.callbacks["post_run_cell"]:
        return
    shell.events.register("post_run_cell", _forget_failed_guesses)


def _forget_failed_guesses(result: Any) -> None:
    if result.success or result.info is None:
        return
    names = sys.modules["IPython"].get_ipython().user_ns
    for name in re.findall(r"^(\w+)\s*=\s*Guess\(", result.info.raw_cell, re.MULTILINE):
        if isinstance(names.get(name), Guess):
            asked = re.search(r"about\s*=\s*[\"'](\d\d\.\d+)[\"']", result.info.raw_cell)
            names[name] = Guess(____, about=asked[1] if asked else "")
            names[name].guess = ____  # not what was clicked before
            gate.leave_question()
