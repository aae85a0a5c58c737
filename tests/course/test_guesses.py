"""Every question can be answered, a wrong guess gets its own reason, and no reason tells the answer."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hookscope_course import Guess, ____
from hookscope_course.learner.copies import STATE_FOLDER
from hookscope_course.practice import guess as guess_module
from hookscope_course.practice import guess_results
from hookscope_course.practice.guess_widget import GuessWidget
from hookscope_course.practice.question import Question, questions_of
from lessons.build import teacher_pages
from lessons.build.slide_contents import OPENING
from tests.shared.parsed_chapters import CHAPTERS, REFERENCES
from tests.shared.table_checks import for_each

NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 12: "twelve"}
"""Numbers that are also looked for as words; "one", "two" and "zero" stand in too many sentences that tell nothing."""

ABOUT_OTHERS = re.compile(r"\bthey\b|\bof the class\b|\blearners?\b|\bask you\b", re.IGNORECASE)


def value_of(answer: str) -> Any:
    """What was compared with a guess, from the sentence that tells it: a list if there are commas."""

    def one(text: str) -> object:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text.removeprefix("full_backward ")

    if answer in ("yes", "no"):
        return answer == "yes"
    places = [one(text) for text in re.split(r", (?:then )?", answer)]
    return places if len(places) > 1 else places[0]


@dataclass(frozen=True)
class Asked:
    """A question and its answer, as the built notebook shows it.

    Args:
        about: chapter and section.
        question: what guesses.toml says about it.
        answer: the value.

    """

    about: str
    question: Question
    answer: Any

    def compare(self, guess: Any) -> str:
        """What is said to a first guess."""
        return repr(Guess(guess, about=self.about).compare(self.answer))


def all_asked() -> list[Asked]:
    found = []
    for chapter in (*CHAPTERS, *REFERENCES):
        answers = {
            "0" if heading == OPENING else heading.split()[0]: said
            for heading, said in teacher_pages.find_answers(chapter).items()
        }
        for about, question in questions_of(int(chapter.number)).items():
            (said,) = answers[about.partition(".")[2]]
            answer = value_of(said)
            offered = [*question.choices, *(guess for guess, _ in question.wrong)]
            if question.cards or any(isinstance(each, list) for each in offered):
                # A list with one place is said without a comma.
                answer = answer if isinstance(answer, list) else [answer]
            if question.several:
                answer = {*answer}
            found.append(Asked(about, question, answer))
    return found


ASKED = all_asked()
ALL = for_each(ASKED)


@pytest.fixture(autouse=True)
def _a_first_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guess_results, "get_notebook_folder", lambda: tmp_path)
    monkeypatch.setattr(guess_results, "_tries", {})
    monkeypatch.setattr(guess_results, "_outcomes", {})


def tells(text: str, answer: Any) -> bool:
    """Whether a text has the answer in it: a word, a number, or all places of a list in their order."""
    places = answer if isinstance(answer, list) else sorted(answer) if isinstance(answer, set) else [answer]
    words = []
    for place in places:
        named = [str(place)]
        if isinstance(place, int | float) and not isinstance(place, bool):
            named = [f"{place:g}", str(place), *([NUMBERS[place]] if place in NUMBERS else [])]
        words.append(f"(?:{'|'.join(map(re.escape, named))})")
    between = r"[\s,;'\"`\[\]()]*(?:\b(?:and|then)\b)?[\s,;'\"`\[\]()]*"
    return bool(re.search(rf"(?<![\w.−-]){between.join(words)}(?!\w|[.,]\d)", text, re.IGNORECASE))


def test_an_answer_in_a_reason_would_be_found() -> None:
    assert tells("It is 70.", 70.0)
    assert tells("There are three of them", 3)
    assert tells("Then `[2, 4]` is in it", [2.0, 4.0])
    assert tells("first 15 and then 10", [15, 10]) is False  # in other words, it would have to be read
    assert tells("15 and 10", [15, 10])
    assert tells("It is `blocks.1.mlp`", "blocks.1.mlp")
    assert not tells("It is 170, 7.0 or torch 1.70", 70)
    assert not tells("`blocks.1.mlp.0` is inside", "mlp")


def test_what_a_notebook_says_is_read_as_a_value() -> None:
    assert repr(Guess(["E", "C"]).compare(value_of("E, C"))).startswith("As you guessed")
    assert value_of("6.0, error") == [6.0, "error"]
    assert value_of("full_backward head, then full_backward (root)") == ["head", "(root)"]


def test_every_section_with_a_number_asks() -> None:
    for chapter in CHAPTERS:
        sections = [heading.split()[0] for heading in teacher_pages.read_teaching(chapter).sections]
        asked = [about for about in questions_of(int(chapter.number)) if about != f"{chapter.number}.0"]  # the opening
        assert asked == [f"{chapter.number}.{number}" for number in sections]
        assert len(sections) >= 3


@ALL
def test_the_answer_can_be_given(asked: Asked) -> None:
    offers = asked.question
    if offers.choices:
        assert 2 <= len(offers.choices) <= 5
        right = [
            each
            for each in offers.choices
            if asked.compare(each).startswith(("As you guessed", "Right, at the second try"))
        ]
        assert len(right) == 1, right
        assert all(guess in offers.choices for guess, _ in offers.wrong), "a wrong guess cannot be chosen"
    elif offers.several:
        assert {*offers.several} > asked.answer
        assert all({*guess} <= {*offers.several} for guess, _ in offers.wrong), "a wrong guess cannot be chosen"
    elif offers.cards:
        assert len({*offers.cards}) == len(offers.cards)
        assert sorted(offers.cards) == sorted(asked.answer)
    elif offers.slider:
        low, high, step = offers.slider
        stops = [round(low + step * at, 6) for at in range(round((high - low) / step) + 1)]
        assert any(
            asked.compare(stop).startswith(("As you guessed", "Right, at the second try", "Close")) for stop in stops
        )
        assert all(guess in stops for guess, _ in offers.wrong), "a wrong guess cannot be reached"
    else:
        assert offers.example
        assert not tells(offers.example, asked.answer)


@ALL
def test_every_wrong_guess_is_understood_and_gets_its_own_reason(asked: Asked) -> None:
    assert asked.question.wrong
    assert asked.question.otherwise
    for guess, reason in asked.question.wrong:
        guess_results.get_wrong_guesses(asked.about).clear()
        said = asked.compare(guess)
        assert re.match("Not (?!understood)", said), (guess, said)
        assert f". {told(asked, reason)}" in said, (guess, said)


def told(asked: Asked, reason: str) -> str:
    """A reason as it is said; of two answers, the other one follows at once, so a question has no place there."""
    reason = " ".join(reason.split())
    if len(asked.question.choices) != 2 and len(asked.question.cards) != 2 and not isinstance(asked.answer, bool):
        return reason
    return " ".join(re.findall(r"[^ ][^.!?]*(?:[.](?=\w|`|\d)[^.!?]*)*[.!](?= |$)", reason)) or "The answer is"


@ALL
def test_no_reason_tells_the_answer(asked: Asked) -> None:
    for reason in (*(reason for _, reason in asked.question.wrong), asked.question.otherwise):
        assert not tells(reason, asked.answer), reason


@ALL
def test_the_answer_comes_with_one_sentence_that_says_why(asked: Asked) -> None:
    why = asked.question.because
    assert re.fullmatch(r"[^.!?]*(?:[.](?=\w|`|\d)[^.!?]*)*\.", why), why
    shown = repr(Guess(about=asked.about).compare(asked.answer).show())
    assert re.fullmatch(r"The answer is .+\. " + re.escape(why), shown), shown


@ALL
def test_a_wrong_guess_is_spoken_of_as_past(asked: Asked) -> None:
    for reason in (*(reason for _, reason in asked.question.wrong), asked.question.otherwise):
        assert not re.search(r"\bYou expect\b", reason), reason


@ALL
def test_a_reason_speaks_to_the_learner_in_a_few_sentences(asked: Asked) -> None:
    for reason in (*(reason for _, reason in asked.question.wrong), asked.question.otherwise):
        assert not ABOUT_OTHERS.search(reason), reason
        assert reason.endswith((".", "?", "!", ")")), reason
        assert len(re.findall(r"[.?!](?= [A-Z`(]|$)", reason)) <= 3, reason


@ALL
def test_any_other_wrong_guess_gets_the_sentence_that_helps_anybody(asked: Asked) -> None:
    other = 987654 if isinstance(asked.answer, int | float) else "something else"
    if isinstance(asked.answer, bool):
        return  # there is no other
    is_text = asked.question.choices and all(isinstance(each, str) for each in asked.question.choices)
    if isinstance(asked.answer, list | set) and not is_text:
        other = [987654 if isinstance(place, int | float) else "else" for place in asked.answer]
    assert told(asked, asked.question.otherwise) in asked.compare(other)


@pytest.mark.parametrize("asked", [one for one in ASKED if one.question.kind == "field"], ids=lambda one: one.about)
def test_what_is_typed_into_a_field_is_understood_as_in_python(asked: Asked) -> None:
    for typed in (repr(asked.answer), str(asked.answer).strip("[]")):
        widget = GuessWidget(guess := Guess(about=asked.about))
        widget.answer = {"text": typed}
        assert repr(guess.compare(asked.answer)).startswith("As you guessed"), typed


def test_several_can_be_chosen() -> None:
    widget = GuessWidget(guess := Guess(about="08.3"))
    assert widget.kind == "several"
    assert repr(guess) == "Your guess? Choose one or more: output, h_n, dict, tuple, list, tensor."
    widget.answer = {"those": [2, 4]}
    assert guess.guess == ["dict", "list"]
    widget.answer = {"those": []}
    assert repr(guess).startswith("Your guess?"), "all are taken back"
    widget.answer = {"those": [2, 4]}
    assert repr(guess.compare({"list", "dict"})).startswith("As you guessed")


def test_a_list_stands_on_its_button_without_brackets() -> None:
    widget = GuessWidget(guess := Guess(about="08.1"))
    assert widget.options[1] == "15, 10"
    widget.answer = {"at": 1}
    assert guess.guess == [15, 10]


TWO_PLACES = Question(choices=([1, 1], [20, 1], [20, 3]), otherwise="Is it multiplied once for *each* call?")
EITHER_OR = Question(
    choices=(True, False),
    otherwise="Which line would have taken it off, and was it reached?",
    because="The line was never reached.",
)


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions that no chapter asks."""
    more = {"05.9": TWO_PLACES, "01.9": EITHER_OR}
    monkeypatch.setattr(guess_module, "question", lambda about: more.get(about, Question()))


