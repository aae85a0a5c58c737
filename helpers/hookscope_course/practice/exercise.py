"""One exercise: a question, a check that answers in words, hints in stages, and the solution."""

from __future__ import annotations

import io
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from inspect import signature

from hookscope_course.learner.progress import record_solved
from hookscope_course.practice.blank import Blank, cell_names_blank, cell_of, holds_blank
from hookscope_course.practice.check_options import allowed_by
from hookscope_course.practice.exercise_parser import ExerciseText
from hookscope_course.practice.feedback_card import HEADINGS, Card, CheckOutcome, Feedback, Solution, unwrap_lines


class Wrong(Exception):  # noqa: N818  # an answer, not an error
    """What a check raises or returns when the answer is not right: one sentence that says what happened.

    It says what the learner's code did, as in `Wrong("your hook returned None, so the input stayed [1, 2]")`.
    """


class Exercise:
    """A question with its check, its hints and its solution.

    Args:
        text: what is written about it, read from the chapter's exercises.md.
        check: called with what the learner passes to `.check`; returns None when that is right, and raises or
            returns `Wrong` when it is not. Whatever else is raised becomes feedback. It runs with gradients
            on, torch's CPU generator seeded to `seed`, warnings kept back; hooks it leaves are removed. It gets
            functions, hooks and classes guarded: an answer that is right, but changed what it was given or what
            all code shares, is refused, unless the check `allows` that.

    """

    seed = 0
    """What torch's CPU generator is seeded with while a check runs; where answers are graded, another each time."""

    def __init__(self, text: ExerciseText, check: Callable[..., Wrong | None]) -> None:
        self.text, self.number, self.name = text, text.number, text.name
        self._check, self._why, self._hints = check, unwrap_lines(text.why), tuple(map(unwrap_lines, text.hints))
        self._hints_given = 0
        self._seen_untouched = False
        self._last_hint: tuple[int | None, Card | None] = (None, None)

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
                with _isolate_check(self.seed), redirect_stdout(printed):
                    verdict = self._check_arguments(answers) or self._run_guarded_check(answers, caller.f_globals)
        except Wrong as wrong:
            verdict = wrong
        except (Exception, SystemExit) as error:
            verdict = self._explain_call_mistake(answers) or Wrong(_explain_error(error, caller.f_globals))
        if blank or Blank.uses != uses:
            todo = f"replace ____ with your own code and run the cell again; `{self.name}.hint()` helps."
            return _make_feedback("not attempted", todo)
        if verdict is None:
            trouble = record_solved(self.number)
            return _make_feedback("right", f"{self._why}\n{trouble}" if trouble else self._why, printed)
        if not isinstance(verdict, Wrong):
            raise TypeError(f"the check of exercise {self.number} returned {verdict!r}, not None or Wrong(…)")
        if self.text.is_bug and cell_of(caller).strip() == self.text.starter.strip():
            return _make_feedback("not attempted", self._describe_untouched_bug(verdict), printed)
        return _make_feedback("wrong", str(verdict), printed)

    def hint(self) -> Card:
        """Give the next hint; the last one is repeated."""
        asked, total = self._hints_given, len(self._hints)
        self._hints_given += 1
        if asked < total:
            given = Card(f"Hint {asked + 1} of {total}.", self._hints[asked])
        else:
            there_is = f"There is no further hint; `{self.name}.solution()` shows the solution."
            given = Card(f"Hint {total} of {total}, again.", f"{self._hints[-1]}\n{there_is}")
        self._last_hint = _count_cells(), given
        return given

    def solution(self) -> Solution:
        """Show the code of a solution, below the hint if the same cell asks for one."""
        run, given = self._last_hint
        return Solution(self.text.solution, given if run is not None and run == _count_cells() else None)

    def _describe_untouched_bug(self, verdict: Wrong) -> str:
        """What is said of a bug that nobody has changed yet: what it does wrong only when it is run again."""
        if self._seen_untouched:
            return f"this is still the code as you found it. What goes wrong in it: {verdict}"
        self._seen_untouched = True
        find = "this is the code as you found it. Find what is wrong with it and change it"
        return f"{find}; `{self.name}.hint()` helps. If you run it once more, you are told what goes wrong."

    def _check_arguments(self, answers: tuple[object, ...]) -> Wrong | None:
        try:
            signature(self._check).bind(*answers)
        except TypeError:
            return Wrong(f"call this check as `{self.text.call}`; it got {len(answers)} answers")
        return None

    def _explain_call_mistake(self, answers: tuple[object, ...]) -> Wrong | None:
        """Tell whoever wrote q1.check(f(x)) for q1.check(f); asked when the check stumbled over the answer."""
        for name, answer in zip(self.text.defines, answers, strict=False):
            if name and not callable(answer):
                what = "None" if answer is None else f"an object of type {type(answer).__name__}"
            elif name and (inner := _find_inner_name(name, answer)):
                what = f"`{inner}`, which `{name}` returned"
            else:
                continue
            return Wrong(
                f"write `{self.text.call}`: the check needs `{name}` itself, with no parentheses after it, "
                f"and calls it for you; it got {what}"
            )
        return None

    def _run_guarded_check(self, answers: tuple[object, ...], learner_globals: Mapping[str, object]) -> Wrong | None:
        """Let the check judge the answers; one that it would accept must not have changed what is not its own."""
        from hookscope_course.practice.side_effects import (
            Guard,
        )  # here, since the builder reads exercises without torch

        guard = Guard(allowed_by(self._check))
        try:
            verdict = self._check(*map(guard.guard, answers))
        except Wrong as wrong:
            return wrong
        except Exception as error:
            # What the check itself stumbles over may follow from what the answer changed.
            if guard.found and _find_line(error, learner_globals) is None:
                return Wrong(guard.found)
            raise
        return Wrong(guard.found) if verdict is None and guard.found else verdict

    def __repr__(self) -> str:
        text = self.text
        ways = f"`{text.call}` checks your answer, `{self.name}.hint()` gives a hint ({len(text.hints)}), "
        return f"**{text.heading}**\n\n{text.question}\n\n{ways}`{self.name}.solution()` shows the solution."

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/markdown": repr(self)}


