"""Make the pages of the site: chapters with their answers folded away, and links that lead from page to page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from nbformat import NotebookNode

from hookscope_course.learner.learner_edition import FOLDED, is_bare_label
from hookscope_course.notebook_pictures import join_pictures
from hookscope_course.practice.question import question, questions_of
from lessons.build import lesson_source
from lessons.build.lesson_source import NOTEBOOKS, ROOT
from lessons.build.slide_contents import find_answer
from lessons.site import addresses, guess_recordings

Cell = dict[str, Any]
_PART = re.compile(r"^(?=\*\*Predict\.\*\*|#{2,6} )", re.MULTILINE)
_LINK = re.compile(r"(?<!\!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^()\s]+)\)")
WIDGET = "application/vnd.jupyter.widget-view+json"
DOWNLOAD_TEXT = "This page as a notebook"
DOWNLOAD = f'<a href="_static/notebooks/{{}}" download>{DOWNLOAD_TEXT}</a>{{}}.'
GUESS_HERE = (
    "Your guesses and most figures work on this page. To change the code and to do the exercises, "
    '<a href="install.html">install the course</a>.'
)
FOLDERS = {
    "errors": ("Errors", "What you see, why, and what to type. Messages of hookscope end with the path of their page."),
    "limits": ("Limits", "Details of the functions and widgets that are too long for their docstrings."),
}
DEPLOY = {
    "deploy/README.md": "deploy/index",
    "deploy/docker/README.md": "deploy/docker",
    "deploy/tljh.md": "deploy/tljh",
    "deploy/kubernetes/README.md": "deploy/kubernetes",
    "deploy/no-machine.md": "deploy/no-machine",
}
"""The pages on servers for a class, and where each is on the site."""
DOCS = ("install", "tour", "course", "other_tools", "compatibility", "strict", "classroom", "side_effects")
RUN_IT = "*This figure needs a kernel: in your own copy (`make lab`) you can click it. Here is how it begins.*"


def list_pages(folder: str) -> list[Path]:
    """List the pages of a folder in docs."""
    return sorted((ROOT / "docs" / folder).glob("*.md"))


def get_page_name(notebook: str) -> str:
    """The name of a notebook's page. The first page of the course is not that of the site."""
    return "where_to_begin" if notebook == "index" else notebook


def map_files_to_pages() -> dict[str, str]:
    """Where a file of the repository is on the site; what is not here is not on it."""
    found = {f"notebooks/{path.name}": get_page_name(path.stem) for path in NOTEBOOKS.glob("*.ipynb")}
    found |= {f"teaching/{path.name}": f"teaching/{path.stem}" for path in (ROOT / "teaching").glob("*.md")}
    for folder in FOLDERS:
        found |= {f"docs/{folder}/{path.name}": f"{folder}/{path.stem}" for path in list_pages(folder)}
    found |= {f"docs/{name}.md": name for name in DOCS}
    return found | {
        **DEPLOY,
        "README.md": "index",
        "benchmarks/README.md": "benchmarks",
        "CHANGELOG.md": "changelog",
        "CONTRIBUTING.md": "contributing",
        "lessons/91_chooser": "91_chooser",
    }


def find_widget_cells(cells: list[Cell]) -> list[str]:
    """The ids of the cells that show a widget.

    A question is asked in the page without its buttons, and what a solution shows stays as it was saved.
    """
    return [
        cell["id"]
        for cell in cells
        if any(WIDGET in each.get("data", {}) for each in cell.get("outputs", []))
        and not guess_recordings.ABOUT.search("".join(cell["source"]))
        and "solution" not in cell["metadata"].get("tags", [])
    ]


def make_chapter_page(path: Path, alive: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make a page of a built notebook, as JSON: questions first, and what they ask for only when it is opened.

    Folded are all cells between a prediction and the next heading, solutions, and imports, which nobody has to read
    before the question. Exercises stand there as a learner meets them.

    Args:
        path: the notebook.
        alive: a sentence on what it answers for each widget that was recorded, by the id of its cell.

    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts = [*fold_answers(_make_cells(notebook["cells"], path, alive or {}))]
    parts.insert(1, make_text_cell(_make_introduction(path, notebook["cells"])))
    cells = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(parts)]
    return {**notebook, "cells": cells, "metadata": {"kernelspec": notebook["metadata"]["kernelspec"]}}


def _make_introduction(path: Path, cells: list[Cell]) -> str:
    """What stands below the title: the notebook to load, and how the guesses went."""
    asked = [guess_recordings.ABOUT.search("".join(cell["source"])) for cell in cells]
    download = DOWNLOAD.format(path.name, ", with nothing answered" if any(map(_is_exercise, cells)) else "")
    for service, address in addresses.list_launch_addresses(path.stem).items():
        download += f' <a href="{html.escape(address)}">Open it in {service}</a>.'
    if not (questions := len([*filter(None, asked)])):
        return download
    score = f'<p class="score" data-chapter="{path.stem[:2]}" data-questions="{questions}"></p>'
    return f"{download} {GUESS_HERE}\n\n{score}"


