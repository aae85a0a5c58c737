"""Widgets for any model: pick a layer or a token, step through hooks, look into attention, click through a sweep.

Each is imported when it is first asked for: they alone need anywidget, and what it brings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.extras import optional_import

if TYPE_CHECKING:
    from hookscope.interp.widgets.attention import AttentionPicker
    from hookscope.interp.widgets.patch_map import PatchMap
    from hookscope.interp.widgets.token import TokenPicker
    from hookscope.widgets.picker import LayerPicker
    from hookscope.widgets.player import OrderPlayer

__all__ = [
    "AttentionPicker",
    "LayerPicker",
    "OrderPlayer",
    "PatchMap",
    "TokenPicker",
]

_FILES = {
    "AttentionPicker": "interp.widgets.attention",
    "LayerPicker": "widgets.picker",
    "OrderPlayer": "widgets.player",
    "PatchMap": "interp.widgets.patch_map",
    "TokenPicker": "interp.widgets.token",
}


def __getattr__(name: str) -> Any:
    """Import a widget when it is first asked for."""
    if name not in _FILES:
        raise AttributeError(f"module 'hookscope.widgets' has no attribute '{name}'")
    with optional_import(f"hookscope.widgets.{name}"):
        import anywidget  # noqa: F401 (first, since it brings all that the widgets need)
    globals()[name] = widget = getattr(import_module(f"hookscope.{_FILES[name]}"), name)
    return widget


def __dir__() -> list[str]:
    """Also list the widgets that nobody has asked for yet."""
    return sorted({*globals(), *__all__})
