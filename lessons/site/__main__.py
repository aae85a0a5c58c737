"""The command that makes the site: `python -m lessons.site`."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from sphinx.cmd.build import build_main

from hookscope import samples
from hookscope.widgets.base import HookWidget
from hookscope_course.figures import SwitchOff
from hookscope_course.learner.copies import MOVED, make_edition
from hookscope_course.practice.guess_results import ORDINALS
from hookscope_course.practice.guess_widget import GuessWidget
from lessons.build import lesson_source
from lessons.site import (
    addresses,
    chapter_recordings,
    guess_recordings,
    markdown_pages,
    pages,
    reference,
    search_index,
    widget_recordings,
)
from lessons.site.chapter_cards import draw_social_card, make_cards

HERE = Path(__file__).resolve().parent
OUT = lesson_source.ROOT / "build" / "site"


def main(out: Path = OUT) -> int:
    """Make the site in `out`/html, and say how large it is.

    Args:
        out: a folder that is emptied first.

    Returns:
        The exit status: 1 if Sphinx had something to warn of, or a link leads nowhere.

    """
    start = time.monotonic()
    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    write_source(source)
    status = build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(out / "html")])
    name_levels(out / "html")
    redirect(out / "html")
    write_missing_page(out / "html")
    markdown_pages.write(out / "html")
    found = search_index.write(out / "html")
    broken = search_index.find_broken_links(out / "html")
    print(*broken, sep="\n", end="\n" if broken else "")
    files = [file for file in (out / "html").rglob("*") if file.is_file()]
    made = [file for file in files if file.suffix == ".html"]
    size = sum(file.stat().st_size for file in files) / 1e6
    largest = max(made, key=lambda file: file.stat().st_size, default=None)
    if largest:
        seconds = time.monotonic() - start
        print(f"{len(made)} pages, {size:.1f} MB, {found} sections to find, in {seconds:.0f} s: {out / 'html'}")
        print(f"the largest page: {largest.name}, {largest.stat().st_size / 1e6:.1f} MB")
    return int(status or bool(broken))


def redirect(folder: Path) -> None:
    """Lead from the address of a chapter that has moved to its page of today."""
    for old, new in MOVED.items():
        there = new.replace(".ipynb", ".html")
        text = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>'
            f'<meta http-equiv="refresh" content="0; url={there}"><link rel="canonical" href="{there}"></head>'
            f'<body><p>This page has moved: <a href="{there}">{there}</a></p></body></html>\n'
        )
        (folder / old.replace(".ipynb", ".html")).write_text(text, encoding="utf-8")


def write_missing_page(folder: Path) -> None:
    """Write what a server shows for an address that has no page: a search, and the pages that most people look for."""
    base = addresses.get_site_address() or "/"
    text = (HERE / "404.html").read_text(encoding="utf-8")
    (folder / "404.html").write_text(text.replace("{{base}}", base), encoding="utf-8")


def name_levels(folder: Path) -> None:
    """Say of Furo's captions in the sidebar which level of heading they are; it says only that they are headings."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = text.replace('class="caption" role="heading">', 'class="caption" role="heading" aria-level="2">')
        path.write_text(text, encoding="utf-8")


def write_source(source: Path) -> None:
    """Write everything that Sphinx makes the site from."""
    static = source / "_static"
    for folder in ("cards", "live", "notebooks"):
        (static / folder).mkdir(parents=True)
    shutil.copy(HERE / "conf.py", source)
    shutil.copytree(HERE / "templates", source / "_templates")
    for name in ("site.css", "site.js", "search.js", "favicon.svg"):
        shutil.copy(HERE / name, static)
    script = (HERE / "guesses.js").read_text(encoding="utf-8").replace('"{{ordinals}}"', json.dumps(ORDINALS))
    _write(static / "guesses.js", script)
    shutil.copy(lesson_source.LESSONS / "00_start_here" / "chapter_00.png", static)
    (static / "card.png").write_bytes(draw_social_card())
    notebooks = sorted(lesson_source.NOTEBOOKS.glob("*.ipynb"))
    cells = {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in notebooks}
    alive = chapter_recordings.record(
        [name for name, each in cells.items() if pages.find_widget_cells(each)], static / "live"
    )
    write_guesses(cells, static / "live")
    for path in notebooks:
        page = pages.make_chapter_page(path, alive.get(path.stem))
        (source / f"{pages.get_page_name(path.stem)}.ipynb").write_text(json.dumps(page), encoding="utf-8")
        (static / "notebooks" / path.name).write_bytes(make_edition(path))
    for name, text in reference.make_pages().items():
        _write(source / "reference" / f"{name}.rst", text)
    for path in (lesson_source.ROOT / "teaching").glob("*.md"):
        _write(source / "teaching" / path.name, pages.make_document_page(path))
    for name, address in pages.map_files_to_pages().items():
        if name.endswith(".md") and "teaching" not in name and address != "index":
            _write(source / f"{address}.md", pages.make_document_page(lesson_source.ROOT / name))
    for folder in pages.FOLDERS:
        _write(source / folder / "index.md", list_folder(folder))
    _write(source / "widgets.md", make_gallery(static / "live"))
    index = (HERE / "index.md").read_text(encoding="utf-8")
    minutes = read_minutes()
    parts = {
        "minutes_00": str(minutes["00"]),
        "hours": str(round(sum(minutes.values()) / 60)),
        "count": str(len(minutes)),
        "source": addresses.SOURCE,
        "figure": make_first_figure(static / "live"),
        "cards": make_cards(static / "cards"),
        "toctrees": make_toctrees(),
    }
    for name, text in parts.items():
        index = index.replace(f"{{{{{name}}}}}", text)
    _write(source / "index.md", index)


