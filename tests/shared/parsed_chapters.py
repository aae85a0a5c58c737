"""The chapters and reference pages as the builder reads them: once in a process, for reading takes a second."""

from functools import cache
from pathlib import Path

from lessons.build import chapter_notebook, lesson_source


@cache
def parse_once(path: Path) -> chapter_notebook.Chapter:
    """One page, shared by all tests of a process: to be read, not written."""
    return chapter_notebook.parse(path)


CHAPTERS = [parse_once(path) for path in lesson_source.chapter_files()]
REFERENCES = [parse_once(path) for path in lesson_source.reference_files() if lesson_source.name_of(path) != "index"]
