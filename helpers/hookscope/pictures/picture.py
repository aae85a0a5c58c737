"""Images and tables with a text description, for a notebook, a terminal or a file."""

from __future__ import annotations

import base64
import io
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookscope.pictures.dataframe import to_dataframe
from hookscope.pictures.words import html_of, truncate

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADING = "Values in the image"
_LONG = 12  # characters of a word that can break across lines
_FOLD = 16  # rows that are always visible in HTML; the others are folded
_CELL, _LINE = 300, 5000  # maximum number of characters in a cell, and in a caption or note
# The image is drawn on white, and stays so. Its frame has the color of the page: on a dark one, white would dazzle.
_CARD = (
    "max-width:100%;box-sizing:border-box;border:10px solid light-dark(#fff,#424242);border-radius:8px;"
    "background:#fff padding-box"
)
_MOST = 400  # maximum number of rows; more would add megabytes to a notebook

Rows = Sequence[Mapping[str, object]]


class Table:
    """Rows of named values, shown as aligned text and as an accessible HTML table.

    The columns are the keys of all rows, in the order of their first appearance. A missing key or ``None`` gives an
    empty cell. The first column names the row. `as_text` formats the values.

    Args:
        rows: one mapping per row, from column name to value. It is copied.
        caption: a sentence above the table.

    Example:
        >>> Table([{"layer": "conv1", "calls": 1}, {"layer": "relu", "calls": 3}], caption="Calls")
        Calls
        layer  calls
        -----  -----
        conv1      1
        relu       3

    """

    def __init__(self, rows: Rows, caption: str = "") -> None:
        self.rows: list[dict[str, object]] = [dict(row) for row in rows]
        self.caption = truncate(caption, _LINE)

    def __repr__(self) -> str:
        return _text(self.caption, self.rows)

    def to_html(self) -> str:
        """Return the table as an HTML fragment: ``<caption>``, ``<th scope=…>``, every text escaped.

        Rows after the 16th are folded into ``<details>``; rows after the 400th are left out, with a remark. The table
        is readable without CSS, because JupyterLab sanitizes the HTML of a notebook that is not trusted.

        Example:
            >>> print(Table([{"name": "<b>"}]).to_html().splitlines()[3])
            <tr><th scope="row" style="text-align:left">&lt;b&gt;</th></tr>

        """
        return _html(self.caption, self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, with the caption in its `attrs`.

        Raises:
            ModuleNotFoundError: pandas is not installed.

        Example:
            >>> Table([{"layer": "conv1", "calls": 1}, {"layer": "relu", "calls": 3}]).to_pandas()["calls"].sum()
            np.int64(4)

        """
        return to_dataframe(self.rows, self.caption)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self.to_html()}


class Result:
    """A result with rows, notes and a caption, shown as an image if it has one, else as a table.

    A subclass defines `caption`, `rows` and `notes`, and `picture` if there is something to draw.
    """

    _picture_and_table = False  # show the table below the picture, too

    @property
    def caption(self) -> str:
        """A sentence above the table."""
        raise NotImplementedError

    @property
    def rows(self) -> list[dict[str, object]]:
        """All values, one row for each item."""
        raise NotImplementedError

    notes: tuple[str, ...] = ()
    """Remarks about the result, one sentence each."""

    def table(self) -> Table:
        """Return the rows as a table."""
        return Table(self.rows, self.caption)

    def picture(self) -> Picture:
        """Draw the result.

        Raises:
            NotImplementedError: this kind of result has no image.
            ModuleNotFoundError: matplotlib is not installed.

        """
        raise NotImplementedError(f"{type(self).__name__} has no image. Call .table() or .to_pandas() instead")

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, see `Table.to_pandas`."""
        return to_dataframe(self.rows, self.caption)

    def _lines(self) -> list[str]:
        """Return the lines below the table or the image."""
        return format_notes(self.notes)

    def _is_drawn(self) -> bool:
        return type(self).picture is not Result.picture

    def __repr__(self) -> str:
        return "\n".join([repr(self.table()), *self._lines()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        lines, html = self._lines(), ""
        if self._is_drawn():
            try:
                picture = self.picture()
            except ModuleNotFoundError as error:
                lines = [*lines, *format_notes([str(error)])]
            else:
                bundle["image/png"], html = picture.png, picture.to_html()
        if not html or self._picture_and_table:
            html = f"{html}\n{self.table().to_html()}".lstrip()
        return bundle | {"text/html": html + paragraphs(lines)}


class Picture:
    """A PNG with an alternative text and a table of the values that it shows.

    A reader who cannot see the image gets the same information. ``repr()`` returns the caption and the table as
    text, which depend on the values but not on the pixels.

    Args:
        png: the bytes of a PNG file, or a function that returns them when they are first needed.
        alt: one or two sentences that describe the image. Required.
        caption: a sentence below the image.
        rows: the values in the image, one mapping per row. It is copied.
        heading: the heading of the table.
        notes: remarks about the image, one sentence each.

    Raises:
        TypeError: ``png`` is of another type, such as a path.
        ValueError: ``png`` is not a PNG, or ``alt`` is empty.

    Example:
        >>> from matplotlib.figure import Figure
        >>> figure = Figure(figsize=(3, 2))
        >>> _ = figure.subplots().plot([1.0, 0.5, 0.25])
        >>> from_figure(figure, "A line falls from 1 to 0.25.", "Loss", [{"step": 0, "loss": 1.0}])
        Loss
        step  loss
        ----  ----
           0     1

    """

    def __init__(
        self,
        png: bytes | Callable[[], bytes],
        alt: str = "",
        caption: str = "",
        rows: Rows = (),
        heading: str = _HEADING,
        notes: Iterable[str] = (),
    ) -> None:
        if not callable(png) and not isinstance(png, bytes | bytearray | memoryview):
            raise TypeError(
                f"png is of type {type(png).__name__}. Pass the bytes of a PNG file, for example "
                "Picture(Path('…').read_bytes(), 'A red square.')"
            )
        if not alt.strip():
            raise ValueError("alt is empty. Describe in a sentence what the image shows")
        self._png = png
        if not callable(png):
            self.png  # noqa: B018 (raises now if this is not a PNG)
        self.alt = truncate(alt, _LINE)
        self.caption = truncate(caption, _LINE)
        self.heading = heading
        self.rows: list[dict[str, object]] = [dict(row) for row in rows]
        self.notes = tuple(notes)

    @cached_property
    def png(self) -> bytes:
        """The bytes of the PNG file."""
        png = self._png() if callable(self._png) else bytes(self._png)
        if not png.startswith(_PNG_SIGNATURE):
            raise ValueError(
                "png does not contain a PNG file. Pass the bytes of one, for example Path('…').read_bytes()"
            )
        self._png = png  # releases the function
        return png

    def __repr__(self) -> str:
        return "\n".join([_text(self.caption or self.alt, self.rows), *format_notes(self.notes)])

    def to_html(self) -> str:
        """Return a self-contained ``<figure>`` (image with ``alt``, caption) and the values as a folded table."""
        image = make_image_tag(self.alt, base64.b64encode(self.png).decode("ascii"))
        parts = ['<figure style="margin:0">', image]
        if self.caption:
            parts.append(f"<figcaption>{_lines(self.caption)}</figcaption>")
        parts.append(f"</figure>{paragraphs(format_notes(self.notes))}")
        if self.rows:
            parts.append(f"<details><summary>{_lines(self.heading)}</summary>\n{_html('', self.rows)}\n</details>")
        return "\n".join(parts)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # HTML viewers use text/html; LaTeX, PDF and consoles use the image, which IPython encodes.
        return {"text/plain": repr(self), "image/png": self.png, "text/html": self.to_html()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the values in the image as a pandas DataFrame, see `Table.to_pandas`."""
        return to_dataframe(self.rows, self.caption or self.alt)

    def save(self, path: str | Path) -> None:
        """Write the PNG to ``path``, whose name must end in ``.png``.

        Raises:
            ValueError: the name does not end in ``.png``.

        """
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise ValueError(
                f"an image is saved as PNG, so its name must end in .png. Pass {path.stem + '.png'!r}, not "
                f"{path.name!r}"
            )
        path.write_bytes(self.png)


def from_figure(
    figure: Figure,
    alt: str,
    caption: str = "",
    rows: Rows = (),
    *,
    dpi: float | None = None,
    heading: str = _HEADING,
    notes: Iterable[str] = (),
    when_seen: bool = False,
) -> Picture:
    """Turn a matplotlib figure into a `Picture`, and close the figure.

    The PNG contains no software name and no date, so the same figure gives the same bytes.

    Args:
        figure: any figure, from pyplot or from ``matplotlib.figure.Figure``.
        alt: one or two sentences that describe the image. Required.
        caption: a sentence below the image.
        rows: the values in the image.
        dpi: pixels per inch of ``figure.get_size_inches()``. By default, that of the figure (matplotlib: 100).
        heading: the heading of the table.
        notes: remarks about the image, one sentence each.
        when_seen: draw the figure only when the image is first needed. Do not change the figure until then.

    Raises:
        ValueError: ``alt`` is empty.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from_figure(Figure(), "An empty figure.").alt
        'An empty figure.'

    """
    make = partial(_encode, figure, dpi)
    return Picture(make if when_seen else make(), alt, caption, rows, heading, notes)


def _encode(figure: Figure, dpi: float | None) -> bytes:
    buffer = io.BytesIO()
    try:
        # Opaque, so that black text is readable on a dark page.
        figure.savefig(
            buffer,
            format="png",
            dpi="figure" if dpi is None else dpi,
            transparent=False,
            metadata={"Software": None},
        )
    finally:
        # Only pyplot keeps references to figures, so without pyplot there is nothing to close.
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.close(figure)
    return buffer.getvalue()


def make_image_tag(alt: str, png: str) -> str:
    """Return the HTML of an image on its white card.

    Args:
        alt: its alternative text, not yet escaped.
        png: the PNG, as base64.

    """
    return f'<img alt="{html_of(alt)}" src="data:image/png;base64,{png}" style="{_CARD}">'


def as_text(value: object) -> str:
    """Return one value of a table as text: floats with four significant digits, ``None`` as an empty text.

    Four digits keep a table narrow and hide most rounding differences between processors. ``-0.0`` is ``0``. A scalar
    tensor or array is shown as its value.

    Example:
        >>> [as_text(v) for v in (3.14159, -0.0, 1e-7, float("nan"), 12345, True, None, (None, 2.5))]
        ['3.142', '0', '1e-07', 'nan', '12345', 'True', '', '(None, 2.5)']

    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        text = f"{float(value):.4g}"
        return "0" if text == "-0" else text
    if isinstance(value, numbers.Complex):
        return f"{as_text(value.real)}{complex(value).imag:+.4g}j"
    if isinstance(value, tuple | list):
        inside = ", ".join("None" if item is None else as_text(item) for item in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return str(value)


def _is_number(value: object) -> bool:
    if getattr(value, "ndim", None) == 0:
        return True
    return value is None or (isinstance(value, numbers.Number) and not isinstance(value, bool))


def _grid(rows: Rows) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return the column names, the cells as text, and for each column whether it is numeric."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[truncate(as_text(row.get(name)), _CELL) for name in names] for row in rows]
    numeric = [all(_is_number(row.get(name)) for row in rows) for name in names]
    return [truncate(str(name), _CELL) for name in names], cells, numeric


def _text(caption: str, rows: Rows) -> str:
    names, cells, numeric = _grid(rows[:_MOST])
    lines = [caption] if caption else []
    if not cells:
        return "\n".join(lines) or "(no rows)"
    table = [[" ".join(cell.split()) for cell in line] for line in [names, *cells]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    for line in table:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, *_left_out(rows)])


def _left_out(rows: Rows) -> list[str]:
    more = len(rows) - _MOST
    return [f"… and {more:,} more rows; .rows has all of them"] if more > 0 else []


def format_notes(notes: Iterable[str]) -> list[str]:
    """Return one line of text for each note, even if a name inside contains a line break."""
    return [truncate(f"note: {note}", _LINE).replace("\n", "\\n") for note in notes]


def paragraphs(texts: Iterable[str]) -> str:
    """Return texts as HTML paragraphs, one per line."""
    return "".join(f"\n<p>{html_of(text)}</p>" for text in texts)


def _lines(text: str) -> str:
    return html_of(text).replace("\n", "<br>")


def _cell(text: str) -> str:
    """Return the HTML of a cell. A long name can break after "_" or ".", so that six columns fit a narrow page."""
    words = re.split(rf"([^\W\d][\w.]{{{_LONG},}})", text)
    words[::2] = map(_lines, words[::2])
    words[1::2] = [re.sub(r"(?<=[_.])(?=[^_.])", "<wbr>", word) for word in words[1::2]]
    return "".join(words)


def _html(caption: str, rows: Rows) -> str:
    names, cells, numeric = _grid(rows[:_MOST])
    if not cells:
        return f"<p>{_lines(caption) or 'No rows.'}</p>"
    styles = [f'style="text-align:{"right" if right else "left"}"' for right in numeric]
    head = "".join(f'<th scope="col" {style}>{_cell(name)}</th>' for name, style in zip(names, styles, strict=True))

    def table(title: str, lines: list[list[str]]) -> str:
        above = f'<caption style="text-align:left">{_lines(title)}</caption>' if title else ""
        out = [f"<table>{above}", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
        for first, *others in lines:
            tags = [f'<th scope="row" {styles[0]}>{_cell(first)}</th>']
            tags += [f"<td {style}>{_cell(cell)}</td>" for style, cell in zip(styles[1:], others, strict=True)]
            out.append(f"<tr>{''.join(tags)}</tr>")
        return "\n".join([*out, "</tbody>", "</table>"])

    # Folding a single row would save no space.
    if len(cells) <= _FOLD + 1:
        return table(caption, cells)
    more = f"{len(cells) - _FOLD} more rows"
    rest = table(f"{caption} ({more})" if caption else more, cells[_FOLD:])
    rest += paragraphs(_left_out(rows))
    return f"{table(caption, cells[:_FOLD])}\n<details><summary>{more}</summary>\n{rest}\n</details>"