def click(guess: Guess, name: str) -> GuessWidget:
    """Click the button with a name on the widget of a guess."""
    widget = GuessWidget(guess)
    widget.answer = {"at": widget.options.index(name)}
    return widget


@pytest.fixture
def copy(asks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A notebook in a learner's copy, where somebody can click."""
    (tmp_path / STATE_FOLDER).mkdir()
    monkeypatch.setattr(guess_module, "is_notebook", lambda: True)


@pytest.mark.usefixtures("asks")
def test_what_was_clicked_stands_for_the_blank_when_the_cell_runs_again() -> None:
    click(Guess(____, about="05.9"), "20, 3")
    again = Guess(____, about="05.9")
    assert again.guess == [20, 3]
    assert GuessWidget(again).given == {"at": GuessWidget(again).options.index("20, 3")}, "its button is not pressed"
    assert Guess([1, 3], about="05.9").guess == [1, 3], "what is typed into the cell wins"
    assert Guess(____, about="05.8").text == ""


@pytest.mark.usefixtures("asks")
def test_a_guess_that_was_typed_presses_its_button() -> None:
    assert GuessWidget(Guess("20, 3", about="05.9")).given == GuessWidget(Guess([20.0, 3.0], about="05.9")).given
    assert GuessWidget(Guess([7, 7], about="05.9")).given is None


@pytest.mark.usefixtures("copy")
def test_without_a_guess_a_copy_asks_again_and_tells_nothing() -> None:
    compared = Guess(____, about="05.9").compare([20.0, 3.0])
    widget = GuessWidget(compared.guess, compared)
    assert widget.heading == "You have not guessed yet."
    assert compared.is_open
    assert "20" not in widget.heading + widget.message
    assert "replace ____ by your guess" in repr(compared), "a frontend without widgets shows the text"
    widget.answer = {"at": widget.options.index("1, 1")}
    assert (widget.heading, widget.tried, widget.is_over) == ("Not 1, 1.", "1, 1", False)
    widget.answer = {"at": widget.options.index("20, 3")}
    assert (widget.heading, widget.message, widget.is_over) == (
        "Right, at the second try.",
        "The answer is 20, 3.",
        True,
    )
    assert guess_results.read_outcomes() == {"05.9": "second"}
    again = Guess(____, about="05.9")
    assert repr(again.compare([20.0, 3.0])) == "Right, at the second try. The answer is 20, 3."


@pytest.mark.usefixtures("copy")
def test_the_answer_is_shown_on_request() -> None:
    compared = Guess(____, about="05.9").compare([20.0, 3.0])
    widget = GuessWidget(compared.guess, compared)
    widget.answer = "show"
    assert (widget.heading, widget.message, widget.is_over) == ("The answer is 20, 3.", "", True)


@pytest.mark.usefixtures("asks")
def test_outside_of_a_copy_nobody_clicks_and_the_answer_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guess_module, "is_notebook", lambda: True)
    compared = Guess(____, about="05.9").compare([20.0, 3.0])
    assert compared._repr_mimebundle_()["text/plain"] == "The answer: 20, 3."


