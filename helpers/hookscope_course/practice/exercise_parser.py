r"""Read exercises.md: what a person reads of an exercise, its question, hints, solution, and wrong answers.

    ## q1 · easy · 3 minutes

    The question, in Markdown.

    ### Starter

    (a python fence: the cell a learner begins with, ending in q1.check(…))

    ### Hints

    1. A nudge.
    2. Nearly the answer.

    ### Solution

    (a python fence: exactly the cell a learner would run)

    ### Why

    One sentence that is shown with a right answer.

    ### Wrong answers

    (a python fence: another such cell, and below it, as a quotation, part of the message that it must get)

There are two wrong answers or more. `### Right answers`, with fences only, has cells in other styles that must be
accepted as well. `### Before`, if the cells need it, is a fence with what the notebook has defined by then. `### Bug`
in place of `### Starter` is a starter and a wrong answer in one: a fence and a quotation. `### Lab bug` is the same,
but in the notebook it stands without cells for hint and solution.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

__all__ = ["ExerciseText", "ExerciseTextError", "closing_call", "parse_exercises", "read_exercises"]

DIFFICULTIES = ("easy", "medium", "hard")
_TITLE = re.compile(
    r"(?P<name>[a-z]\w*) · (?P<difficulty>\w+) · (?P<minutes>\d+) minutes?( · (?P<holds_for>torch\S+))?"
)


class ExerciseTextError(ValueError):
    """What is missing in an exercise's text, or in the wrong place; the message starts with file:line."""


@dataclass(frozen=True)
class ExerciseText:
    """What is written about one exercise.

    Attributes:
        location: file and line of its heading, as editors and terminals link it.
        number: chapter and position, as in "01.1".
        name: what it is called in the notebook, as in "q1".
        difficulty: "easy", "medium" or "hard".
        minutes: how long it takes.
        question: what to do, in Markdown.
        starter: the cell a learner begins with.
        is_bug: whether that cell is a bug to fix, and the first of the wrong answers.
        in_lab: whether it stands without cells for hint and solution.
        before: code that defines what the cells find in the notebook.
        hints: from a nudge to nearly the answer.
        solution: the code of a cell that solves it and ends in `<name>.check(…)`.
        why: one sentence that says why a right answer is right.
        wrong: code of cells that make a likely mistake, and part of the message each must get.
        right: code of cells in other styles that solve it as well.
        holds_for: the torch on which the first cell shows what it shows, as in "torch>=2.15"; empty for all.

    """

    location: str
    number: str
    name: str
    difficulty: str
    minutes: int
    question: str
    starter: str
    is_bug: bool
    in_lab: bool
    before: str
    hints: tuple[str, ...]
    solution: str
    why: str
    wrong: tuple[tuple[str, str], ...]
    right: tuple[str, ...] = ()
    holds_for: str = ""

    @property
    def heading(self) -> str:
        """The line above the question: number, difficulty, minutes."""
        return f"Exercise {self.number} · {self.difficulty} · {self.minutes} minute{'s' * (self.minutes != 1)}"

    @property
    def call(self) -> str:
        """How the solution asks for its check, with answers that are values left out."""
        return closing_call(self.solution)[1]

    @property
    def defines(self) -> tuple[str, ...]:
        """For each answer the name of the function or class that it has to be; empty where it is a value."""
        *body, last = ast.parse(self.solution).body
        made = [each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        answers = last.value.args if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else []
        return tuple(each.id if isinstance(each, ast.Name) and each.id in made else "" for each in answers)


def read_exercises(path: Path) -> tuple[ExerciseText, ...]:
    """Read the exercises of a chapter.

    Args:
        path: its exercises.md; the folder's name starts with the chapter's number.

    Raises:
        ExerciseTextError: an exercise lacks a question, a starter, a hint, a solution, a reason or two wrong answers,
            or has a section that is none of these; names file and line.

    Example:
        >>> from hookscope_course.lessons import folder_of
        >>> first = read_exercises(folder_of(2) / "exercises.md")[0]
        >>> first.number, first.name, first.difficulty
        ('02.1', 'q1', 'easy')

    """
    return parse_exercises(path.read_text(encoding="utf-8"), path)


@cache
def parse_exercises(text: str, path: Path) -> tuple[ExerciseText, ...]:
    """Do what `read_exercises` does with text that is there already; `path` says where it is from."""
    page = _Page(text, path)
    found = [_read_exercise(page, number, part) for number, part in enumerate(page.parts("h2"), start=1)]
    for number, one in enumerate(found):
        if any(one.name == other.name for other in found[:number]):
            raise ExerciseTextError(f"{one.location}: there is a {one.name} above already")
    return tuple(found)


def closing_call(code: str) -> tuple[str, str]:
    r"""Return `q1` and `q1.check(…)` from the last line of a cell; an answer given as a value is not given away.

    Raises:
        ValueError: it is not Python, or does not end so.

    Example:
        >>> closing_call("def double(x):\n    return 2 * x\n\nq1.check(double)")
        ('q1', 'q1.check(double)')
        >>> closing_call("q2.check(42)")
        ('q2', 'q2.check(____)')

    """
    match ast.parse(code).body[-1:]:  # a SyntaxError is a ValueError's sibling, and has its own words
        case [ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "check"), answers))]:
            shown = [answer.id if isinstance(answer, ast.Name) else "____" for answer in answers]
            return name, f"{name}.check({', '.join(shown)})"
    raise ValueError("must end in <name>.check(…), so that the cell shows what the check says")


