"""The chooser: find the hook for what you want to do."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.reference.chooser import Chooser

__all__ = ["Chooser"]


def __getattr__(name: str) -> Any:
    """Import the widget on first use: it needs anywidget."""
    if name in __all__:
        return getattr(import_module("hookscope_course.reference.chooser"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