def _is_exercise(cell: Cell) -> bool:
    return "exercise" in cell["metadata"].get("tags", [])


def _make_cells(cells: list[Cell], path: Path, alive: Mapping[str, str]) -> Iterator[Cell]:
    """The cells of a page: text cut before each heading and prediction, links that lead on, headings' old anchors."""
    where = f"notebooks/{path.name}"
    for cell in cells:
        if cell["cell_type"] == "code":
            cell = {**cell, "outputs": join_pictures(cell["outputs"])}
        source, tags = "".join(cell["source"]), {*cell["metadata"].get("tags", [])}
        if {"edition", "hint", "notebook"} & tags or is_bare_label(cell):
            continue
        if source.rstrip().endswith("\nprogress()"):
            yield make_text_cell(make_progress())
            continue
        if "stop" in tags:
            source = source.partition("\n\n")[0]  # the rest is about a kernel
        if cell["cell_type"] == "code":
            yield from _make_code_cells(cell, tags, f"{path.stem[:2]}-{cell['id']}", alive.get(cell["id"]))
            continue
        if cell["metadata"].get(FOLDED):
            yield make_text_cell(make_fold(source, cell["id"]), ["fold"])
            continue
        for part in filter(str.strip, _PART.split(source)):
            yield make_text_cell(add_anchors(replace_links(part, where), cell["id"]), cell["metadata"].get("tags", []))


def make_progress() -> str:
    """The guesses of each chapter, which this browser remembers, in place of a cell that needs a learner's copy."""
    rows = [
        f'<li><a href="{lesson_source.name_of(path)}.html">{lesson_source.name_of(path)[:2]} · '
        f"{html.escape(lesson_source.header_of(path)['title'])}</a> "
        f'<span class="guessed" data-chapter="{lesson_source.name_of(path)[:2]}" '
        f'data-questions="{len(questions_of(int(lesson_source.name_of(path)[:2])))}"></span></li>'
        for path in lesson_source.chapter_files()
    ]
    return (
        "<p>This browser remembers your guesses on these pages. Your own copy of the course (<code>make lab</code>) "
        f'also remembers your exercises.</p>\n<ul class="progress">{"".join(rows)}</ul>'
    )


