"""The chapters and reference pages as the builder reads them: once in a process, for reading takes a second."""

from functools import cache
from pathlib import Path

from lessons.build import making, reading


@cache
def parsed(path: Path) -> making.Chapter:
    """One page, shared by all tests of a process: to be read, not written."""
    return making.parse(path)


CHAPTERS = [parsed(path) for path in reading.chapter_files()]
REFERENCES = [parsed(path) for path in reading.reference_files() if reading.name_of(path) != "index"]
