"""The main figures of single chapters: switch off a channel, cover a square, slide a filter, and others.

Each is imported when it is first asked for: they alone need anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.digits.depth import DigitsByLayer
    from hookscope_course.digits.looks import WhereItLooks
    from hookscope_course.digits.occlusion import occlusion_map
    from hookscope_course.digits.sent import SentReceived
    from hookscope_course.digits.silence import SilenceChannel
    from hookscope_course.digits.sizes import gradient_sizes
    from hookscope_course.digits.sliding import SlidingFilter
    from hookscope_course.digits.square import FoolingSquare

_FILES = {
    "DigitsByLayer": "depth",
    "FoolingSquare": "square",
    "SentReceived": "sent",
    "SilenceChannel": "silence",
    "SlidingFilter": "sliding",
    "WhereItLooks": "looks",
    "gradient_sizes": "sizes",
    "occlusion_map": "occlusion",
}
__all__ = [
    "DigitsByLayer",
    "FoolingSquare",
    "SentReceived",
    "SilenceChannel",
    "SlidingFilter",
    "WhereItLooks",
    "gradient_sizes",
    "occlusion_map",
]


def __getattr__(name: str) -> Any:
    """Import a figure when it is first asked for."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = figure = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return figure
