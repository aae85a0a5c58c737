"""Convert the rows of a table to a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hookscope.extras import optional_import

if TYPE_CHECKING:
    import pandas

__all__ = ["to_dataframe"]


def to_dataframe(rows: Sequence[Mapping[str, object]], caption: str = "") -> pandas.DataFrame:
    """Return all rows as a DataFrame, with the values themselves and not their text.

    Args:
        rows: one mapping for each row. A missing key becomes a missing value.
        caption: stored in `DataFrame.attrs`.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    """
    with optional_import("to_pandas"):
        import pandas
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [[_plain(row.get(name)) for name in names] for row in rows]
    frame = pandas.DataFrame(table, columns=names)
    for number, name in enumerate(names):
        values = [row[number] for row in table]
        kinds = set(map(type, values))
        if kinds == {int, type(None)}:
            with suppress(OverflowError):  # more than 64 bits: keep the column of objects
                frame[name] = pandas.array(
                    values, dtype="Int64"
                )  # the default would be floats, which round large integers
    frame.attrs["caption"] = caption
    return frame


def _plain(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