class _Page:
    """A Markdown page, its lines, and where they are."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.lines = text.splitlines()
        self.nodes = SyntaxTreeNode(MarkdownIt().parse(text)).children

    def parts(self, level: str) -> list[list[SyntaxTreeNode]]:
        """Cut the page at its headings of a level; what is above the first is dropped."""
        return [*_split_at_headings(self.nodes, level)][1:]

    def source(self, nodes: list[SyntaxTreeNode]) -> str:
        """The text of some nodes that follow each other, as it is written."""
        spans = [node.map for node in nodes if node.map]
        return "\n".join(self.lines[spans[0][0] : spans[-1][1]]).strip("\n") if spans else ""

    def location(self, node: SyntaxTreeNode) -> str:
        """`lessons/02_call_order/exercises.md:12`, as editors and terminals link it."""
        line = node.map[0] + 1 if node.map else 1
        return f"{'/'.join(self.path.parts[-3:])}:{line}"

    def refuse(self, node: SyntaxTreeNode, why: str) -> NoReturn:
        """Raise what is wrong at a node."""
        raise ExerciseTextError(f"{self.location(node)}: {why}")


def _split_at_headings(nodes: list[SyntaxTreeNode], level: str) -> Iterator[list[SyntaxTreeNode]]:
    part: list[SyntaxTreeNode] = []
    for node in nodes:
        if node.type == "heading" and node.tag == level:
            yield part
            part = []
        part.append(node)
    yield part


def _read_exercise(page: _Page, number: int, nodes: list[SyntaxTreeNode]) -> ExerciseText:
    """Read one exercise: its heading, the question, and its sections."""
    heading, *question = next(_split_at_headings(nodes, "h3"))
    title = _TITLE.fullmatch(heading.children[0].content)
    if title is None or title["difficulty"] not in DIFFICULTIES or not int(title["minutes"]):
        page.refuse(heading, f"an exercise begins with '## q1 · easy · 3 minutes'; easy may be {DIFFICULTIES}")
    name = title["name"]
    sections: dict[str, list[SyntaxTreeNode]] = {}
    for section in [*_split_at_headings(nodes, "h3")][1:]:
        caption = section[0].children[0].content
        if caption not in _SECTIONS or caption in sections:
            page.refuse(section[0], f"{name} has a section '{caption}'; there are, once each: {', '.join(_SECTIONS)}")
        sections[caption] = section

    def body(caption: str) -> list[SyntaxTreeNode]:
        if caption not in sections:
            page.refuse(heading, f"{name} needs '### {caption}'")
        return sections[caption][1:]

    def one_fence(caption: str) -> str:
        fences = [node for node in body(caption) if node.type == "fence"]
        if len(fences) != 1:
            page.refuse(sections[caption][0], f"'{caption}' of {name} needs one python fence")
        return _read_code(page, fences[0])

    if not question:
        page.refuse(heading, f"{name} needs a question below its heading")
    why = page.source(body("Why"))
    hints = [node for node in body("Hints") if node.type == "ordered_list"]
    if not why:
        page.refuse(sections["Why"][0], f"{name} needs a sentence that is shown with a right answer")
    if len(hints) != 1:
        page.refuse(sections["Hints"][0], f"{name} needs hints as a numbered list, from a nudge to nearly the answer")
    beginning = next((caption for caption in ("Bug", "Lab bug") if caption in sections), "Starter")
    is_bug = beginning != "Starter"
    title_of_wrong, *answers = sections.get("Wrong answers", [heading])
    wrong = _read_wrong_answers(page, name, [*(body(beginning) if is_bug else ()), *answers])
    if len(wrong) < 2:
        page.refuse(title_of_wrong, f"{name} needs two or more wrong answers, each with part of the message it gets")
    solution = one_fence("Solution")
    _refuse_other_call(page, sections["Solution"][0], f"the solution of {name}", name, solution)
    chapter = page.path.parent.name[:2]
    return ExerciseText(
        location=page.location(heading),
        number=f"{chapter}.{number}",
        name=name,
        difficulty=title["difficulty"],
        minutes=int(title["minutes"]),
        question=page.source(question),
        starter=one_fence(beginning),
        is_bug=is_bug,
        in_lab=beginning == "Lab bug",
        before=one_fence("Before") if "Before" in sections else "",
        hints=tuple(_read_item(page, item) for item in hints[0].children),
        solution=solution,
        why=why,
        wrong=wrong,
        right=_read_right_answers(page, name, body("Right answers") if "Right answers" in sections else []),
        holds_for=title["holds_for"] or "",
    )


_SECTIONS = ("Starter", "Bug", "Lab bug", "Before", "Hints", "Solution", "Right answers", "Why", "Wrong answers")


def _read_right_answers(page: _Page, name: str, nodes: list[SyntaxTreeNode]) -> tuple[str, ...]:
    for node in nodes:
        if node.type != "fence":
            page.refuse(node, f"a right answer of {name} is a fence, with no text around it")
        _refuse_other_call(page, node, f"a right answer of {name}", name, _read_code(page, node))
    return tuple(_read_code(page, node) for node in nodes)


def _read_wrong_answers(page: _Page, name: str, nodes: list[SyntaxTreeNode]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    code: SyntaxTreeNode | None = None
    for node in nodes:
        if node.type == "fence" and code is None:
            code = node
        elif node.type == "blockquote" and code is not None:
            _refuse_other_call(page, code, f"a wrong answer of {name}", name, _read_code(page, code))
            said = re.sub(r"^ *> ?", "", page.source([node]), flags=re.MULTILINE)
            found.append((_read_code(page, code), said))
            code = None
        else:
            page.refuse(node, f"a wrong answer of {name} is a fence with a quotation of what it gets below")
    if code is not None:
        page.refuse(code, f"below this wrong answer of {name} a quotation is missing: part of the message it gets")
    return tuple(found)


def _refuse_other_call(page: _Page, node: SyntaxTreeNode, what: str, name: str, code: str) -> None:
    try:
        called, _ = closing_call(code)
    except SyntaxError as error:
        page.refuse(node, f"{what} is not Python: {error.msg}")
    except ValueError as error:
        page.refuse(node, f"{what} {error}")
    if called != name:
        page.refuse(node, f"{what} calls {called}.check, not {name}.check")


def _read_code(page: _Page, fence: SyntaxTreeNode) -> str:
    if not fence.content.strip():
        page.refuse(fence, "this fence is empty")
    return fence.content


def _read_item(page: _Page, item: SyntaxTreeNode) -> str:
    """The text of a list's item, without its number and its indentation."""
    text = page.source([item])
    marker = re.match(r" *\d+[.)] +", text)
    width = len(marker[0]) if marker else 0
    rest = [line[width:] if not line[:width].strip() else line for line in text.splitlines()[1:]]
    return "\n".join([text.splitlines()[0][width:], *rest])
