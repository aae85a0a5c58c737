"""The teacher's pages: complete, in step, their minutes added up, and kept from learners."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hookscope_course.classroom.handout import write_handout
from hookscope_course.classroom.slide_order import order_slides
from hookscope_course.learner.copies import list_chapters, make_edition
from hookscope_course.paths import NOTEBOOKS
from hookscope_course.practice.question import questions_of
from lessons.build import plan_page, teacher_pages
from lessons.build.chapter_notebook import Chapter, read_exercises_of
from lessons.build.lesson_source import LessonError
from lessons.build.slide_contents import OPENING
from tests.shared.parsed_chapters import CHAPTERS

PLAN = (teacher_pages.get_folder() / "plan.md").read_text(encoding="utf-8")
ALL = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.number)


@ALL
def test_a_page_lists_the_wrong_guesses_and_what_each_is_told(chapter: Chapter) -> None:
    page = teacher_pages.make_page(chapter)
    for about, question in questions_of(int(chapter.number)).items():
        number = about.partition(".")[2]
        below = page.split(f"\n## {number if number != '0' else OPENING} · ")[1].split("\n## ")[0]
        for guess, reason in question.wrong:
            shown = {True: "yes", False: "no"}[guess] if isinstance(guess, bool) else repr(guess)
            assert f"- `{shown}`: {reason}\n" in below
        assert not question.otherwise or f"- any other: {question.otherwise}\n" in below


@ALL
def test_a_page_has_answers_solutions_and_messages(chapter: Chapter) -> None:
    page = (teacher_pages.get_folder() / f"{chapter.name}.md").read_text(encoding="utf-8")
    for exercise in read_exercises_of(chapter.source).values():
        assert exercise.solution.strip() in page
        assert all(message in page and code.strip() in page for code, message in exercise.wrong)
    for heading, found in teacher_pages.find_answers(chapter).items():
        below = page.split(f"## {heading} · ")[1]
        assert all(f"`{answer}`" in below for answer in found), heading


@ALL
def test_a_page_names_the_slides_that_a_class_sees(chapter: Chapter) -> None:
    page = (teacher_pages.get_folder() / f"{chapter.name}.md").read_text(encoding="utf-8")
    slides: list[str] = []
    for cell in order_slides(json.loads(chapter.target.read_text(encoding="utf-8")))["cells"]:
        if "slideshow" in cell["metadata"]:
            slides.append("")
        slides[-1] += cell["source"] + "\n"
    asked = {int(number) for number in re.findall(r"^- slide (\d+): the question", page, re.MULTILINE)}
    answered = {int(number) for number in re.findall(r"^- slide (\d+): the answer", page, re.MULTILINE)}
    assert asked == {at for at, slide in enumerate(slides, 1) if re.search(r"^guess = Guess\(", slide, re.M)}
    assert answered == {at for at, slide in enumerate(slides, 1) if re.search(r"^guess\.compare\(", slide, re.M)}
    for heading in teacher_pages.read_teaching(chapter).sections:
        below = page.split(f"## {heading} · ")[1]
        first = int(re.search(r"\*\*On the screen\.\*\* Slides (\d+) to \d+\.", below)[1])  # type: ignore[index]
        assert slides[first - 1].startswith(f"## {heading}\n")


def test_a_page_says_what_is_shown_and_what_is_not_counted() -> None:
    page = (teacher_pages.get_folder() / "02_call_order.md").read_text(encoding="utf-8")
    assert re.search(r"^- slide \d+: a picture\. Modules as boxes in boxes\.$", page, re.MULTILINE)
    assert "(plan.md#at-the-projector)" in page
    how = PLAN.split("## At the projector")[1].split("\n## ")[0]
    assert all(word in how for word in ("Shift+Enter", "Page Down", "Page Up", "most common guess"))


@ALL
def test_the_minutes_of_the_parts_are_those_of_the_chapter(chapter: Chapter) -> None:
    parts = teacher_pages.list_parts(chapter)
    assert sum(part.minutes.exercises for part in parts) == chapter.minutes.exercises
    # Each part is rounded, and so is the sum.
    assert abs(sum(part.minutes.reading for part in parts) - chapter.minutes.reading) <= len(parts) / 2
    assert all(part.in_class.total >= part.minutes.total for part in parts)


def test_the_pages_are_in_step() -> None:
    assert len([*teacher_pages.get_folder().glob("*.md")]) == len(CHAPTERS) + 1  # and the plan
    assert plan_page.list_stale_pages(CHAPTERS) == [], "run: python -m lessons.build --pages"


def test_a_page_that_was_edited_or_is_of_no_chapter_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_pages, "get_folder", lambda: tmp_path)
    monkeypatch.setattr(plan_page, "get_folder", lambda: tmp_path)
    monkeypatch.setattr(plan_page, "get_plan_path", lambda: tmp_path / "plan.toml")
    (tmp_path / "plan.toml").write_text('text = ""\nprojector = ""\ngrading = ""\nplan = []\n')
    plan_page.write(CHAPTERS[:3])
    assert {path.name for path in tmp_path.iterdir()} >= {"plan.md", f"{CHAPTERS[2].name}.md"}
    assert plan_page.list_stale_pages(CHAPTERS[:3]) == []
    (tmp_path / "plan.md").write_text("edited", encoding="utf-8")
    (tmp_path / "77_gone.md").write_text("", encoding="utf-8")
    assert plan_page.list_stale_pages(CHAPTERS[:3]) == ["plan.md", "77_gone.md"]


def test_the_plans_add_up_and_fit() -> None:
    units = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\d+) of (\d+) \| ([^|]*) \| (\d*) \|$", PLAN, re.MULTILINE)
    assert [limit for *_, limit, _, _ in units[:2]] == ["45", "90"]
    assert len(units) == sum(len(plan["unit"]) for plan in tomllib.loads(plan_page.get_plan_path().read_text())["plan"])
    for name, now, total, limit, later, alone in units:
        assert sum(map(int, re.findall(r"\((\d+)\)(?:<br>|$)", now))) == int(total) <= int(limit), name
        assert sum(map(int, re.findall(r"\((\d+)\)(?:<br>|$)", later))) == int(alone or 0), name


def test_the_plans_name_what_there_is_with_its_minutes() -> None:
    headings = {f"{one.number} {part.heading}": part for one in CHAPTERS for part in teacher_pages.list_parts(one)}
    minutes = {t.number: t.minutes for one in CHAPTERS for t in read_exercises_of(one.source).values()}
    for row in re.findall(r"^\| [^|]+ \| ([^|]+) \| \d+ of", PLAN, re.MULTILINE):
        for piece in row.strip().split("<br>"):
            name, said = re.fullmatch(r"(.+) \((\d+)\)", piece).groups()  # type: ignore[union-attr]
            if name.startswith("exercise "):
                alone = minutes[name.removeprefix("exercise ")]
            else:
                alone = headings[name].minutes.reading
            assert 1.5 * alone <= int(said) < 1.5 * alone + 1, piece


def test_the_term_takes_every_exercise_and_section() -> None:
    term = re.split(r"^## A term of \d+ weeks$", PLAN, flags=re.MULTILINE)[1]
    wanted = [f"{one.number} {part.heading}" for one in CHAPTERS for part in teacher_pages.list_parts(one)]
    wanted = [name for name in wanted if name[3].isdigit()]
    wanted += [f"exercise {t.number}" for one in CHAPTERS for t in read_exercises_of(one.source).values()]
    assert [name for name in wanted if term.count(f"{name} (") != 1] == []


def test_a_unit_that_does_not_fit_and_a_section_that_is_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.toml"
    monkeypatch.setattr(plan_page, "get_plan_path", lambda: plan)
    text = (
        'text = ""\nprojector = ""\n[[plan]]\nname = "x"\nminutes = {}\ntext = ""\n'
        'unit = [{{ name = "Monday", class = ["02: {}"] }}]\n'
    )
    plan.write_text(text.format(3, "1"))
    with pytest.raises(LessonError, match=r"'Monday' takes \d+ minutes, and has 3"):
        plan_page.make_plan_page(CHAPTERS)
    for name in ("9", "q9"):
        plan.write_text(text.format(90, name))
        with pytest.raises(LessonError, match=rf"plan.toml:1: chapter 02 has no (section|exercise) '{name}'"):
            plan_page.make_plan_page(CHAPTERS)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("## 1 · Several hooks", "## 1 · Some hooks", "the headings are .*Some hooks.*; they must be .*Several"),
        ("**Leave out.**", "**Drop.**", "in this order: Ask, If they are wrong"),
        ("## Have ready", "## Bring", "they must be Have ready"),
    ],
)
def test_a_page_that_is_not_complete_is_refused(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    chapter = CHAPTERS[2]
    source = tmp_path / chapter.name / "lesson.md"
    source.parent.mkdir()
    for name in ("lesson.md", "exercises.md"):
        source.with_name(name).write_bytes(chapter.source.with_name(name).read_bytes())
    moved = replace(chapter, source=source)
    text = chapter.source.with_name("teaching.md").read_text(encoding="utf-8")
    source.with_name("teaching.md").write_text(text, encoding="utf-8")
    teacher_pages.read_teaching(moved)
    source.with_name("teaching.md").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LessonError, match=complaint):
        teacher_pages.read_teaching(moved)


def told_to_teachers() -> list[bytes]:
    """Lines of teaching.md that no lesson has."""
    lessons = "\n".join(one.source.read_text(encoding="utf-8") for one in CHAPTERS)
    lines = [
        line.strip()
        for one in CHAPTERS
        for line in one.source.with_name("teaching.md").read_text(encoding="utf-8").splitlines()
        if len(line) > 40
    ]
    return [line.encode() for line in lines if line not in lessons]


def test_nothing_of_it_gets_to_learners(tmp_path: Path) -> None:
    told = told_to_teachers()
    assert len(told) > 350
    write_handout([one.number for one in CHAPTERS], tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as packed:
        texts = [packed.read(name) for name in packed.namelist()]
        others = [name for name in packed.namelist() if "teaching" in name or not name.endswith(".ipynb")]
    assert others == ["all/README.md"]
    texts += [make_edition(path) for path in list_chapters(NOTEBOOKS)]
    assert len(texts) >= 28
    for text in texts:
        assert not [line for line in told if line in text or line.replace(b'"', b'\\"') in text]
