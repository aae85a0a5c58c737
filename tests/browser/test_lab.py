"""The course in a real JupyterLab, in a real browser, as a learner opens it."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import nbformat
import pytest
from nbformat import NotebookNode
from playwright.sync_api import Locator, expect

from lessons.build import lesson_source
from tests.shared.lab import KERNEL, Lab

NOTEBOOKS = sorted(path.name for path in lesson_source.NOTEBOOKS.glob("*.ipynb"))
# A traceback as well as what is printed to stderr.
ERRORS = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'
ARTEFACTS = lesson_source.ROOT / "build" / "screenshots"


pytestmark = pytest.mark.usefixtures("nothing_goes_wrong_unseen")


def test_server_is_on_loopback_with_a_token(lab: Lab) -> None:
    assert lab.url.startswith(("http://127.0.0.1:", "http://localhost:"))
    assert len(lab.token) >= 32
    with pytest.raises(HTTPError, match="403"):  # not by the page, which has a cookie once it has been let in
        urlopen(f"{lab.url}/api/contents")


def test_it_opens_on_the_first_page_of_the_copy(lab: Lab) -> None:
    lab.page.goto("about:blank")
    lab.page.goto(f"{lab.url}/?token={lab.token}")
    lab.page.wait_for_url("**/lab/tree/index.ipynb**")
    expect(lab.page.get_by_role("tab", name="index.ipynb")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in NOTEBOOKS if name.startswith("9")])
def test_a_table_to_look_things_up_in_is_seen_whole_on_a_small_page(lab: Lab, page: str) -> None:
    lab.open(page, again=True)
    lab.page.set_viewport_size({"width": 1024, "height": 768})
    expect(lab.page.locator(".jp-FileBrowser")).to_be_visible()
    lab.show_all()
    tables = lab.page.locator(".jp-RenderedMarkdown table")
    assert tables.count()
    right = "of => of.getBoundingClientRect().right"
    over = f"tables => tables.map((of) => ({right})(of) - ({right})(of.closest('.jp-Cell')))"
    assert max(tables.evaluate_all(over)) <= 0


def test_no_jupytext_no_nbgrader_and_no_news_in_the_learners_lab(lab: Lab) -> None:
    lab.open(NOTEBOOKS[0], again=True)
    plugins = lab.page.evaluate("() => window.jupyterapp.listPlugins()")
    assert any(name.startswith("@jupyterlab/") for name in plugins)
    assert not [name for name in plugins if "jupytext" in name or "nbgrader" in name]
    assert lab.page.locator(".Toastify__toast").count() == 0
    lab.page.evaluate("() => window.jupyterapp.restored")  # what asks does so before
    assert lab.page.locator(".jp-Dialog").count() == 0


@pytest.mark.slow
def test_a_clone_that_nobody_trusts_yet_shows_every_saved_picture(lab: Lab) -> None:
    """JupyterLab sanitises its HTML and shows no widget. Every figure of the course must show all the same."""
    cells = [cell for name in NOTEBOOKS for cell in cells_of(lesson_source.NOTEBOOKS / name) if figures(cell)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), lab.folder / "figures.ipynb")
    lab.open("figures.ipynb")
    lab.show_all()
    shown = lab.page.locator(".jp-Notebook .jp-Cell")
    expect(shown).to_have_count(len(cells))
    for place, cell in enumerate(cells):
        images = shown.nth(place).locator(".jp-OutputArea-output img")
        expect(images).to_have_count(figures(cell))
        for image in images.all():
            assert image.get_attribute("alt"), f"no alt text: {cell.source}"
            assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 20, cell.source
    screenshot(lab, "figures")


@pytest.mark.parametrize(
    "notebook",
    # The others, with every chapter, run without a browser in tests/course/learner/test_edition.py.
    [name if name.startswith("00") else pytest.param(name, marks=pytest.mark.slow) for name in NOTEBOOKS],
)
def test_a_fresh_copy_runs_to_its_end_and_solves_nothing(lab: Lab, notebook: str) -> None:
    lab.open(notebook, again=True)
    lab.run_all()
    lab.show_all()
    assert lab.page.locator(ERRORS).count() == 0
    cells, shown = cells_of(lab.folder / notebook), lab.page.locator(".jp-Notebook .jp-Cell")
    exercises = [place for place, cell in enumerate(cells) if "exercise" in cell.metadata.get("tags", [])]
    for place in exercises:
        expect(shown.nth(place).locator(".jp-OutputArea")).to_contain_text("Not attempted")
    assert lab.page.locator(".jp-OutputArea", has_text="Not attempted").count() == len(exercises)
    assert lab.page.locator(".jp-OutputArea", has_text="✓ Right").count() == 0
    assert lab.page.locator(".jp-OutputArea", has_text="The answer:").count() == 0, "an answer is told"
    shows = lab.page.get_by_role("button", name="Show the answer")
    for left in range(shows.count(), 0, -1):  # until then, the figures below a question wait
        expect(shows).to_have_count(left)
        shows.first.click()
    expect(lab.page.locator(".jp-OutputArea-output .hookscope")).to_have_count(widgets_in(notebook))
    if exercises:
        expect(cell_with(lab, notebook, "chapter_end(")).to_contain_text("0 hooks")
    screenshot(lab, f"{Path(notebook).stem}-run")


def test_the_top_of_a_tall_output_is_in_sight_after_shift_and_enter(lab: Lab) -> None:
    tall = "from hookscope_course.figures import PlayingMap\nPlayingMap()"
    lab.scratch("tall", 'print("line\\n" * 30)', tall, "\n".join(["pass"] * 20), "1", run=False)
    lab.page.set_viewport_size({"width": 1280, "height": 760})
    lab.page.locator(".jp-Notebook .jp-Cell").first.click()
    lab.page.keyboard.press("Escape")
    lab.page.keyboard.press("Shift+Enter")
    lab.page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex === 1")
    expect(lab.page.locator(".jp-OutputArea", has_text="line")).to_be_visible()
    lab.page.keyboard.press("Shift+Enter")
    widget = lab.page.locator(".jp-Cell").nth(1).locator(".hs-stage")
    widget.wait_for()
    above = """of => of.getBoundingClientRect().top
        - of.closest(".jp-WindowedPanel-outer").getBoundingClientRect().top"""
    lab.page.wait_for_function(  # JupyterLab scrolls, and then the widget does
        """() => {
            const of = document.querySelector(".hs-stage");
            const page = of.closest(".jp-WindowedPanel-outer");
            const top = of.getBoundingClientRect().top - page.getBoundingClientRect().top;
            return 0 <= top && top < 60;
        }"""
    )
    lab.page.evaluate("() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop += 200; }")
    assert widget.evaluate(above) < 0, "it scrolls once, and then the page is the reader's"


def test_an_error_in_an_exercise_stops_no_cell_below_and_its_solution_is_shown_on_request(lab: Lab) -> None:
    notebook = "01_calling_a_module.ipynb"
    copy = nbformat.read(lab.folder / notebook, 4)
    exercises = [cell for cell in copy.cells if "exercise" in cell.metadata.get("tags", [])]
    for cell, broken in zip(exercises, ("def (", "1 / 0"), strict=False):
        cell.source = broken
    hint = next(cell for cell in copy.cells if cell.source == "# q2.hint()\n# q2.solution()")
    hint.source = hint.source.replace("# q2.solution()", "q2.solution()")
    nbformat.write(copy, lab.folder / "broken.ipynb")
    lab.open("broken.ipynb", again=True)
    lab.run_all()
    lab.show_all()
    expect(lab.page.locator(ERRORS)).to_have_count(2)
    shown = lab.page.locator(".jp-Notebook .jp-Cell")
    expect(cell_with(lab, "broken.ipynb", "chapter_end(")).to_contain_text("0 hooks")
    solution = shown.nth(copy.cells.index(hint))
    solution.scroll_into_view_if_needed()  # what is out of sight is not drawn
    expect(solution).to_contain_text("with module.register_forward_hook(hook)")


def test_a_learner_answers_wrong_then_right_and_every_step_is_said(lab: Lab) -> None:
    lab.open("01_calling_a_module.ipynb", again=True)
    lab.run_all()
    cell = cell_with(lab, "01_calling_a_module.ipynb", "def call_with(module, hook, x):\n    ____")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("Not attempted")
    start = "def call_with(module, hook, x):\n"
    type_into(lab, cell, start + "module.register_forward_hook(hook)\nreturn module(x)\n\n\bq2.check(call_with)")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("After a successful call, your hook is still registered")
    screenshot(lab, "exercise-wrong")
    body = "with module.register_forward_hook(hook):\nreturn module(x)\n\n\b\bq2.check(call_with)"
    type_into(lab, cell, start + body)
    expect(cell.locator(".jp-OutputArea")).to_contain_text("Right.")
    last = cell_with(lab, "01_calling_a_module.ipynb", "chapter_end(")
    last.locator(".cm-content").click()
    lab.page.keyboard.press("Control+Enter")
    expect(last.locator(".jp-OutputArea")).to_contain_text("0 hooks are left on Double, TwoWayReader")


def cells_of(path: Path) -> list[NotebookNode]:
    """The cells of a notebook as it is saved."""
    cells: list[NotebookNode] = nbformat.read(path, 4).cells
    return cells


def widgets_in(notebook: str) -> int:
    """How many widgets a copy shows: those of the instructor's edition, and the questions that nobody has answered."""
    kind = "application/vnd.jupyter.widget-view+json"
    cells = cells_of(lesson_source.NOTEBOOKS / notebook)
    return sum(shows(cell, kind) + ("guess.compare(" in cell.source) for cell in cells)


