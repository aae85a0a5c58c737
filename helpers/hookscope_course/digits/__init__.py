"""Figures that each carry one chapter of the digits: what a layer received, a channel silenced, a square that fools.

Each is imported when it is first asked for: they alone need anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.digits.sent import SentReceived
    from hookscope_course.digits.silence import SilenceChannel

_FILES = {"SentReceived": "sent", "SilenceChannel": "silence"}
__all__ = ["SentReceived", "SilenceChannel"]


def __getattr__(name: str) -> Any:
    """Import a figure when it is first asked for."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = figure = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return figure
