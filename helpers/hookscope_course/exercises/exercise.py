r"""One exercise: a question, a check that answers in words, hints in stages, and the solution.

A chapter declares its exercises in `lessons/checks/<chapter>.py`, each in one place:

    q1 = Exercise(
        "01.1",
        question="…", difficulty="easy", minutes=3,
        check=_check,  # returns None when the answer is right, raises or returns Wrong("why it is not")
        why="One sentence of why the answer is right.",
        hints=("…", "…"),
        solution='''exactly the cell a learner would run, ending in q1.check(…)\n''',
        wrong={'''another such cell\n''': "part of the message it gets", …},  # two or more
        setup='''what the notebook has defined before, if the cells need it\n''',
    )

`solution` is a literal string: `lessons/build.py` reads it without running the module.
`tests/test_checks.py` runs every solution and every wrong answer of every chapter.
"""

from __future__ import annotations

import ast
import html
import io
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from inspect import signature
from typing import Literal, get_args

import torch

from lessons.checks.blank import Blank, cell_names_blank, holds_blank

Difficulty = Literal["easy", "medium", "hard"]
Outcome = Literal["not attempted", "wrong", "right"]


class Wrong(Exception):  # noqa: N818  # an answer, not an error
    """What a check raises or returns when the answer is not right: one sentence that says what happened.

    It says what the learner's code did, as in `Wrong("your hook returned None, so the input stayed [1, 2]")`.
    """


@dataclass(frozen=True, repr=False)
class Card:
    """A short message under a cell: words and a sign, as plain text and as HTML; never by colour alone."""

    heading: str
    message: str
    kind: Literal["note", "not attempted", "wrong", "right"] = "note"
    printed: str = ""

    def _sentence(self) -> str:
        # A word of code keeps its case.
        starts = self.heading.endswith(".") and re.match(r"[a-z]+\b(?![_.(])", self.message)
        return self.message[:1].upper() + self.message[1:] if starts else self.message

    def __repr__(self) -> str:
        text = f"{self.heading} {self._sentence()}"
        return f"{text}\nPrinted while checking:\n{self.printed}" if self.printed else text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        sign, border = _LOOKS[self.kind]
        printed = f"<pre>Printed while checking:\n{html.escape(self.printed)}</pre>" if self.printed else ""
        return {
            "text/plain": repr(self),
            "text/html": f'<div role="status" style="border-left: 4px {border}; padding: 0.2em 0.8em">'
            f'<strong><span aria-hidden="true">{sign}</span> {_markup(self.heading)}</strong> '
            f"{_markup(self._sentence())}{printed}</div>",
        }


# The colours have a contrast of 3:1 or more on a white page and on a nearly black one.
_LOOKS = {
    "note": ("ℹ", "solid #3b7dd8"),
    "not attempted": ("…", "dotted #808080"),
    "wrong": ("✗", "dashed #d1495b"),
    "right": ("✓", "solid #2e8b57"),
}


class Feedback(Card):
    """What `check` answers: its `outcome`, a `message`, and what the learner's code `printed` meanwhile."""

    @property
    def outcome(self) -> Outcome:
        """Return "right", "wrong" or, with a blank still in the answer, "not attempted"."""
        assert self.kind != "note"
        return self.kind


@dataclass(frozen=True, repr=False)
class Solution:
    """The solution's code: plain text to copy, and a highlighted block where Markdown is shown."""

    code: str

    def __repr__(self) -> str:
        return self.code.rstrip("\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", self.code)), default=0))
        return {"text/plain": repr(self), "text/markdown": f"{fence}python\n{self!r}\n{fence}"}


