r"""Read guesses.toml: what the question of a section offers to choose, and what a wrong guess reveals.

["03.1"]                          # the question of section 1 of chapter 03
choices = [6, 7, 60, 70]          # buttons; or cards = ["A", "B"], to be put in order;
                                  # or several = ["A", "B"], of which any number can be chosen;
                                  # or slider = [0, 1, 0.01]: lowest, highest, step; without any of them: a field
example = "a list of two numbers" # what stands in an empty field
close = 5                         # a number that is at most this far off is "close"
wrong = [
  [60, "You expected each hook to get the module's own output. …"],
]
otherwise = "Each hook gets …"    # what is said to any other wrong guess
because = "`add_one` made 7 …"    # why the answer is what it is: one sentence, said together with the answer
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hookscope_course.lessons import folder_of

__all__ = ["Question", "QuestionError", "label", "question", "questions_of", "read_questions"]


class QuestionError(Exception):
    """A guesses.toml that cannot be read; names the file and the question."""


@dataclass(frozen=True)
class Question:
    """What a question offers, and what it says to a wrong guess.

    Args:
        choices: the answers to choose from, as buttons.
        cards: what is to be put in order.
        several: what any number can be chosen of; the answer is a set.
        slider: the lowest value, the highest, and the step.
        example: what to write into a field.
        close: how far off a number can be and still counts.
        wrong: wrong guesses, each with what it reveals.
        otherwise: what any other wrong guess is told.
        because: why the answer is what it is, in one sentence.

    """

    choices: tuple[Any, ...] = ()
    cards: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    slider: tuple[float, ...] = ()
    example: str = ""
    close: float = 0
    wrong: tuple[tuple[Any, str], ...] = ()
    otherwise: str = ""
    because: str = ""

    @property
    def kind(self) -> Literal["choices", "cards", "several", "slider", "field"]:
        """How it is answered."""
        if self.several:
            return "several"
        return "choices" if self.choices else "cards" if self.cards else "slider" if self.slider else "field"


def label(choice: Any) -> str:
    """Return what stands on the button of a choice: a list without brackets.

    Example:
        >>> label([20, 3]), label([]), label(True)
        ('20, 3', 'none of them', 'Yes')

    """
    if isinstance(choice, bool):
        return "Yes" if choice else "No"
    if isinstance(choice, list):
        return ", ".join(map(str, choice)) or "none of them"
    return str(choice)


def question(about: str) -> Question:
    """Return the question of a section; an empty one if its chapter has none for it.

    Args:
        about: the chapter and the number of the section, e.g. "03.1".

    Raises:
        LookupError: there is no such chapter.
        QuestionError: its guesses.toml is not as it should be.

    Example:
        >>> question("03.1").kind
        'choices'

    """
    if not re.fullmatch(r"\d\d\.\d+", about):
        raise LookupError(f"there is no question {about!r}; a question is chapter and section, for example '03.1'")
    return questions_of(int(about[:2])).get(about, Question())


@cache
def questions_of(chapter: int) -> dict[str, Question]:
    """Return the questions of a chapter by name; none if it has no guesses.toml."""
    path = folder_of(chapter) / "guesses.toml"
    return read_questions(path) if path.exists() else {}


def read_questions(path: Path) -> dict[str, Question]:
    """Read a guesses.toml.

    Raises:
        QuestionError: it is not TOML, or a question has an entry that does not exist or is of the wrong type.

    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise QuestionError(f"{path.parent.name}/{path.name}: {error}") from None
    return {about: _read_question(row, f"{path.parent.name}/{path.name}: {about!r}") for about, row in table.items()}


def _read_question(row: dict[str, Any], where: str) -> Question:
    names = [field.name for field in fields(Question)]
    for name in row:
        if name not in names:
            raise QuestionError(f"{where} has {name!r}; a question can have {', '.join(names)}")
    if sum(name in row for name in ("choices", "cards", "several", "slider")) > 1:
        raise QuestionError(f"{where} can have only one of choices, cards, several and slider")
    if "slider" in row and len(row["slider"]) != 3:
        raise QuestionError(f"{where}: slider is the lowest value, the highest, and the step, for example [0, 1, 0.01]")
    for each in row.get("wrong", []):
        if len(each) != 2 or not isinstance(each[1], str) or not each[1].strip():
            raise QuestionError(f"{where}: each of wrong is a guess and a reason, for example [60, 'You expected …']")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    values["because"] = " ".join(row.get("because", "").split())
    values["wrong"] = tuple((guess, " ".join(reason.split())) for guess, reason in row.get("wrong", []))
    return Question(**values)
