"""Interactive figures: an animated map of hooks, parts of a gradient, the symptom tree, the residual river, and others.

`scene.js` and `scene.css` are the library that they share; docs/authoring.md says how a widget takes them in. Each
figure is imported when it is first asked for: they alone need anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.scenes.both_ends import BothEnds
    from hookscope_course.scenes.bridge import Bridge, train_one_step
    from hookscope_course.scenes.cache_grid import CacheGrid
    from hookscope_course.scenes.gradient_parts import GradientParts
    from hookscope_course.scenes.playing_map import PlayingMap, hook_pass
    from hookscope_course.scenes.river import ResidualRiver
    from hookscope_course.scenes.sealed import SealedModels, find_layer
    from hookscope_course.scenes.steered_scans import SteeredScans
    from hookscope_course.scenes.steering import SteeringSlider
    from hookscope_course.scenes.symptom_tree import SymptomTree
    from hookscope_course.scenes.ten_times import TenTimesGame
    from hookscope_course.scenes.travel_map import TravelMap
    from hookscope_course.scenes.two_runs import TwoRuns

_FILES = {
    "BothEnds": "both_ends",
    "Bridge": "bridge",
    "CacheGrid": "cache_grid",
    "GradientParts": "gradient_parts",
    "PlayingMap": "playing_map",
    "ResidualRiver": "river",
    "SealedModels": "sealed",
    "SteeredScans": "steered_scans",
    "SteeringSlider": "steering",
    "SymptomTree": "symptom_tree",
    "TenTimesGame": "ten_times",
    "TravelMap": "travel_map",
    "TwoRuns": "two_runs",
    "find_layer": "sealed",
    "hook_pass": "playing_map",
    "train_one_step": "bridge",
}
__all__ = [
    "BothEnds",
    "Bridge",
    "CacheGrid",
    "GradientParts",
    "PlayingMap",
    "ResidualRiver",
    "SealedModels",
    "SteeredScans",
    "SteeringSlider",
    "SymptomTree",
    "TenTimesGame",
    "TravelMap",
    "TwoRuns",
    "find_layer",
    "hook_pass",
    "train_one_step",
]


def __getattr__(name: str) -> Any:
    """Import a figure when it is first asked for."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = figure = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return figure
