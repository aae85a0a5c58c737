"""A JupyterLab for all browser tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.shared import lab as lab_module


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_module.Lab]:
    """Give a JupyterLab in a real browser, shared by all browser tests, and closed after the last of them.

    It must be: as long as Playwright is there, an event loop runs in this process, beside which no other can.
    """
    if lab_module.CHROMIUM is None:
        if os.environ.get("HOOKSCOPE_REQUIRE_BROWSER"):
            pytest.fail("no chromium on this machine, and HOOKSCOPE_REQUIRE_BROWSER is set")
        pytest.skip("no chromium; on Debian: apt-get install chromium")
    with lab_module.running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def nothing_goes_wrong_unseen(lab: lab_module.Lab) -> Iterator[None]:
    """Let no test end with an error on the console or a request that left the machine, or on a page of another size."""
    lab.console_errors.clear()
    yield
    lab.page.set_viewport_size(lab_module.SIZE)
    assert lab.outside == []
    assert lab.console_errors == []