class Exercise:
    """A question with its check, its hints and its solution, declared as the module's docstring shows.

    Args:
        number: chapter and place, as in "01.1".
        question: what to do, in a sentence or two. `code` in backticks is set as code, and so are lines between
            two lines of three backticks. Lines of prose are one paragraph however they are wrapped; a blank line
            begins a new one, and "A: …", "1. …" or "- …" an item on a line of its own.
        difficulty: "easy", "medium" or "hard".
        minutes: how long it takes.
        check: called with what the learner passes to `.check`; returns None when that is right, and raises or
            returns `Wrong` when it is not. Whatever else is raised becomes feedback. It runs with gradients
            on, torch's CPU generator seeded to 0, warnings kept back; hooks it leaves are removed.
        why: one sentence that says why a right answer is right.
        hints: from a nudge to nearly the answer; wrapped as you like, and so is `why`.
        solution: the code of a cell that solves it and ends in `<name>.check(…)`.
        wrong: code of cells that make a likely mistake -> part of the message each must get; two or more.
        setup: code that defines what these cells find in the notebook.

    Raises:
        ValueError: something is missing, or a cell does not end in `<name>.check(…)`.

    """

    def __init__(
        self,
        number: str,
        *,
        question: str,
        difficulty: Difficulty,
        minutes: int,
        check: Callable[..., Wrong | None],
        why: str,
        hints: Sequence[str],
        solution: str,
        wrong: Mapping[str, str],
        setup: str = "",
    ) -> None:
        self.number, self.question, self.difficulty, self.minutes = number, _unwrapped(question), difficulty, minutes
        self.why, self.wrong, self.setup = _unwrapped(why), dict(wrong), setup
        self.hints = tuple(map(_unwrapped, (hints,) if isinstance(hints, str) else hints))
        self._check, self._solution, self._hints_given = check, Solution(solution), 0
        self.name, self._call = _closing_call(solution, f"the solution of exercise {number}")
        self._refuse_gaps()

    def _refuse_gaps(self) -> None:
        """Raise what is wrong with the declaration itself."""
        here = f"exercise {self.number} ({self.name})"
        if not self.question.strip() or not self.why.strip():
            raise ValueError(f"{here} needs a question, and a why that is shown with a right answer")
        if self.difficulty not in get_args(Difficulty) or self.minutes <= 0:
            raise ValueError(f"{here} needs a difficulty of {get_args(Difficulty)} and minutes above 0")
        if not self.hints or not all(hint.strip() for hint in self.hints):
            raise ValueError(f"{here} needs a hint or more, such as hints=('a nudge', 'nearly the answer')")
        if len(self.wrong) < 2 or not all(part.strip() for part in self.wrong.values()):
            raise ValueError(f"{here} needs two or more wrong answers, each with part of the message it gets")
        for code in self.wrong:
            name, _ = _closing_call(code, f"a wrong answer of {here}")
            if name != self.name:
                raise ValueError(f"a wrong answer of {here} calls {name}.check, not {self.name}.check")

    def check(self, *answers: object) -> Feedback:
        """Say whether an answer is right, and what it does when it is not.

        Args:
            answers: what the question asks for: a function, a value, a model; usually one.

        Returns:
            Feedback, also when the answer's code raises (only KeyboardInterrupt passes through).

        """
        caller = sys._getframe(1)
        printed = io.StringIO()
        verdict: Wrong | None = None
        blank, uses = False, Blank.uses
        try:
            blank = not answers or cell_names_blank(caller) or any(map(holds_blank, answers))
            if not blank:
                with _undisturbed(), redirect_stdout(printed):
                    verdict = self._misfit(answers) or self._check(*answers)
        except Wrong as wrong:
            verdict = wrong
        except (Exception, SystemExit) as error:
            verdict = Wrong(_explain(error, caller.f_globals))
        if blank or Blank.uses != uses:
            todo = f"replace ____ with your own code and run the cell again; `{self.name}.hint()` helps."
            return _feedback("not attempted", todo)
        if verdict is None:
            return _feedback("right", self.why, printed)
        if not isinstance(verdict, Wrong):
            raise TypeError(f"the check of exercise {self.number} returned {verdict!r}, not None or Wrong(…)")
        return _feedback("wrong", str(verdict), printed)

    def hint(self) -> Card:
        """Give the next hint; the last one is repeated."""
        asked, total = self._hints_given, len(self.hints)
        self._hints_given += 1
        if asked < total:
            return Card(f"Hint {asked + 1} of {total}.", self.hints[asked])
        there_is = f"There is no further hint; `{self.name}.solution()` shows the solution."
        return Card(f"Hint {total} of {total}, again.", f"{self.hints[-1]}\n{there_is}")

    def solution(self) -> Solution:
        """Show the code of a solution."""
        return self._solution

    def _misfit(self, answers: tuple[object, ...]) -> Wrong | None:
        try:
            signature(self._check).bind(*answers)
        except TypeError:
            return Wrong(f"this check is called as `{self._call}`; it got {len(answers)} answers")
        return None

    def _card(self) -> Card:
        ways = f"`{self._call}` checks your answer, `{self.name}.hint()` gives a hint ({len(self.hints)}), "
        return Card(
            f"Exercise {self.number} ({self.difficulty}, {self.minutes} min).",
            f"{self.question}\n{ways}`{self.name}.solution()` shows the solution.",
        )

    def __repr__(self) -> str:
        return repr(self._card())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._card()._repr_mimebundle_()


