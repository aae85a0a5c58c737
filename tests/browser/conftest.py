"""One Chromium for all browser tests: a JupyterLab in it, and a bare page for figures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.shared import lab as lab_module
from tests.shared.figure_page import FigurePage, figure_page


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Give a browser, shared by all browser tests, and closed after the last of them.

    It must be: as long as Playwright is there, an event loop runs in this process, beside which no other can.
    """
    if lab_module.CHROMIUM is None:
        if os.environ.get("HOOKSCOPE_REQUIRE_BROWSER"):
            pytest.fail("no chromium on this machine, and HOOKSCOPE_REQUIRE_BROWSER is set")
        pytest.skip("no chromium; on Debian: apt-get install chromium")
    with lab_module.running_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def lab(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_module.Lab]:
    """Give a JupyterLab in the browser, for what only JupyterLab can show."""
    with lab_module.running_lab(tmp_path_factory.mktemp("lab"), chromium) as lab:
        yield lab


@pytest.fixture
def nothing_goes_wrong_unseen(lab: lab_module.Lab) -> Iterator[None]:
    """Let no test end with an error on the console or a request that left the machine, or on a page of another size."""
    lab.console_errors.clear()
    yield
    lab.page.set_viewport_size(lab_module.SIZE)
    assert lab.outside == []
    assert lab.console_errors == []


@pytest.fixture(scope="package")
def _figures(chromium: Browser) -> Iterator[FigurePage]:
    with figure_page(chromium) as page:
        yield page


@pytest.fixture
def figures(_figures: FigurePage) -> Iterator[FigurePage]:
    """Give the page for figures; no test may end with an error on its console, a request, or a lost key."""
    _figures.console_errors.clear()
    _figures.outside.clear()
    yield _figures
    assert _figures.outside == []
    assert _figures.console_errors == []
    assert _figures.leaked_keys() == []