def make_fold(source: str, identity: str) -> str:
    r"""The line of a fold that is open in no browser at first: a heading, and the text below it.

    Args:
        source: such as "### D0.1\n\n**D0.1** · *The document says:* …".
        identity: of the cell, by which other pages link to it.

    """
    heading, _, words = source.partition("\n\n")
    parts = html.escape(words, quote=False).split("`")
    for at, part in enumerate(parts):
        said = re.sub(r"\*(.+?)\*", r"<em>\1</em>", re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", part))
        parts[at] = f"<code>{part}</code>" if at % 2 else said
    name = heading.lstrip("# ")
    summary = f"<summary>{''.join(parts)}</summary>"
    return f"<details class='answer' id='{name}'>{summary}\n<span id='cell-id={identity}'></span>\n"


def make_live_element(name: str, still: str, words: str = "") -> str:
    """Where a recorded widget is drawn once it comes near to what the reader sees.

    Args:
        name: of its recording.
        still: HTML that stands there until then, on paper, and where no script runs.
        words: a sentence below it.

    """
    whole = re.sub(r"\n\s*\n", "\n", still)  # a blank line would end the HTML
    return f'<div class="live" data-live="{name}">\n{whole}\n</div>\n\n{words}\n'


def _make_code_cells(cell: Cell, tags: set[str], name: str, alive: str | None) -> Iterator[Cell]:
    source = "".join(cell["source"])
    if "exercise" in tags:
        yield {**cell, "outputs": [], "metadata": {}}
    elif "solution" in tags:
        yield make_text_cell("<details class='answer'><summary>A solution</summary>\n")
        yield {**cell, "source": source.removeprefix("# solution\n"), "metadata": {}}
        yield make_text_cell("</details>\n")
    elif lesson_source.has_only_imports(source):
        yield {**cell, "metadata": {"imports": True}}
    elif found := guess_recordings.ABOUT.search(source):
        about = found[1]
        element = (
            f'<div class="guess" '
            f'data-guess="{about}">{html.escape(guess_recordings.describe_offers(question(about)))}</div>'
        )
        yield {**make_text_cell(element), "metadata": {"guess": about}}
    else:
        cell, told = _remove_comparison(cell)
        widgets = [each for each in cell["outputs"] if WIDGET in each.get("data", {})]
        others = [each for each in cell["outputs"] if each not in widgets]
        hidden = ["hide-input"] if cell["metadata"].get("jupyter", {}).get("source_hidden") else []
        if widgets and not alive:
            yield make_text_cell(RUN_IT)
        if cell["source"]:
            yield {**cell, "outputs": others if alive else cell["outputs"], "metadata": {"tags": hidden}}
        if alive:
            still = "".join(widgets[0]["data"].get("text/html", ""))
            yield make_text_cell(make_live_element(name, still, alive))
        if told:
            yield make_text_cell(told)


def _remove_comparison(cell: Cell) -> tuple[Cell, str]:
    """The cell without its comparison, which nobody runs on a page, and the answer that it shows, as HTML."""
    before, compares, _ = "".join(cell["source"]).rpartition("guess.compare(")
    if not compares:
        return cell, ""
    kept = [each for each in cell["outputs"] if find_answer(NotebookNode({**cell, "outputs": [each]})) is None]
    answer = find_answer(NotebookNode(cell)) or ""
    told = f'<p class="told">The answer is <strong>{html.escape(answer)}</strong>.</p>'
    return {**cell, "source": before.strip(), "outputs": kept}, told


def fold_answers(cells: Iterator[Cell]) -> Iterator[Cell]:
    """Fold away what comes between a guess and the next heading or the place to stop, and imports."""
    is_open = False
    for cell in cells:
        source = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        ends = re.search(r"^(#{1,6} |\*\*Predict\.\*\*)", source, re.M) or "stop" in cell["metadata"].get("tags", [])
        begins = "fold" in cell["metadata"].get("tags", [])
        if is_open and not is_code and (ends or begins):
            yield make_text_cell("</details>\n")
            is_open = False
        if cell["metadata"].get("imports") and not is_open:
            yield make_text_cell("<details class='imports'><summary>Imports</summary>\n")
            yield {**cell, "metadata": {}}
            yield make_text_cell("</details>\n")
        else:
            yield {**cell, "metadata": {"tags": cell["metadata"].get("tags", [])}} if is_code else cell
        if (about := cell["metadata"].get("guess", "")) or "guess" in cell["metadata"].get("tags", []):
            named = f" data-answer='{about}'" if about else ""
            yield make_text_cell(f"<details class='answer'{named}><summary>Run it: what happens, and why</summary>\n")
            is_open = True
        is_open = is_open or begins
    if is_open:
        yield make_text_cell("</details>\n")


def make_text_cell(source: str, tags: list[str] | None = None) -> Cell:
    """A cell of Markdown."""
    return {"cell_type": "markdown", "metadata": {"tags": tags or []}, "source": source}


def add_anchors(source: str, identity: str) -> str:
    """Put before each heading what links in notebooks call it: JupyterLab's name for it, and the cell's."""

    def anchors(heading: re.Match[str]) -> str:
        names = dict.fromkeys((heading[1].strip().replace(" ", "-"), f"cell-id={identity}"))
        spans = "".join(f'<span id="{html.escape(name)}"></span>' for name in names)
        return f"{spans}\n\n{heading[0]}"

    return re.sub(r"^#{2,6} (.+)$", anchors, source, flags=re.MULTILINE)


def replace_links(source: str, path_of_source: str) -> str:
    """Let links to files of the repository lead to their pages; to what is no page, only the words stay.

    Args:
        source: Markdown.
        path_of_source: the path in the repository of the file that it is from.

    Example:
        >>> links = "[02](02_call_order.ipynb), [ruff](pyproject.toml), [docs](https://x.org)"
        >>> replace_links(links, "notebooks/01_x.ipynb")
        '<a href="02_call_order.html">02</a>, ruff, [docs](https://x.org)'

    """
    pages = map_files_to_pages()
    page_here = pages.get(path_of_source, "")

    def lead(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if re.match(r"\w+:", target):
            return link[0]
        path, _, anchor = target.partition("#")
        found = pages.get(normpath(PurePosixPath(path_of_source).parent / path)) if path else page_here
        if not found:
            return words
        up = "../" * page_here.count("/")
        shown = re.sub(r"`([^`]+)`", lambda code: f"<code>{html.escape(code[1])}</code>", words)
        return f'<a href="{up}{found}.html{"#" + html.escape(anchor) if anchor else ""}">{shown}</a>'

    fences = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", source, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else _LINK.sub(lead, part) for number, part in enumerate(fences))


def make_document_page(path: Path) -> str:
    """A page of the repository as a page of the site."""
    where = path.relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    page = replace_links(re.sub(r"<!--.*?-->\n?", "", source, flags=re.DOTALL), where)
    return page + (_list_teachers_pages() if where == "docs/classroom.md" else "")


def _list_teachers_pages() -> str:
    """The pages below that for teachers, which a learner's list of pages does not show."""
    chapters = [f"teaching/{path.parent.name}" for path in lesson_source.chapter_files()]
    names = "\n".join(["teaching/plan", *chapters, *DEPLOY.values()])
    return f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
