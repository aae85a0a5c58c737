"""Widgets for any model: pick a layer or a token, click through a sweep.

A widget is imported on first use, so that hookscope works without anywidget.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.extras import optional_import

if TYPE_CHECKING:
    from hookscope.interp.widgets.patch_map import PatchMap
    from hookscope.interp.widgets.token import TokenPicker
    from hookscope.widgets.picker import LayerPicker

__all__ = [
    "LayerPicker",
    "PatchMap",
    "TokenPicker",
]

_FILES = {
    "LayerPicker": "widgets.picker",
    "PatchMap": "interp.widgets.patch_map",
    "TokenPicker": "interp.widgets.token",
}


def __getattr__(name: str) -> Any:
    """Import a widget on first use."""
    if name not in _FILES:
        raise AttributeError(f"module 'hookscope.widgets' has no attribute '{name}'")
    with optional_import(f"hookscope.widgets.{name}"):
        import anywidget  # noqa: F401 (it installs everything that the widgets need)
    globals()[name] = widget = getattr(import_module(f"hookscope.{_FILES[name]}"), name)
    return widget


def __dir__() -> list[str]:
    """List the public names, including those that are imported later."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
