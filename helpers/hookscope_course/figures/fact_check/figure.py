"""The fact check as a widget: what five documents claim about hooks, the verdicts, and what torch does."""

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
from hookscope_course.lessons import folder_of

__all__ = ["SIGNS", "FactCheck", "read_claims"]

# A sign and a word: told apart without color, and by a screen reader.
SIGNS = {
    "holds": "✓\u00a0holds",
    "partly": "◐\u00a0partly",
    "outdated": "↺\u00a0outdated",
    "wrong": "✗\u00a0wrong",
    "cannot tell": "?\u00a0cannot\u00a0tell",
}


def read_claims() -> dict[str, dict[str, Any]]:
    """Return claims.toml as `{"documents": {id: row}, "claims": {id: row}}`, document by document."""
    data = tomllib.loads((folder_of(90) / "claims.toml").read_text(encoding="utf-8"))
    rows = sorted(data["claim"], key=lambda row: (row["document"], int(row["id"].partition(".")[2])))
    return {
        "documents": {row["id"]: row for row in data["document"]},
        "claims": {row["id"]: row for row in rows},
    }


class FactCheck(Finder):
    """Find what somebody claimed about hooks: a filter box, a button for each verdict, and what torch does instead.

    Args:
        words: to begin with, as if typed into the filter box.

    Attributes:
        words: what the filter box holds.
        group: the verdict that is shown; empty for all of them.

    Raises:
        TraitError: there is no such verdict.

    Example:
        >>> FactCheck().numbers()[0]["verdict"]
        'holds'

    """

    _esm, _css = assets(KIT / "finder", Path(__file__).with_suffix(""))
    replay = Replay.alone("words", "group", unseen=("png",))

    group = traitlets.Enum(["", *SIGNS], "").tag(sync=True)

    def __init__(self, words: str = "") -> None:
        data = read_claims()
        rows = [
            {
                "id": row["id"],
                "text": row["text"],
                "group": row["verdict"],
                "sign": SIGNS[row["verdict"]],
                "does": row["does"],
                "since": row.get("since", ""),
                "document": data["documents"][row["document"]]["title"],
            }
            for row in data["claims"].values()
        ]
        super().__init__(words=words, _groups=SIGNS, _rows=rows)
        self.alt = f"{len(rows)} claims about hooks with their verdicts, and what torch does."

    def numbers(self) -> Rows:
        """List the claims, with their verdicts and what torch does."""
        return [{"claim": row["text"], "verdict": row["group"], "torch": row["does"]} for row in self._rows]
