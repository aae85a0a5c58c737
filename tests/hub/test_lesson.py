"""A lesson from the bell to the grades: twenty in chapter 02, their guesses counted, their exercises graded."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from hookscope_course.classroom.grading import grade, write_course
from hookscope_course.lessons import folder_of
from hookscope_course.practice.text import read_exercises
from tests.hub.client import Learner, chapters_cells, until
from tests.hub.running import RunningHub

pytestmark = pytest.mark.slow

CLASS = 20
HUB = {"learners": CLASS + 1, "teacher": True, "GUESSES": "on"}
CHAPTER = "02_call_order"
GUESSES = ("E, C", "C, E", "E, C, B", "I do not know")
T = TypeVar("T")


def test_a_lesson_from_the_bell_to_the_grades(hub: RunningHub, tmp_path: Path) -> None:
    took: dict[str, float] = {}
    learners = [hub.person(place) for place in range(1, CLASS + 1)]
    with ThreadPoolExecutor(CLASS) as crowd:

        def all_of_them(what: str, do: Callable[[Learner], T]) -> list[T]:
            begin = time.monotonic()
            done = list(crowd.map(do, learners))
            took[what] = round(time.monotonic() - begin, 1)
            return done

        all_of_them("signed in, JupyterLab open", arrive)
        kernels = dict(zip(learners, all_of_them("kernels", lambda each: each.kernel(f"{CHAPTER}.ipynb")), strict=True))
        cells = chapters_cells(learners[0].notebook(f"{CHAPTER}.ipynb"))
        question = next(place for place, (_, source, _) in enumerate(cells) if source.startswith("guess = Guess("))

        def guesses(each: Learner) -> None:
            with each.connected(kernels[each]) as socket:
                for number, source, _ in cells[:question]:
                    socket.run(source, number)
                socket.run("Guess.share()", "own")
                number, source, _ = cells[question]
                mine = GUESSES[learners.index(each) % len(GUESSES)]
                assert "Your guess" in socket.run(f"{source.replace('____', repr(mine))}\nguess", number)

        def goes_on(each: Learner) -> list[str]:
            """Run the rest, and return the errors that are no part of the lesson."""
            found = []
            with each.connected(kernels[each]) as socket:
                for number, source, may_fail in cells[question + 1 :]:
                    socket.run(source, number)
                    if socket.error and not may_fail:
                        found.append(f"{source}\n{socket.error}")
            return found

        # Before the run: what the class thinks.
        all_of_them("up to the first question", guesses)
        teacher = hub.person(0)
        teacher.sign_in()
        counted = until(lambda: counts(teacher, CLASS), "twenty guesses, counted", 30)
        assert counted == dict.fromkeys((word.strip() for word in GUESSES), CLASS // len(GUESSES))

        assert all_of_them("the rest of the chapter", goes_on) == [[]] * CLASS

        # The hand-out: exercises without solutions, which come back from each home.
        (release,) = write_course([CHAPTER[:2]], tmp_path / "course")
        papers = [filled_in(release, right=place % 4 != 3) for place in range(CLASS)]

        def hands_in(each: Learner) -> None:
            file = {"type": "notebook", "format": "json", "content": papers[learners.index(each)]}
            assert each.ask("PUT", f"api/contents/{release.name}", json=file).status_code in (200, 201)

        all_of_them("handed in", hands_in)

    gathered = hub.command("collect", CHAPTER[:2], "--to", str(tmp_path / "course"))
    assert gathered.stdout.count(": collected") == CLASS, gathered.stdout + gathered.stderr
    shutil.rmtree(tmp_path / "course" / "submitted" / teacher.name, ignore_errors=True)
    begin = time.monotonic()
    rows = {row["student_id"]: row for row in grade(tmp_path / "course")}
    took["graded"] = round(time.monotonic() - begin, 1)
    scores = [float(rows[each.name]["score"]) / float(rows[each.name]["max_score"]) for each in learners]
    assert [score == 1 for score in scores] == [place % 4 != 3 for place in range(CLASS)]
    assert {score for score in scores if score != 1} == {0.0}
    print("\nseconds:", json.dumps(took))


def arrive(each: Learner) -> None:
    each.sign_in()
    each.open()


def counts(teacher: Learner, wanted: int) -> dict[str, int]:
    """What the teacher's page shows of the first question, once so many have guessed."""
    page = teacher.sees(f"/services/guesses/?chapter={CHAPTER}").text
    rows = re.findall(r'<th scope="row">([^<]*)</th><td class="n">(\d+)</td>', page)
    found = {guess: int(number) for guess, number in rows}
    return found if sum(found.values()) == wanted else {}


def filled_in(release: Path, *, right: bool) -> dict[str, Any]:
    """The hand-out with a solution in each exercise, or with a wrong answer."""
    texts = {text.name: text for text in read_exercises(folder_of(int(release.name[:2])) / "exercises.md")}
    page: dict[str, Any] = json.loads(release.read_text(encoding="utf-8"))
    for cell in page["cells"]:
        name, _, what = cell["metadata"]["nbgrader"]["grade_id"].rpartition("-")
        if what == "answer":
            cell["source"] = texts[name].solution if right else texts[name].wrong[1][0]
    return page
