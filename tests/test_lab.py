"""The course in a real JupyterLab, in a real browser, as a learner opens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lessons import build
from tests.lab import Lab

NOTEBOOKS = sorted(path.name for path in build.NOTEBOOKS.glob("*.ipynb"))
ARTEFACTS = build.ROOT / "build" / "screenshots"


@pytest.fixture(autouse=True)
def nothing_goes_wrong_unseen(lab: Lab):
    """No test may end with an error on the console or a request that left the machine."""
    lab.console_errors.clear()
    yield
    assert lab.outside == []
    assert lab.console_errors == []


def test_server_is_on_loopback_with_a_token(lab: Lab) -> None:
    assert lab.url.startswith(("http://127.0.0.1:", "http://localhost:"))
    assert len(lab.token) >= 32
    assert lab.page.request.get(f"{lab.url}/api/contents").status == 403


def test_no_jupytext_and_no_news_in_the_learners_lab(lab: Lab) -> None:
    lab.open(NOTEBOOKS[0])
    plugins = lab.page.evaluate("() => window.jupyterapp.listPlugins()")
    assert any(name.startswith("@jupyterlab/") for name in plugins)
    assert not [name for name in plugins if "jupytext" in name]
    assert lab.page.locator(".Toastify__toast").count() == 0
    lab.page.wait_for_timeout(500)
    assert lab.page.locator(".jp-Dialog").count() == 0


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_pictures_show_before_anything_is_run(lab: Lab, notebook: str) -> None:
    """A fresh clone is not trusted, so JupyterLab sanitises its HTML. Every figure must show all the same."""
    lab.open(notebook)
    lab.show_all()
    saved = json.loads((lab.folder / notebook).read_text())
    figures = sum(
        "image/png" in output.get("data", {}) for cell in saved["cells"] for output in cell.get("outputs", [])
    )
    images = lab.page.locator(".jp-OutputArea-output img")
    assert images.count() == figures
    for index in range(figures):
        assert images.nth(index).get_attribute("alt"), f"figure {index} has no alt text"
        assert images.nth(index).evaluate("image => image.complete && image.naturalWidth") > 20
    screenshot(lab, f"{Path(notebook).stem}-opened")


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_runs_from_top_to_bottom(lab: Lab, notebook: str) -> None:
    lab.open(notebook)
    lab.run_all()
    lab.show_all()
    assert lab.page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert lab.page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    left = lab.page.locator(".jp-Cell:has(.jp-OutputArea) .jp-OutputArea-output").last.inner_text()
    assert "0 hooks" in left
    screenshot(lab, f"{Path(notebook).stem}-run")


def test_solutions_are_folded_until_asked_for(lab: Lab) -> None:
    lab.open("00_start_here.ipynb")
    lab.show_all()
    folded = lab.page.locator(".jp-InputArea-editor:has-text('# solution'), .jp-InputPlaceholder")
    assert folded.count() >= 2
    assert lab.page.locator(".cm-content:visible", has_text="kept.append(output.detach().clone())").count() == 0


def screenshot(lab: Lab, name: str) -> None:
    """Keep a picture of the page as an artefact of the run, to be looked at (build/ is not committed)."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    lab.page.screenshot(path=ARTEFACTS / f"{name}.png")
