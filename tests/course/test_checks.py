"""Every exercise of every chapter: its solution is right, each wrong answer is told why, a blank is not attempted."""

import ast
import importlib
import linecache
import pkgutil
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lessons.checks
from lessons.checks import Exercise, Wrong, ____

CHAPTERS = {
    found.name: importlib.import_module(f"lessons.checks.{found.name}")
    for found in pkgutil.iter_modules(lessons.checks.__path__)
}


def run_cell(code, names, cell="<cell>"):
    """Run a cell as a notebook does, and return what its last line shows."""
    linecache.cache[cell] = (len(code), None, code.splitlines(keepends=True), cell)
    *body, last = ast.parse(code).body
    exec(compile(ast.Module(body, []), cell, "exec"), names)
    return eval(compile(ast.Expression(last.value), cell, "eval"), names)


def global_hooks():
    stores = {name: value for name, value in vars(nn.modules.module).items() if name.startswith("_global_")}
    return {name: len(value) for name, value in stores.items() if isinstance(value, dict) and value}


def prove(exercise, chapter=None):
    """Run the solution, every wrong answer and a blank, each in a namespace like the notebook's."""

    def answer(code):
        public = {name: value for name, value in vars(chapter).items() if name[0] != "_"} if chapter else {}
        names = {"__name__": "__main__", "torch": torch, "nn": nn, "F": F, **public, exercise.name: exercise}
        exec(exercise.setup, names)
        names["____"] = ____
        return run_cell(code, names)

    feedback = answer(exercise.solution().code)
    assert feedback.outcome == "right", f"the solution is not accepted: {feedback!r}"
    for code, part in exercise.wrong.items():
        feedback = answer(code)
        assert feedback.outcome == "wrong", f"{feedback.outcome}, though it is a wrong answer:\n{code}"
        assert part in feedback.message, f"{part!r} is not in {feedback.message!r}, for\n{code}"
    feedback = answer(f"{exercise.name}.check(____)")
    assert feedback.outcome == "not attempted", f"a blank is {feedback!r}"
    assert not global_hooks()


def doubles(answer):
    received = []
    module = nn.Identity()
    module.register_forward_pre_hook(answer)
    module.register_forward_hook(lambda module, args, output: received.append(output))
    module(torch.tensor([1.0, 2.0]))
    if received[0].tolist() != [2, 4]:
        raise Wrong(f"[1, 2] arrived as {[round(value) for value in received[0].tolist()]}, not as [2, 4]")


RIGHT = "def double(module, args):\n    return (2 * args[0],)\n\nq9.check(double)\n"
NO_RETURN = "def double(module, args):\n    2 * args[0]\n\nq9.check(double)\n"
TRIPLE = "def double(module, args):\n    return (3 * args[0],)\n\nq9.check(double)\n"


def sample(**changes):
    declared = {
        "question": "Write a pre-hook `double` that doubles the input.",
        "difficulty": "easy",
        "minutes": 3,
        "check": doubles,
        "why": "what a pre-hook returns becomes the input of `forward`.",
        "hints": ("Look at what the pre-hook returns.", "Return a tuple: `(2 * args[0],)`."),
        "solution": RIGHT,
        "wrong": {NO_RETURN: "[1, 2] arrived as [1, 2]", TRIPLE: "as [3, 6]"},
    }
    return Exercise("09.1", **declared | changes)


EXERCISES = [("sample", sample(), None)] + [
    (f"{name}.{attribute}", value, chapter)
    for name, chapter in CHAPTERS.items()
    for attribute, value in vars(chapter).items()
    if isinstance(value, Exercise)
]


@pytest.mark.parametrize(("exercise", "chapter"), [e[1:] for e in EXERCISES], ids=[e[0] for e in EXERCISES])
def test_exercise(exercise, chapter):
    prove(exercise, chapter)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"check": lambda answer: None}, "though it is a wrong answer"),
        ({"check": lambda answer: Wrong("[1, 2] arrived as [1, 2], as [3, 6]")}, "the solution is not accepted"),
        ({"wrong": {NO_RETURN: "[1, 2] arrived as [1, 2]", TRIPLE: "as [1, 2]"}}, "is not in"),
        ({"wrong": {NO_RETURN: "arrived", RIGHT.replace("2 *", "2.0 *"): "arrived"}}, "though it is a wrong"),
        ({"wrong": {NO_RETURN: "arrived", TRIPLE.replace("3", "____"): "arrived"}}, "not attempted, though"),
        ({"solution": RIGHT.replace("2", "____")}, "not accepted: Not attempted"),
        ({"solution": RIGHT.replace("2", "two")}, "not accepted: Not yet. Line 2 of your double"),
    ],
)
def test_the_proof_fails_on_a_bad_exercise(changes, complaint):
    with pytest.raises(AssertionError, match=complaint):
        prove(sample(**changes))


def test_the_proof_sees_a_global_hook():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    with handle, pytest.raises(AssertionError, match="_global_forward_hooks"):
        prove(sample())


def test_names_and_numbers_are_the_declared_ones():
    for label, exercise, chapter in EXERCISES:
        if chapter:
            assert vars(chapter)[exercise.name] is exercise, f"{label} is called {exercise.name} in its solution"
    assert max(Counter(exercise.number for _, exercise, _ in EXERCISES[1:]).values(), default=1) == 1


def literal_problems(source):
    """Name what in the Exercise calls of a chapter cannot be read without running it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Exercise":
            for keyword in node.keywords:
                if keyword.arg in ("solution", "setup") and not isinstance(keyword.value, ast.Constant):
                    yield f"line {keyword.lineno}: {keyword.arg} is not a literal string"


def test_solutions_can_be_read_without_running_the_chapter():
    for chapter in CHAPTERS.values():
        assert isinstance(chapter, ModuleType)
        assert not [*literal_problems(Path(chapter.__file__).read_text(encoding="utf-8"))]
    assert [*literal_problems("q1 = Exercise('01.1',\n solution=dedent('x'))")] == [
        "line 2: solution is not a literal string"
    ]
    assert not [*literal_problems("q1 = Exercise('01.1', solution='''x''' 'y', check=_check)")]