@pytest.mark.usefixtures("asks")
def test_of_two_answers_the_other_one_is_told_behind_the_reason() -> None:
    said = repr(Guess(False, about="01.9").compare(True))
    assert said == "Not this time. The answer is yes. The line was never reached."
    assert repr(Guess(True, about="01.9").compare(True)).startswith("Right, at the second try. The answer is yes.")


@pytest.mark.usefixtures("asks")
def test_a_question_for_yes_or_no_has_these_buttons() -> None:
    widget = click(guess := Guess(____, about="01.9"), "No")
    assert widget.options == ["Yes", "No"]
    assert guess.guess is False
    assert (guess.text, widget.message) == ("no", "no.")
    assert GuessWidget(Guess(____, about="01.9")).given == {"at": 1}
    assert repr(Guess("yes", about="01.9").compare(True)) == "As you guessed: yes."
    assert repr(Guess(about="01.8").compare(True)) == "The answer: True."


@pytest.mark.usefixtures("asks")
def test_a_second_wrong_guess_is_written_as_on_its_button() -> None:
    Guess([1, 1], about="05.9").compare([20.0, 3.0])
    assert repr(Guess("20 1", about="05.9").compare([20.0, 3.0])).startswith("You guessed 20, 1. The answer is 20, 3. ")


def test_a_score_says_what_was_right_at_once_and_what_at_the_second_try() -> None:
    for about, outcome in (("01.1", "second"), ("01.2", "second"), ("01.3", "first"), ("01.4", "shown")):
        guess_results.store_outcome(about, outcome)
    assert guess_results.summarize_guesses(1, 4) == "1 of 4 right at once, 2 at the second try"


@pytest.mark.parametrize(
    ("guess", "said"), [({"stem"}, "Not only stem."), ({"mix"}, "Not mix."), ({"mix", "stem"}, "Not mix")]
)
def test_a_part_of_the_answer_is_not_called_wrong(guess: set[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope_course.practice.guess_results.get_wrong_guesses", lambda about: [])
    assert repr(Guess(guess, about="11.3").compare({"relu", "stem"})).startswith(said)
