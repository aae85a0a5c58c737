"""The table in docs/compatibility.md, from the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.shared import ROOT

RECORDS = Path(__file__).with_name("records.json")
PAGE = ROOT / "docs" / "compatibility.md"


def read() -> dict[str, Any]:
    """Return the records: for each front end the day it was tried, and what `trying.Tried` holds."""
    found: dict[str, Any] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return found


def rows(records: dict[str, Any]) -> list[dict[str, object]]:
    """One row for each front end, and what works there."""
    return [
        {
            "in": f"{title} {found['release']}",
            "cells that run": _part(found["cells"] - sum(found["failed"].values()), found["cells"]),
            "widgets drawn": _part(found["drawn"], found["widgets"]),
            **{name: "works" if works else "**fails**" for name, works in found["answers"].items()},
            "tried on": found["made_on"],
        }
        for title, found in records.items()
    ]


def _part(some: int, of: int) -> str:
    return f"all {of:,}" if some == of else f"{some:,} of {of:,}"
