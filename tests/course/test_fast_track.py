"""The fast track can be walked by itself: it needs no section that is not marked, and takes 90 minutes at most."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch

from hookscope_course.learner.learner_edition import make_learner_edition
from lessons.build import fast_track, lesson_source, page_minutes
from lessons.build.chapter_notebook import Chapter
from tests.shared.exercises import list_global_hooks
from tests.shared.parsed_chapters import CHAPTERS

TRACK = [chapter for chapter in CHAPTERS if fast_track.list_marked_sections(chapter.source)]


def cells_of(chapter: Chapter) -> list[Any]:
    return [*fast_track.select_cells(chapter.notebook.cells, fast_track.list_marked_sections(chapter.source))]


def test_the_chapters_of_the_fast_track() -> None:
    assert [chapter.number for chapter in TRACK] == ["00", "03", "07", "08", "11"]


@pytest.mark.parametrize("chapter", TRACK, ids=lambda chapter: chapter.name)
def test_it_needs_no_section_that_is_not_marked(chapter: Chapter) -> None:
    code = [cell.source for cell in cells_of(chapter) if cell.cell_type == "code"]
    questions = sum("Guess(" in source for source in code)
    assert questions == len(fast_track.list_marked_sections(chapter.source))
    assert questions == sum("guess.compare(" in source for source in code)
    names: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        for source in code:
            exec(compile(source, chapter.name, "exec"), names)
    assert not list_global_hooks()


def test_it_takes_90_minutes_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    minutes = {chapter.number: page_minutes.estimate_minutes(cells_of(chapter), 0).reading for chapter in TRACK}
    with capsys.disabled():
        print(f"\nfast track: {sum(minutes.values())} minutes, {minutes}")
    assert sum(minutes.values()) <= fast_track.MINUTES


def ways_on(chapter: Chapter) -> list[tuple[int, str]]:
    """Each way on, with the section that it ends: it is the last thing in it, and also in the learner's edition."""
    found, here = [], 0
    cells = [cell for cell in chapter.notebook.cells if cell.cell_type == "markdown"]
    for cell, after in pairwise(cells):
        here = fast_track.find_last_section(cell.source, here)
        if fast_track.TAG in cell.metadata.get("tags", []):
            assert re.match(r"## ", after.source), "it stands at the end of its section"
            found.append((here, cell.source))
    kept = ["".join(cell["source"]) for cell in make_learner_edition(json.loads(json.dumps(chapter.notebook)))["cells"]]
    for _, words in found:  # a heading of its own keeps it out of the fold above it
        assert {words, re.sub(r"^\*\*(.+?)\.\*\* ", r"#### \1\n\n", words)} & {*kept}, "behind a fold"
    return found


def test_each_marked_section_ends_with_the_way_to_the_next() -> None:
    track = fast_track.list_sections()
    said = [(chapter.source, number, words) for chapter in TRACK for number, words in ways_on(chapter)]
    assert [(path, number) for path, number, _ in said] == track
    for (path, _, words), (after, following) in zip(said, track[1:], strict=False):
        link = re.search(r"\[.+?\]\((\w+\.ipynb)\), from the top to the end of section (\d)\.$", words)
        if path == after:
            assert words == f"**Fast track.** Go on with section {following}."
        else:
            assert link
            assert link[1] == f"{lesson_source.name_of(after)}.ipynb"
            assert (lesson_source.NOTEBOOKS / link[1]).exists()
            assert link[2] == str(max(section for page, section in track if page == after))
    assert said[-1][2] == fast_track.END
    assert "You can now" in fast_track.END
    # It stands in the middle of a page, so it must not read as the end of the chapter.
    assert "this chapter goes on below" in fast_track.END
    path, number = track[-1]
    assert f"\n## {number + 1} · " in path.read_text(encoding="utf-8")