def shows(cell: NotebookNode, mimetype: str) -> int:
    """How many saved outputs of a cell have this kind of data."""
    return sum(mimetype in output.get("data", {}) for output in cell.get("outputs", []))


def figures(cell: NotebookNode) -> int:
    """How many pictures the saved outputs of a cell show, which built notebooks have in their HTML."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return sum("data:image/png" in each.get("text/html", "") or "image/png" in each for each in data)


def cell_with(lab: Lab, notebook: str, source: str) -> Locator:
    """Scroll to the cell whose source starts with `source`."""
    (place,) = [place for place, cell in enumerate(cells_of(lab.folder / notebook)) if cell.source.startswith(source)]
    lab.page.evaluate(  # until it is drawn: on a busy machine JupyterLab may still be on its way to another cell
        """async (place) => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            for (let turn = 0; turn < 200 && !notebook.widgets[place].node.isConnected; turn++) {
                notebook.activeCellIndex = place;  // where it goes if outputs above grow
                await notebook.scrollToItem(place).catch(() => null);
                await new Promise((go) => setTimeout(go, 100));
            }
        }""",
        place,
    )
    # By its number: JupyterLab may have left out cells above it.
    cell = lab.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{place}"]')
    cell.scroll_into_view_if_needed()
    return cell


def type_into(lab: Lab, cell: Locator, text: str) -> None:
    """Replace a cell's code by keyboard, as a learner would (the editor indents by itself), and run it."""
    cell.locator(".cm-content").click()
    lab.page.keyboard.press("Control+a")
    for character in text:
        lab.page.keyboard.press({"\n": "Enter", "\b": "Backspace"}.get(character, character))
    lab.page.keyboard.press("Control+Enter")


def screenshot(lab: Lab, name: str) -> None:
    """Keep a picture of the page as an artefact of the run, to be looked at (build/ is not committed)."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    lab.page.screenshot(path=ARTEFACTS / f"{name}.png")
