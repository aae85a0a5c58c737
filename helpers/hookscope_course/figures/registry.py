"""The figures of the course, one line each: its name, its module, and the chapters that show it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["FIGURES", "FOLDER", "Figure", "load", "load_promises"]


@dataclass(frozen=True)
class Figure:
    """Where a figure lives and where it is shown.

    Attributes:
        module: the module in `hookscope_course.figures` that defines the name.
        chapters: the numbers of the chapters that show it.

    """

    module: str
    chapters: tuple[int, ...]


FOLDER = Path(__file__).parent
FIGURES = {
    "AuthorSlider": Figure("author_slider.figure", (94,)),
    "BothEnds": Figure("both_ends.figure", (8,)),
    "Bridge": Figure("bridge.figure", (13,)),
    "CacheGrid": Figure("cache_grid.figure", (16,)),
    "CallSource": Figure("call_source.figure", (1,)),
    "Chooser": Figure("chooser.figure", (91,)),
    "DigitsByLayer": Figure("digits_by_layer.figure", (6,)),
    "FactCheck": Figure("fact_check.figure", (90,)),
    "FoolingSquare": Figure("fooling_square.figure", (4,)),
    "GradInputExplorer": Figure("grad_input_explorer.figure", (9,)),
    "GradientParts": Figure("gradient_parts.figure", (17,)),
    "GradientPlayground": Figure("gradient_playground.figure", (7,)),
    "PlayingMap": Figure("playing_map.figure", (2,)),
    "ResidualRiver": Figure("residual_river.figure", (14,)),
    "SealedModels": Figure("sealed_models.figure", (11,)),
    "SentReceived": Figure("sent_received.figure", (0,)),
    "SharedMemory": Figure("shared_memory.figure", (11,)),
    "SilenceChannel": Figure("silence_channel.figure", (3,)),
    "SlidingFilter": Figure("sliding_filter.figure", (5,)),
    "SteeredScans": Figure("steered_scans.figure", (12,)),
    "SteeringSlider": Figure("steering_slider.figure", (16,)),
    "StoryDots": Figure("story_dots.figure", (15,)),
    "SwitchOff": Figure("switch_off.figure", ()),
    "SymptomTree": Figure("symptom_tree.figure", (11,)),
    "TenTimesGame": Figure("ten_times_game.figure", (2,)),
    "TravelMap": Figure("travel_map.figure", (18,)),
    "TwoRuns": Figure("two_runs.figure", (15, 21)),
    "WhereItLooks": Figure("where_it_looks.figure", (10,)),
}
"""The interactive figures."""


def load(name: str) -> Any:
    """Import the class of a figure.

    Raises:
        KeyError: there is no such figure.

    """
    return getattr(import_module(f"hookscope_course.figures.{FIGURES[name].module}"), name)


def load_promises(name: str) -> ModuleType:
    """Import what the tests know of a figure: the file `promises.py` in its folder.

    Raises:
        KeyError: there is no such figure.

    """
    return import_module(f"hookscope_course.figures.{FIGURES[name].module.rpartition('.')[0]}.promises")
