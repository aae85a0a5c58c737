"""A figure whose still picture is drawn when somebody asks for it, because most pages show the widget."""

from __future__ import annotations

from hookscope.widgets.base import HookWidget

__all__ = ["LazyFigure"]


class LazyFigure(HookWidget):
    """A widget that draws its picture on request, not at every change. A subclass has `_still`."""

    @property
    def png(self) -> bytes:  # type: ignore[override]
        """The still picture, as a PNG."""
        return self._still()

    def _still(self) -> bytes:
        raise NotImplementedError
