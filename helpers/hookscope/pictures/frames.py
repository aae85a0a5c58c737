"""Give the rows of a table to pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.extras import needed_by

if TYPE_CHECKING:
    import pandas

__all__ = ["frame_of"]


def frame_of(rows: Sequence[Mapping[str, object]], caption: str = "") -> pandas.DataFrame:
    """Return rows as a DataFrame: all of them, with their values and not the text that is shown of these.

    Args:
        rows: one mapping for each row; what a row lacks is missing in the frame, too.
        caption: goes into `DataFrame.attrs`.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    """
    with needed_by("to_pandas"):
        import pandas
    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = pandas.DataFrame([[_plain(row.get(name)) for name in names] for row in rows], columns=names)
    frame.attrs["caption"] = caption
    return frame


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
