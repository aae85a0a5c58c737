"""The table of other notebooks in docs: what the last trial found, and nothing wrong where learners work."""

from __future__ import annotations

import pytest

from tests.browser.frontends.table import PAGE, read, rows
from tests.browser.frontends.trials import TRIALS
from tools.page_blocks import block, table


def test_the_readme_has_the_table_of_the_records() -> None:
    assert block(PAGE, "frontends") == table(rows(read()))


@pytest.mark.parametrize("title", ["JupyterLab", "Notebook"])
def test_all_works_in_those_that_jupyter_draws(title: str) -> None:
    found = read()[title]
    assert found["failed"] == {}
    assert found["drawn"] == found["widgets"] > 0
    assert found["answers"] == dict.fromkeys(TRIALS, True)


def test_what_fails_is_counted() -> None:
    found = {
        "made_on": "2026-01-31",
        "release": "1.0",
        "cells": 10,
        "failed": {"02": 1, "03": 2},
        "widgets": 3,
        "drawn": 3,
    }
    assert rows({"Some": {**found, "answers": {"a click": True, "a key": False}}}) == [
        {
            "in": "Some 1.0",
            "cells that run": "7 of 10",
            "widgets drawn": "all 3",
            "a click": "works",
            "a key": "**fails**",
            "tried on": "2026-01-31",
        }
    ]
