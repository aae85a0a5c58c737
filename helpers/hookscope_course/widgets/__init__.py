"""Widgets that teach one chapter each: a call, a gradient, `grad_input`.

A widget is imported on first use, so that the course works without anywidget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookscope_course.widgets.call_source import CallSource
    from hookscope_course.widgets.grad_input import GradInputExplorer
    from hookscope_course.widgets.gradients import GradientPlayground

_FILES = {
    "CallSource": "call_source",
    "GradInputExplorer": "grad_input",
    "GradientPlayground": "gradients",
}
__all__ = ["CallSource", "GradInputExplorer", "GradientPlayground"]


def __getattr__(name: str) -> Any:
    """Import a widget on first use."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = widget = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
    return widget
