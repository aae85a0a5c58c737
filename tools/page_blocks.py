"""Put what a command makes into its place in a page: between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from pathlib import Path


def block(path: Path, name: str) -> str:
    """Return what stands in a place.

    Raises:
        ValueError: the page has no such place, or two.

    """
    return _find(path.read_text(encoding="utf-8"), path, name)[2].strip("\n")


def put(path: Path, name: str, text: str) -> None:
    """Write a text into a place; a page that has it already is left alone.

    Raises:
        ValueError: the page has no such place, or two.

    """
    page = path.read_text(encoding="utf-8")
    found = _find(page, path, name)
    renewed = f"{page[: found.start()]}{found[1]}\n{text}\n\n{found[3]}{page[found.end() :]}"
    if renewed != page:
        path.write_text(renewed, encoding="utf-8")


def _find(page: str, path: Path, name: str) -> re.Match[str]:
    places = list(re.finditer(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", page, re.DOTALL))
    if len(places) != 1:
        raise ValueError(
            f"{path.name} has {len(places)} places for {name}, not one: '<!-- {name} -->' … '<!-- /{name} -->'"
        )
    return places[0]


def table(rows: list[dict[str, object]]) -> str:
    """Write rows as a Markdown table; a row without a column gets a dash there."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, ["---"] * len(heads), *[[str(row.get(head, "–")) for head in heads] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
