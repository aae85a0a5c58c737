"""The chapters as cards for the first page: a picture out of each, its title, and what you do there."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

from lessons.build import reading

_PICTURE = re.compile(r'<img alt="([^"]*)"[^>]*?src="data:image/png;base64,([^"]+)"')
_MAP = "A module between its input"  # how the map of all hooks begins, which many chapters show


def cards(folder: Path) -> str:
    """Write the pictures into a folder; return the HTML of the cards.

    Args:
        folder: `_static/cards` of the site.

    """
    made = []
    for path in reading.chapter_files():
        name, header = reading.name_of(path), reading.header_of(path)
        image = picture_of(reading.NOTEBOOKS / f"{name}.ipynb")
        if image:
            (folder / f"{name}.png").write_bytes(image)
        # Its title says what the picture would say again.
        shown = f'<img alt="" src="_static/cards/{name}.png">' if image else '<span class="none"></span>'
        made.append(
            f'<a class="card" href="{name}.html">{shown}<strong>{name[:2]} · {html.escape(header["title"])}</strong>'
            f"<span>{html.escape(header['promise'])}</span></a>"
        )
    return f'<div class="cards">\n{chr(10).join(made)}\n</div>'


def picture_of(notebook: Path) -> bytes | None:
    """The largest picture of a notebook that is no map of all hooks and in no solution; None where there is none."""
    found = [
        base64.b64decode(image)
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if "solution" not in cell["metadata"].get("tags", [])
        for output in cell.get("outputs", [])
        for alt, image in _PICTURE.findall("".join(output.get("data", {}).get("text/html", "")))
        if not alt.startswith(_MAP)
    ]
    return max(found, key=len, default=None)
