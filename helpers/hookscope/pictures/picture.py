"""Pictures and tables that say in words what they show, in a notebook, a terminal or a file."""

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
_HEADING = "Numbers in the picture"
_LONG = 12  # letters of a word that may go on in the next line
_FOLD = 16  # rows that stay visible in HTML; the others open on a click
_CELL, _LINE = 300, 5000  # characters of a cell, and of a caption or note, that are written; nobody reads more
_MOST = 400  # rows that are written at all; more would fill a notebook with megabytes, and nobody reads them

Rows = Sequence[Mapping[str, object]]


class Table:
    """Rows of named values, shown as aligned text and as an accessible HTML table.

    The columns are the keys of all rows in the order in which they first appear; a key that a row lacks, and
    ``None``, leave an empty cell. The first column names the row. Numbers are written by `as_text`.

    Args:
        rows: one mapping per row, column name to value. It is copied.
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

        Past 16 rows the rest is folded into ``<details>``; past 400 it is left out, and said to be. It reads well
        without CSS, since JupyterLab sanitises the HTML of a notebook it does not trust.

        Example:
            >>> print(Table([{"name": "<b>"}]).to_html().splitlines()[3])
            <tr><th scope="row" style="text-align:left">&lt;b&gt;</th></tr>

        """
        return _html(self.caption, self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, values as they are, the caption in its `attrs`.

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
    """What hookscope found: rows, notes and a caption, shown as a picture if it has one, else as a table.

    A subclass gives `caption`, `rows` and `notes`, and `picture` if there is something to draw.
    """

    _picture_and_table = False  # show the table below the picture, too

    @property
    def caption(self) -> str:
        """A sentence above the table."""
        raise NotImplementedError

    @property
    def rows(self) -> list[dict[str, object]]:
        """All numbers, a row for each thing found."""
        raise NotImplementedError

    notes: tuple[str, ...] = ()
    """What else to know, a sentence each."""

    def table(self) -> Table:
        """Return the rows, or as many as can be read, as a table."""
        return Table(self.rows, self.caption)

    def picture(self) -> Picture:
        """Draw the result.

        Raises:
            NotImplementedError: this kind of result has no drawing.
            ModuleNotFoundError: matplotlib is not installed.

        """
        raise NotImplementedError(f"{type(self).__name__} has no picture; use .table() or .to_pandas()")

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, see `Table.to_pandas`."""
        return to_dataframe(self.rows, self.caption)

    def _lines(self) -> list[str]:
        """What stands below the table or the picture."""
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
    """A PNG together with its alternative text and the numbers it shows.

    Nobody needs to see the picture to learn what is on it: the alternative text goes with the image, and the
    numbers follow as a table. ``repr()`` gives the caption and the table as text, and is the same for the
    same numbers whatever the pixels.

    Args:
        png: the bytes of a PNG file, or what makes them when the picture is looked at first.
        alt: one or two sentences that say what is to be seen; needed.
        caption: a sentence under the picture.
        rows: the numbers on the picture, one mapping per row. It is copied.
        heading: what stands above the rows, where they are no numbers.

    Raises:
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
        alt: str,
        caption: str = "",
        rows: Rows = (),
        heading: str = _HEADING,
    ) -> None:
        if not alt.strip():
            raise ValueError("alt is empty: say in a sentence what the picture shows")
        self._png = png
        if not callable(png):
            self.png  # noqa: B018, refuses now what is no PNG
        self.alt = truncate(alt, _LINE)
        self.caption = truncate(caption, _LINE)
        self.heading = heading
        self.rows: list[dict[str, object]] = [dict(row) for row in rows]

    @cached_property
    def png(self) -> bytes:
        """The bytes of the PNG file."""
        png = self._png() if callable(self._png) else bytes(self._png)
        if not png.startswith(_PNG_SIGNATURE):
            raise ValueError("png does not hold a PNG file: pass its bytes, for example Path('…').read_bytes()")
        self._png = png  # who made it is not needed any more
        return png

    def __repr__(self) -> str:
        return _text(self.caption or self.alt, self.rows)

    def to_html(self) -> str:
        """Return a self-contained ``<figure>`` (image with ``alt``, caption) and the numbers as a table.

        The table stands beside the picture where the page is wide enough, else below it.
        """
        source = "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")
        parts = [
            '<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:1em">',
            '<figure style="margin:0">',
            f'<img alt="{html_of(self.alt)}" src="{source}" style="max-width:100%">',
        ]
        if self.caption:
            parts.append(f"<figcaption>{_lines(self.caption)}</figcaption>")
        parts.append("</figure>")
        if self.rows:
            parts.append(f"<div>{_html(self.heading, self.rows)}</div>")
        return "\n".join([*parts, "</div>"])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        # Viewers that show HTML take that; LaTeX, PDF by LaTeX, and consoles take the image, which IPython encodes.
        return {"text/plain": repr(self), "image/png": self.png, "text/html": self.to_html()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the numbers on the picture as a pandas DataFrame, see `Table.to_pandas`."""
        return to_dataframe(self.rows, self.caption or self.alt)

    def save(self, path: str | Path) -> None:
        """Write the PNG to ``path``, whose name must end in ``.png``.

        Raises:
            ValueError: the name does not end in ``.png``.

        """
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise ValueError(f"a picture is saved as PNG: name the file {path.stem + '.png'!r}, not {path.name!r}")
        path.write_bytes(self.png)


def from_figure(
    figure: Figure,
    alt: str,
    caption: str = "",
    rows: Rows = (),
    *,
    dpi: float | None = None,
    heading: str = _HEADING,
    when_seen: bool = False,
) -> Picture:
    """Turn a matplotlib figure into a `Picture`, and close the figure.

    The PNG carries no software name and no date, so the same figure gives the same bytes.

    Args:
        figure: any figure, made by pyplot or by ``matplotlib.figure.Figure``.
        alt: one or two sentences that say what is to be seen; needed.
        caption: a sentence under the picture.
        rows: the numbers on the picture.
        dpi: pixels per inch of ``figure.get_size_inches()``; by default the figure's own (matplotlib: 100).
        heading: what stands above the rows, where they are no numbers.
        when_seen: draw it when it is looked at first: who asks only for the numbers does not wait. The figure must
            not change until then.

    Raises:
        ValueError: ``alt`` is empty.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from_figure(Figure(), "An empty figure.").alt
        'An empty figure.'

    """
    make = partial(_encode, figure, dpi)
    return Picture(make if when_seen else make(), alt, caption, rows, heading)


def _encode(figure: Figure, dpi: float | None) -> bytes:
    buffer = io.BytesIO()
    try:
        # Opaque, so that black text stays readable on a dark page.
        figure.savefig(
            buffer,
            format="png",
            dpi="figure" if dpi is None else dpi,
            transparent=False,
            metadata={"Software": None},
        )
    finally:
        # A figure that pyplot does not know needs no closing, so pyplot is not imported for it.
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.close(figure)
    return buffer.getvalue()


def as_text(value: object) -> str:
    """Write one value of a table: floats with four significant digits, ``None`` as nothing, but as None in a tuple.

    Four digits keep a table narrow and hide most of the noise by which two processors differ. ``-0.0`` is
    ``0``, and a scalar tensor or array counts as its number.

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
    """Return the column names, the cells as text, and for each column whether it holds numbers only."""
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
    return [f"… and {more:,} more rows, shortened here; .rows has all"] if more > 0 else []


def format_notes(notes: Iterable[str]) -> list[str]:
    """Write notes as lines of text, one for each: a name in it may have line ends of its own."""
    return [truncate(f"note: {note}", _LINE).replace("\n", "\\n") for note in notes]


def paragraphs(texts: Iterable[str]) -> str:
    """Write texts as paragraphs of HTML, each in a line of its own."""
    return "".join(f"\n<p>{html_of(text)}</p>" for text in texts)


def _lines(text: str) -> str:
    return html_of(text).replace("\n", "<br>")


def _cell(text: str) -> str:
    """Return the HTML of a cell, in which a long name may be cut after "_" or ".": six columns fit a narrow page."""
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

    # One row more than the fold would cost as much room as the line that folds it.
    if len(cells) <= _FOLD + 1:
        return table(caption, cells)
    more = f"{len(cells) - _FOLD} more rows"
    rest = table(f"{caption} ({more})" if caption else more, cells[_FOLD:])
    rest += paragraphs(_left_out(rows))
    return f"{table(caption, cells[:_FOLD])}\n<details><summary>{more}</summary>\n{rest}\n</details>"
