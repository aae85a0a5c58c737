"""The chooser as a widget: type what you want to do, and get a sentence and the lines to paste."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures import Rows
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.finder import Finder
from hookscope_course.figures.kit.replay import Replay

__all__ = ["GROUPS", "Chooser", "read_rows"]

GROUPS = {
    "watch": "See what layers compute",
    "change": "Change what layers compute",
    "gradients": "See and change gradients",
    "debug": "Debug",
    "language models": "Language models",
    "train": "Train",
    "ship": "Copy, compile, quantize",
}
"""The groups of rows, in order, with their headings."""


def read_rows() -> list[dict[str, Any]]:
    """Return the rows of chooser.toml, group by group."""
    rows: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("chooser.toml").read_text(encoding="utf-8"))[
        "want"
    ]
    return rows


class Chooser(Finder):
    """Find the hook for what you want to do: a filter box, seven groups, and the lines to paste.

    Args:
        words: to begin with, as if typed into the filter box.

    Attributes:
        words: what the filter box holds.
        group: the group that is shown; empty for all of them.

    Raises:
        TraitError: there is no such group.

    Example:
        >>> Chooser().numbers()[0]["I want to"]
        'See what a layer returns'

    """

    _esm, _css = assets(KIT / "finder", Path(__file__).with_suffix(""))
    replay = Replay.alone("words", "group", says="Click a row to see its lines.", unseen=("png",))

    group = traitlets.Enum(["", *GROUPS], "").tag(sync=True)

    def __init__(self, words: str = "") -> None:
        rows = read_rows()
        super().__init__(words=words, _groups=GROUPS, _rows=[_shown(row) for row in rows])
        self.alt = f"{len(rows)} things to do with hooks, in {len(GROUPS)} groups: {', '.join(GROUPS.values())}."

    def numbers(self) -> Rows:
        """List what you can want, with the answer and the lines."""
        return [
            {"I want to": row["want"], "answer": row["answer"], "lines": row["lines"].strip()} for row in read_rows()
        ]


def _shown(row: dict[str, Any]) -> dict[str, str]:
    """What the page needs of a row."""
    hooks = " and ".join(hook if hook.startswith("hookscope.") else hook.rpartition(".")[2] for hook in row["hooks"])
    taught = f"chapter {row['chapter']:02}, section {row['section']}" if "chapter" in row else ""
    return {
        "want": row["want"],
        "group": row["group"],
        "also": row["also"],
        "answer": row["answer"],
        "lines": row["lines"].strip(),
        "hooks": hooks,
        "since": row["since"],
        "taught": taught,
    }
