"""All figures of the course: what a reader sees and touches. What computes without drawing is in `chapters`.

An interactive figure is a folder, named after its class: its Python, JavaScript, style, layout and still image. A
picture that does not move is one file. `kit` has what they share, `registry` lists the interactive ones. A figure is
imported when it is first asked for, because the interactive ones need anywidget.
"""

from importlib import import_module
from typing import Any

from hookscope_course.figures.registry import FIGURES, load

_FUNCTIONS = {
    "ask_box": "sealed_models.figure",
    "find_layer": "sealed_models.figure",
    "hook_pass": "playing_map.figure",
    "train_one_step": "bridge.figure",
}
__all__ = [*FIGURES, *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    """Import a figure when it is first asked for."""
    if name in FIGURES:
        found = load(name)
    elif name in _FUNCTIONS:
        found = getattr(import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
