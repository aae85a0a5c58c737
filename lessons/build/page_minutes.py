"""How long a page takes: one formula, for a learner who guesses, runs every cell, and looks.

Calibrated once, on 2026-11-22, against the times that people estimated who had worked seven chapters through by hand:
55 minutes for 03, 06, 08, 09 and 13, exercises included, 45 for 07, and 55 for 11 without its lab. The formula gave
51 to 55, 46, and 54 for the pages of that day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbformat import NotebookNode

WORDS_A_MINUTE = 110
SECONDS_A_LINE = 4  # to read a line of code
SECONDS_A_CELL = 12  # to run a cell and look at what it shows
SITTING = 40
"""The minutes after which a page has to offer a place to stop."""
EXERCISE_PARTS = {"question", "exercise", "hint", "solution"}
"""The tags of cells whose time is that of the exercise."""


@dataclass(frozen=True)
class Minutes:
    """The minutes of a sitting, or of a page."""

    reading: int
    exercises: int

    @property
    def total(self) -> int:
        """Minutes to read and run, and for the exercises."""
        return self.reading + self.exercises

    def __str__(self) -> str:
        return f"{self.reading} minutes" + (f", plus {self.exercises} for the exercises" if self.exercises else "")


def estimate_minutes(cells: Iterable[NotebookNode], exercises: int) -> Minutes:
    """Estimate how long cells take, beside the minutes that their exercises are said to take."""
    seconds = 0.0
    for cell in cells:
        if EXERCISE_PARTS & set(cell.metadata.get("tags", [])):
            continue
        if cell.cell_type == "code":
            lines = sum(bool(line.strip()) for line in cell.source.splitlines())
            seconds += SECONDS_A_CELL + SECONDS_A_LINE * lines
        else:
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.DOTALL | re.MULTILINE)
            seconds += 60 / WORDS_A_MINUTE * len(re.findall(r"\w+", prose))
    return Minutes(round(seconds / 60), exercises)