def _count_cells() -> int | None:
    """How many cells have run, with this one; None outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return None if shell is None else int(shell.execution_count)


_ADVICE = {
    "Boolean value of Tensor with more than one value": (
        "`if` needs a single True or False, but it got a tensor with one for each number; use `.any()` or `.all()` to "
        "combine them"
    ),
    "expected Variable, but hook returned": "a tensor hook returns a tensor, or None to keep the gradient",
    "an invalid number of grad_input": "return a tuple with as many entries as `grad_input` has",
}
"""What helps, by the words of torch's error."""


def _make_feedback(outcome: CheckOutcome, message: str, printed: io.StringIO | None = None) -> Feedback:
    return Feedback(HEADINGS[outcome], message, outcome, printed.getvalue().rstrip("\n") if printed else "")


@contextmanager
def _isolate_check(seed: int) -> Iterator[None]:
    """Run a check so that it leaves no hook, warning, random number or grad mode behind."""
    import random

    import numpy as np
    import torch  # here, since the builder reads exercises and needs no torch

    from hookscope.censuses.census import removing_new_hooks

    numpy_state, python_state, dtype = np.random.get_state(), random.getstate(), torch.get_default_dtype()
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            warnings.catch_warnings(record=True),  # a warning would land under the cell, from code not in it
            removing_new_hooks(),
        ):
            warnings.simplefilter("always")
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        torch.set_default_dtype(dtype)


def _explain_error(error: BaseException, learner_globals: Mapping[str, object]) -> str:
    """Say what was raised, and in which line of the code that shares the learner's globals."""
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error))
    except Exception:  # the learner's own exception class
        text = ""
    text = re.sub(r"[\w.]+\.<locals>\.", "", text)
    text = f": {text[:600]}{'…' if len(text) > 600 else ''}" if text else ""
    line, kind = _find_line(error, learner_globals), type(error).__name__
    if isinstance(error, TypeError) and re.search(r": (Module|Tensor)\.register_\w+\(\) takes ", text):
        return (
            f"{line or 'your code'} calls torch with too many arguments; "
            f"name the options, such as `prepend=True` ({kind}{text})"
        )
    if line is None and isinstance(error, TypeError) and re.search(r"\(\) (missing|takes|got) ", text):
        return (
            f"your function does not take the arguments that it was called with ({kind}{text}); "
            "give it a parameter for each argument, as the exercise or torch passes them"
        )
    advice = next((f"; {advice}" for part, advice in _ADVICE.items() if part in text), "")
    return f"{line or 'checking your answer'} raised {kind}{text.rstrip('.') if advice else text}{advice}"


def _find_inner_name(name: str, answer: object) -> str:
    """Name the function that calling `name` has made, if the answer is one: it was called and should be handed over."""
    outer, _, inner = getattr(answer, "__qualname__", "").rpartition(".<locals>.")
    return "a lambda" if inner == "<lambda>" and outer == name else inner if outer == name else ""


def _find_line(error: BaseException, learner_globals: Mapping[str, object]) -> str | None:
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        code = frame.f_code
        if frame.f_globals is learner_globals and (code.co_name == "<lambda>" or not code.co_name.startswith("<")):
            name = code.co_qualname.rpartition("<locals>.")[2].strip("<>")
            head, source = (linecache.getline(code.co_filename, at) for at in (code.co_firstlineno, line))
            is_definition = ("lambda" if name == "lambda" else f"def {name.rpartition('.')[2]}(") in head
            quote = f" (`{source.strip()}`)" if is_definition and source.strip() else ""
            return f"line {line - code.co_firstlineno + 1} of your {name}{quote}"
    return None