def _feedback(outcome: Outcome, message: str, printed: io.StringIO | None = None) -> Feedback:
    heading = {"not attempted": "Not attempted:", "wrong": "Not yet.", "right": "Right."}[outcome]
    return Feedback(heading, message, outcome, printed.getvalue().rstrip("\n") if printed else "")


def _closing_call(code: str, what: str) -> tuple[str, str]:
    """Return `q1` and `q1.check(…)` from the last line of a cell; an answer given as a value is not given away."""
    try:
        last = ast.parse(code).body[-1:]
    except SyntaxError as error:
        raise ValueError(f"{what} is not Python: {error}") from error
    match last:
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "check"), answers))]:
            shown = [answer.id if isinstance(answer, ast.Name) else "____" for answer in answers]
            return name, f"{name}.check({', '.join(shown)})"
    raise ValueError(f"{what} must end in <name>.check(…), so that the cell shows what the check says")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run a check so that it leaves no hook, warning, random number or grad mode behind."""
    from hookscope.censuses.census import removing_new_hooks

    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
        warnings.catch_warnings(record=True),  # a warning would land under the cell, from code not in it
        removing_new_hooks(),
    ):
        warnings.simplefilter("always")
        torch.default_generator.manual_seed(0)
        yield


def _explain(error: BaseException, home: Mapping[str, object]) -> str:
    """Say what was raised, and in which line of the code that shares the learner's globals."""
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error))
    except Exception:  # the learner's own exception class
        text = ""
    raised = f"raised {type(error).__name__}: {text[:600]}{'…' if len(text) > 600 else ''}"
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        code = frame.f_code
        if frame.f_globals is home and (code.co_name == "<lambda>" or not code.co_name.startswith("<")):
            name = code.co_qualname.rpartition("<locals>.")[2].strip("<>")
            head, source = (linecache.getline(code.co_filename, at) for at in (code.co_firstlineno, line))
            here = ("lambda" if name == "lambda" else f"def {name.rpartition('.')[2]}(") in head
            quote = f" (`{source.strip()}`)" if here and source.strip() else ""
            return f"line {line - code.co_firstlineno + 1} of your {name}{quote} {raised}"
    return f"checking your answer {raised}"


_CODE_BLOCK = r"\n?```\n(.*?)\n```\n?"


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph; code blocks, items and paragraphs stay apart."""
    parts = re.split(_CODE_BLOCK, text.strip("\n"), flags=re.DOTALL)
    for at, part in enumerate(parts):
        joined = re.sub(r"(?<!\n)\n(?!\n|[ \t]*(?:[-*•]|[A-Z][:)]|\d+[.)])[ \t])[ \t]*", " ", part)
        parts[at] = f"\n```\n{part}\n```\n" if at % 2 else joined
    return "".join(parts).strip("\n")


def _markup(text: str) -> str:
    words_and_blocks = re.split(_CODE_BLOCK, html.escape(text), flags=re.DOTALL)
    for at, part in enumerate(words_and_blocks):
        if at % 2:
            words_and_blocks[at] = f"<pre><code>{part}</code></pre>"
        else:
            words_and_blocks[at] = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", part).replace("\n", "<br>")
    return "".join(words_and_blocks)
