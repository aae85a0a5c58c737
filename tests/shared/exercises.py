"""A small exercise, and the proof that every exercise has to pass."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hookscope_course import Exercise, Feedback, Wrong, ____
from hookscope_course.practice.exercise_parser import parse_exercises

SAMPLE_PATH = Path("lessons/09_small/exercises.md")
SAMPLE = """# Exercises of a small chapter

## q9 · easy · 3 minutes

Write a pre-hook `double` that doubles the input.

### Starter

```python
def double(module, args):
    ____

q9.check(double)
```

### Hints

1. Look at what the pre-hook returns.
2. Return a tuple: `(2 * args[0],)`.

### Solution

```python
def double(module, args):
    return (2 * args[0],)

q9.check(double)
```

### Why

what a pre-hook returns becomes the input of `forward`.

### Wrong answers

```python
def double(module, args):
    2 * args[0]

q9.check(double)
```

> [1, 2] arrived as [1, 2]

```python
def double(module, args):
    return (3 * args[0],)

q9.check(double)
```

> as [3, 6]
"""
(TEXT,) = parse_exercises(SAMPLE, SAMPLE_PATH)
RIGHT = TEXT.solution
NO_RETURN, TRIPLE = (code for code, _ in TEXT.wrong)


def check_doubles(answer: Callable[..., Any]) -> None:
    """Check the exercise of the sample."""
    received: list[torch.Tensor] = []
    module = nn.Identity()
    module.register_forward_pre_hook(answer)
    module.register_forward_hook(lambda module, args, output: received.append(output))
    module(torch.tensor([1.0, 2.0]))
    if received[0].tolist() != [2, 4]:
        raise Wrong(f"[1, 2] arrived as {[round(value) for value in received[0].tolist()]}, not as [2, 4]")


def make_sample(check: Callable[..., Any] = check_doubles, **changes: Any) -> Exercise:
    """The exercise of the sample, with another check or with other texts."""
    return Exercise(replace(TEXT, **changes), check)


def run_cell(code: str, names: dict[str, Any], cell: str = "<cell>") -> Feedback:
    """Run a cell as a notebook does, and return what its last line shows."""
    linecache.cache[cell] = (len(code), None, code.splitlines(keepends=True), cell)
    *body, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), cell, "exec"), names)
    shown: Feedback = eval(compile(ast.Expression(last.value), cell, "eval"), names)
    return shown


def list_global_hooks() -> dict[str, int]:
    """Count the hooks on all modules."""
    stores = {name: value for name, value in vars(nn.modules.module).items() if name.startswith("_global_")}
    return {name: len(value) for name, value in stores.items() if isinstance(value, dict) and value}


def run_answer(exercise: Exercise, code: str) -> Feedback:
    """Run an answer in a namespace like the notebook's."""
    names = {"__name__": "__main__", "torch": torch, "nn": nn, "F": F, exercise.name: exercise}
    exec(exercise.text.before, names)
    names["____"] = ____
    return run_cell(code, names)


def run_submission(exercise: Exercise) -> list[Any]:
    """Return what the solution of an exercise hands to its check."""
    handed: list[Any] = []

    class Taker:
        def check(self, *answers: Any) -> None:
            handed.extend(answers)

    names = {"__name__": "__main__", "torch": torch, exercise.name: Taker()}
    exec(exercise.text.before, names)
    exec(exercise.text.solution, names)
    return handed


def prove(exercise: Exercise) -> None:
    """Run the solution, every right and wrong answer and a blank."""
    answer = partial(run_answer, exercise)
    feedback = answer(exercise.text.solution)
    assert feedback.outcome == "right", f"the solution is not accepted: {feedback!r}"
    for code in exercise.text.right:
        feedback = answer(code)
        assert feedback.outcome == "right", f"a right answer is not accepted: {feedback!r}, for\n{code}"
    for code, part in exercise.text.wrong:
        feedback = answer(code)
        unchanged = exercise.text.is_bug and code.strip() == exercise.text.starter.strip()
        expected = "not attempted" if unchanged else "wrong"
        if unchanged:  # what goes wrong is said at the second run
            feedback = answer(code)
        assert feedback.outcome == expected, f"{feedback.outcome}, though it is a wrong answer:\n{code}"
        assert part in feedback.message, f"{part!r} is not in {feedback.message!r}, for\n{code}"
    feedback = answer(f"{exercise.name}.check(____)")
    assert feedback.outcome == "not attempted", f"a blank is {feedback!r}"
    assert not list_global_hooks(), list_global_hooks()


def make_exercise(check: Callable[..., Any] = lambda answer: None, **changes: Any) -> Exercise:
    """An exercise that accepts every answer, or has another check."""
    return make_sample(check, **changes)


def check_outcome(answer: object) -> str:
    """What is said of an answer as far as blanks go."""
    return make_exercise().check(answer).outcome


def call_check(answer: Callable[..., Any]) -> None:
    """Call the answer as a pre-hook."""
    answer(nn.Identity(), (1,))


def ask_check(code: str, check: Callable[..., Any] = call_check, **names: Any) -> Feedback:
    """Run a learner's cell that ends in q9.check(…)."""
    return run_cell(code, {"__name__": "__main__", "torch": torch, "____": ____, "q9": make_exercise(check), **names})
