"""exercises.md: what is read in it, and that a gap is refused with file and line."""

import re

import pytest

from hookscope_course import Exercise, exercises
from hookscope_course.practice import chapter_exercises
from hookscope_course.practice.exercise_parser import ExerciseTextError, parse_exercises
from tests.shared.exercises import NO_RETURN, RIGHT, SAMPLE, SAMPLE_PATH, TEXT, TRIPLE

SECOND = SAMPLE[SAMPLE.index("## q9") :].replace("3 minutes", "4 minutes")


def line_of(text, part):
    """The line of `part`, from 1."""
    return text[: text.index(part)].count("\n") + 1


def test_what_is_read():
    assert (TEXT.number, TEXT.name, TEXT.difficulty, TEXT.minutes) == ("09.1", "q9", "easy", 3)
    assert TEXT.heading == "Exercise 09.1 · easy · 3 minutes"
    assert TEXT.location == "lessons/09_small/exercises.md:3"
    assert TEXT.question == "Write a pre-hook `double` that doubles the input."
    assert TEXT.starter == "def double(module, args):\n    ____\n\nq9.check(double)\n"
    assert TEXT.hints == ("Look at what the pre-hook returns.", "Return a tuple: `(2 * args[0],)`.")
    assert TEXT.solution == RIGHT == "def double(module, args):\n    return (2 * args[0],)\n\nq9.check(double)\n"
    assert TEXT.why == "what a pre-hook returns becomes the input of `forward`."
    assert TEXT.wrong == ((NO_RETURN, "[1, 2] arrived as [1, 2]"), (TRIPLE, "as [3, 6]"))
    assert (TEXT.before, TEXT.is_bug, TEXT.call) == ("", False, "q9.check(double)")


def test_a_question_may_have_code_lists_and_paragraphs_and_a_hint_too():
    question = "Order these.\n\n```python\nnet(x)\n```\n\n- A: one\n- B: two\n\nAs a list."
    hint = "1. Look:\n\n   ```python\n   if x:\n       y\n   ```\n2. And\n   again."
    text = SAMPLE.replace(TEXT.question, question).replace("1. Look at what the pre-hook returns.", hint)
    text = text.replace("2. Return a tuple: `(2 * args[0],)`.", "3. Last.")
    (read,) = parse_exercises(text, SAMPLE_PATH)
    assert read.question == question
    assert read.hints == ("Look:\n\n```python\nif x:\n    y\n```", "And\nagain.", "Last.")


def test_a_bug_is_the_starter_and_the_first_wrong_answer():
    bug = f"### Bug\n\n```python\n{NO_RETURN}```\n\n> arrived as\n> [1, 2]\n\n"
    bug += "### Before\n\n```python\nx = 1\n```\n\n### Hints"
    text = re.sub(r"### Starter.*?### Hints", lambda _: bug, SAMPLE, flags=re.DOTALL)
    (read,) = parse_exercises(text, SAMPLE_PATH)
    assert (read.is_bug, read.starter, read.before) == (True, NO_RETURN, "x = 1\n")
    assert read.wrong[0] == (NO_RETURN, "arrived as\n[1, 2]")
    assert len(read.wrong) == 3
    assert not read.in_lab
    (in_lab,) = parse_exercises(text.replace("### Bug", "### Lab bug"), SAMPLE_PATH)
    assert (in_lab.is_bug, in_lab.in_lab, in_lab.starter) == (True, True, NO_RETURN)


def test_right_answers_are_fences_and_what_an_answer_defines_is_known():
    other = "double = lambda module, args: 2 * args[0]\nq9.check(double)\n"
    section = f"### Right answers\n\n```python\n{other}```\n\n```python\n{RIGHT}```\n\n### Why"
    (read,) = parse_exercises(SAMPLE.replace("### Why", section), SAMPLE_PATH)
    assert (read.right, TEXT.right) == ((other, RIGHT), ())
    assert read.defines == ("double",)
    (value,) = parse_exercises(SAMPLE.replace(RIGHT, "q9.check(3, x)\n"), SAMPLE_PATH)
    assert value.defines == ("", "")
    for bad, complaint in {
        section.replace("### Why", "and so on\n\n### Why"): "a right answer of q9 is a fence, with no text",
        section.replace("q9.check", "q8.check"): "a right answer of q9 calls q8.check",
    }.items():
        with pytest.raises(ExerciseTextError, match=complaint):
            parse_exercises(SAMPLE.replace("### Why", bad), SAMPLE_PATH)


