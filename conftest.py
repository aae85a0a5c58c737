"""What all test paths share, `tests` and `notebooks`: how a notebook is checked, and what stays in one process."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.shared.notebook_checks"]


class _OneBrowser(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Files go to the processes whole, and all browser tests to one, or there would be two JupyterLabs."""

    def _split_scope(self, nodeid: str) -> str:
        browser = "tests/browser/"
        return browser if nodeid.startswith(browser) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Deal out the tests of `--dist loadfile`."""
    return _OneBrowser(config, log) if config.getoption("dist") == "loadfile" else None
