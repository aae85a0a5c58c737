"""Record what a question says to each guess, so that it can be answered in a page without a kernel.

The words are those of `Comparison`, drawn by the widget of the notebooks. The answer is the one that the built notebook
shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

from nbformat import NotebookNode

from hookscope_course import Guess
from hookscope_course.practice.blank import ____
from hookscope_course.practice.guess import Comparison
from hookscope_course.practice.guess_results import TRIES
from hookscope_course.practice.guess_widget import GuessWidget
from hookscope_course.practice.question import Question, label, question
from lessons.build.slide_contents import find_answer

ABOUT = re.compile(r"^guess = Guess\(.*?about=\"(\d\d\.\d+)\"", re.MULTILINE)
ANY = -987654321
"""In a field, a guess that has no reason of its own; the page puts what was typed in its place."""


def find_answers(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers of a built notebook by question, as the first cell below each question shows them.

    Raises:
        LookupError: no cell shows the answer, or it is nothing that the question offers.

    """
    found: dict[str, Any] = {}
    asked = ""
    for cell in cells:
        if is_asked := ABOUT.search("".join(cell["source"])):
            asked = is_asked[1]
            found[asked] = None
        elif asked and "guess.compare(" in "".join(cell["source"]):
            said = find_answer(NotebookNode(cell)) or ""
            found[asked], asked = parse_answer(question(asked), said), ""
    if missing := [about for about, answer in found.items() if answer is None]:
        raise LookupError(f"no cell shows the answer to {', '.join(missing)}")
    return found


def parse_answer(asked: Question, said: str) -> Any:
    """Return the value that a notebook shows as an answer.

    Example:
        >>> parse_answer(Question(choices=(True, False)), "yes"), parse_answer(Question(example="two numbers"), "3, 6")
        (True, [3, 6])

    """
    names = said.split(", ")
    match asked.kind:
        case "choices":
            for choice in asked.choices:
                if said == (label(choice).lower() if isinstance(choice, bool) else label(choice)):
                    return choice
        case "several" if {*names} <= {*asked.several}:
            return {*names}
        case "cards" if {*names} <= {*asked.cards}:
            return names
        case "slider":
            return json.loads(said)
        case "field" if re.fullmatch(r"[-\d., ]+", said):
            return json.loads(f"[{said}]")
    raise LookupError(f"the answer {said!r} is nothing that the question offers")


def record_question(about: str, actual: Any) -> dict[str, Any]:
    """Ask a question, make every guess at every try, and return what the page needs.

    Returns:
        state: the widget's traits. tries: at each try, for each guess, as JSON, what is said to it, as [index of the
        heading in `texts`, index of the message, mood, whether it is over]. shown: the same for "Show the answer".

    """
    texts: dict[str, int] = {}

    def ask() -> GuessWidget:
        guess = Guess(____, about=about)
        guess.guess = ____  # what was clicked elsewhere does not count
        return GuessWidget(guess, Comparison(guess, actual, on_page=True))

    def said(widget: GuessWidget) -> list[Any]:
        assert not widget.problem, f"{about}: {widget.problem}"
        indices = [texts.setdefault(each, len(texts)) for each in (widget.heading, widget.message)]
        return [*indices, widget.mood, widget.is_over]

    tries, wrong = list[dict[str, list[Any]]](), list[Any]()
    every = {_encode_key(each): each for each in _list_guesses(question(about), actual)}
    for number in range(TRIES):
        tries.append({})
        for key, guess in every.items():
            before = [each for each in wrong if each != guess][:number]
            if len(before) < number:
                continue
            widget = ask()
            for each in (*before, guess):
                widget.answer = each
            tries[number][key] = said(widget)
            if not (number or widget.is_over):
                wrong.append(guess)
    widget = ask()
    names = ("kind", "options", "range", "example", "heading", "message", "mood", "is_comparison")
    state = {name: getattr(widget, name) for name in names}
    widget.answer = "show"
    return {"state": state, "tries": tries, "shown": said(widget), "texts": [*texts]}


def _list_guesses(asked: Question, actual: Any) -> Iterator[dict[str, Any]]:
    """Every guess that can be made, as the page sends it; in a field, each that has a reason of its own."""
    match asked.kind:
        case "choices":
            yield from ({"at": at} for at in range(len(asked.choices)))
        case "several":
            indices = range(len(asked.several))
            yield from ({"those": [*those]} for many in indices for those in combinations(indices, many + 1))
        case "cards":
            yield from ({"order": [*order]} for order in permutations(asked.cards))
        case "slider":
            low, high, step = asked.slider
            for at in range(round((high - low) / step) + 1):
                number = round(low + at * step, 6)
                yield {"number": int(number) if number == int(number) else number}
        case "field":
            assert not asked.close, "a page compares a field exactly"
            for each in (actual, *(guess for guess, _ in asked.wrong), [ANY] * len(actual)):
                yield {"text": ", ".join(map(str, each))}


def describe_offers(asked: Question) -> str:
    """Say what a question offers, as HTML, for paper and where no script runs."""
    offers = [label(each) for each in asked.choices or asked.cards or asked.several]
    if asked.slider:
        offers = ["a number from {:g} to {:g}".format(*asked.slider)]
    return "Your guess: " + " · ".join(offers or [asked.example])


def _encode_key(guess: dict[str, Any]) -> str:
    """As JSON.stringify writes it."""
    return json.dumps(guess, separators=(",", ":"), ensure_ascii=False)
