"""What the chooser and the fact check share: a filter box, a button for each group, and rows that open."""

from __future__ import annotations

from typing import Any

import traitlets

from hookscope.widgets.base import HookWidget

__all__ = ["Finder"]


class Finder(HookWidget):
    """Rows to filter by words and by group. A subclass has `group`, and a script that says what a row looks like.

    Attributes:
        words: what the filter box holds.

    """

    words = traitlets.Unicode().tag(sync=True)
    _groups: Any = traitlets.Dict().tag(sync=True)
    _rows: Any = traitlets.List().tag(sync=True)
