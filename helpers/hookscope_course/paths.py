"""Find the course, in a checkout or in the installed package, and the commands to type there."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

__all__ = ["BUILD", "IS_INSTALLED", "LESSONS", "NOTEBOOKS", "SETTINGS", "describe_install", "format_command"]

_HERE = Path(__file__).resolve().parent
_INSIDE = _HERE / "notebooks"

IS_INSTALLED = _INSIDE.is_dir()
"""Whether the course came as a wheel, which has everything inside; a checkout has it beside `helpers/`."""
LESSONS = _HERE / "lessons" if IS_INSTALLED else _HERE.parents[1] / "lessons"
"""The folders of the chapters: their checks and exercises, in a checkout also their text."""
NOTEBOOKS = _INSIDE if IS_INSTALLED else _HERE.parents[1] / "notebooks"
"""The built notebooks, from which every copy is made."""
SETTINGS = LESSONS / "jupyter"
"""Settings of Jupyter for the course."""
_CACHE = os.path.expanduser("~/.cache/hookscope")  # noqa: PTH111 (Path.expanduser is an error without a home)
BUILD = Path(_CACHE) if IS_INSTALLED else _HERE.parents[1] / "build"
"""Where something is kept that can be made again and that nobody looks for."""


def format_command(command: str) -> str:
    """What one types for a command of the course, such as "lab".

    Example:
        >>> format_command("lab")
        'make lab'

    """
    return f"{'hookscope' if IS_INSTALLED else 'make'} {command}"


def describe_install() -> str:
    """What to do where packages of the course are missing or too old.

    Example:
        >>> describe_install()
        'In a terminal, in the folder of the course, run `make .venv`'

    """
    if IS_INSTALLED:
        # Not 'hookscope[course]' alone: a package of that name on an index would be somebody else's.
        wheel = f"hookscope-{version('hookscope')}-py3-none-any.whl[course]"
        return f"In a terminal, install the course's wheel with all it needs: `pip install '{wheel}'`"
    return "In a terminal, in the folder of the course, run `make .venv`"