def write_guesses(cells: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Write what the questions of each chapter answer, and the widget that asks them, once."""
    for name, each in cells.items():
        if answers := guess_recordings.find_answers(each):
            records = {about: guess_recordings.record_question(about, answer) for about, answer in answers.items()}
            script = f"window.hookscopeGuesses = {json.dumps(records, ensure_ascii=False)};\n"
            (folder / f"guesses-{name[:2]}.js").write_text(script, encoding="utf-8")
    widget = json.dumps({"esm": str(GuessWidget._esm), "css": str(GuessWidget._css)}, ensure_ascii=False)
    (folder / "guess.js").write_text(f"window.hookscopeGuess = {widget};\n", encoding="utf-8")


def make_gallery(folder: Path) -> str:
    """The page of the widgets; what they answer goes into `folder`, a script for each."""
    parts = [(HERE / "widgets.md").read_text(encoding="utf-8")]
    for each in widget_recordings.LIVE_WIDGETS:
        widget = each.make()
        fits = widget_recordings.record_within_limit(widget, each.name)
        assert fits, f"{each.name} is too large for a page"
        (folder / f"{each.name}.js").write_text(fits[0], encoding="utf-8")
        parts.append(f"## {each.heading}\n\n{each.words}\n\n{pages.make_live_element(each.name, _make_image(widget))}")
    parts.append("## Those that need a kernel\n")
    for widget in widget_recordings.make_kernel_widgets():
        parts.append(
            f"### {type(widget).__name__}\n\n{widget_recordings.get_first_sentence(widget)}\n\n{_make_image(widget)}\n"
        )
        widget.close()
    return "\n".join(parts)


def read_minutes() -> dict[str, int]:
    """The minutes of each chapter with its exercises, by its number, as docs/course.md has them."""
    rows = re.findall(
        r"^\| \[(\d\d)\].*\| (\d+) \+ (\d+) \|$",
        (lesson_source.ROOT / "docs" / "course.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {number: int(reading) + int(exercises) for number, reading, exercises in rows}


def make_first_figure(folder: Path) -> str:
    """The figure of the first screen; its recording goes into `folder`."""
    figure = SwitchOff(samples.digit_cnn(), samples.digit(1))
    fits = widget_recordings.record_within_limit(figure, "switch_off")
    assert fits, "it has 32 states"
    (folder / "switch_off.js").write_text(fits[0], encoding="utf-8")
    return pages.make_live_element("switch_off", _make_image(figure))


def _make_image(widget: HookWidget) -> str:
    image = base64.b64encode(widget.png).decode("ascii")
    return f'<img class="still" alt="{html.escape(widget.alt)}" src="data:image/png;base64,{image}">'


def list_folder(folder: str) -> str:
    """The page that lists the pages of a folder in docs."""
    title, words = pages.FOLDERS[folder]
    names = "\n".join(path.stem for path in pages.list_pages(folder))
    return f"# {title}\n\n{words}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"


def make_toctrees() -> str:
    """The lists of all pages, as the index has them."""
    chapters = [path.parent.name for path in lesson_source.chapter_files()]
    lists = {
        "Chapters": chapters,
        "Look up": [pages.get_page_name(path.parent.name) for path in lesson_source.reference_files()],
        "Begin": ["install", "tour", "course"],
        "The package": [
            "widgets",
            "reference/index",
            "other_tools",
            "errors/index",
            "limits/index",
            "side_effects",
            "compatibility",
            "strict",
            "benchmarks",
            "changelog",
        ],
        "Teach and contribute": ["classroom", "contributing"],
    }
    return "\n".join(
        f"```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{chr(10).join(names)}\n```\n"
        for caption, names in lists.items()
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