@pytest.mark.parametrize(
    ("old", "new", "complaint", "at"),
    [
        ("## q9 · easy · 3 minutes", "## q9", "an exercise begins with '## q1 · easy · 3 minutes'", "## q9"),
        ("· easy ·", "· brutal ·", "an exercise begins with", "## q9"),
        ("3 minutes", "0 minutes", "an exercise begins with", "## q9"),
        (TEXT.question, "", "q9 needs a question", "## q9"),
        ("### Why", "### Because", "q9 has a section 'Because'; there are, once each: Starter, Bug", "### Because"),
        ("### Why\n\nwhat a", "### Why\n\nOne.\n\n### Why\n\nwhat a", "q9 has a section 'Why'", "### Why\n\nwhat"),
        ("### Why\n\n" + TEXT.why, "", "q9 needs '### Why'", "## q9"),
        (TEXT.why, "", "q9 needs a sentence that is shown with a right answer", "### Why"),
        ("### Starter\n\n```python\n" + TEXT.starter + "```", "", "q9 needs '### Starter'", "## q9"),
        (TEXT.starter, "", "this fence is empty", "```python\n```"),
        ("```python\n" + TEXT.starter + "```", "Begin.", "'Starter' of q9 needs one python fence", "### Starter"),
        (
            "1. Look at what the pre-hook returns.\n2. Return",
            "Return",
            "q9 needs hints as a numbered list",
            "### Hints",
        ),
        (RIGHT, "double = 3\n", "the solution of q9 must end in <name>.check(…)", "### Solution"),
        (RIGHT, "q9.check(double)\nprint(3)\n", "must end in <name>.check", "### Solution"),
        (RIGHT, "q8.check(double)\n", "the solution of q9 calls q8.check, not q9.check", "### Solution"),
        (TRIPLE, "q8.check(1)\n", "a wrong answer of q9 calls q8.check, not q9.check", "```python\nq8"),
        (TRIPLE, "double = 3\n", "a wrong answer of q9 must end in <name>.check", "```python\ndouble = 3"),
        (TRIPLE, "q9.check(\n", "a wrong answer of q9 is not Python", "```python\nq9.check(\n"),
        ("> as [3, 6]\n", "", "below this wrong answer of q9 a quotation is missing", "```python\n" + TRIPLE),
        ("> as [3, 6]\n", "as [3, 6]\n", "a wrong answer of q9 is a fence with a quotation", "as [3, 6]"),
        (
            "```python\n" + TRIPLE + "```\n\n> as [3, 6]\n",
            "",
            "q9 needs two or more wrong answers",
            "### Wrong answers",
        ),
        ("> as [3, 6]\n", f"> as [3, 6]\n\n{SECOND}", "there is a q9 above already", "## q9 · easy · 4 minutes"),
    ],
)
def test_a_gap_is_refused_with_file_and_line(old, new, complaint, at):
    text = SAMPLE.replace(old, new, 1)
    assert text != SAMPLE
    with pytest.raises(ExerciseTextError) as refused:
        parse_exercises(text, SAMPLE_PATH)
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(f"lessons/09_small/exercises.md:{line_of(text, at)}: ")


def test_a_chapter_gives_its_exercises_in_order_and_names_what_is_missing(tmp_path, monkeypatch):
    found = exercises(2)
    assert [(each.number, each.name) for each in found] == [("02.1", "q1"), ("02.2", "q2"), ("02.3", "q3")]
    assert all(isinstance(each, Exercise) for each in found)
    with pytest.raises(LookupError, match=r"there is no chapter 77; there are: 0, 1, 2"):
        exercises(77)
    folder = tmp_path / "02_call_order"
    folder.mkdir()
    (folder / "exercises.md").write_text(SAMPLE)
    monkeypatch.setattr(chapter_exercises, "folder_of", lambda number: folder)
    with pytest.raises(ExerciseTextError, match=r"exercises.md:3: checks_02.py has no function check_q9"):
        exercises(2)
