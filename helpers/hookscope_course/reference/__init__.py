"""The pages for looking things up: the chooser finds the hook for a task, the fact check judges what people claim."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.reference.chooser import Chooser
    from hookscope_course.reference.fact_check import FactCheck

_FILES = {"Chooser": "chooser", "FactCheck": "fact_check"}
__all__ = ["Chooser", "FactCheck"]


def __getattr__(name: str) -> Any:
    """Import a widget on first use: it needs anywidget."""
    if name in _FILES:
        return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
