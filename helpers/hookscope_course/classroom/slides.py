"""Write a chapter as slides that need no kernel and no network; widgets are there as their pictures."""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from hookscope.pictures.colors import LIGHT
from hookscope_course.classroom.slide_order import split_into_slides
from hookscope_course.learner.copies import find_chapter
from hookscope_course.notebook_pictures import join_pictures
from hookscope_course.paths import IS_INSTALLED

__all__ = ["write_slides"]

_WIDGET = "application/vnd.jupyter.widget-view+json"
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<link rel="stylesheet" href="reveal.js/dist/reset.css">
<link rel="stylesheet" href="reveal.js/dist/reveal.css">
<style>
$style
body, .reveal { font-family: Helvetica, Arial, sans-serif; font-size: 25px; color: $ink; background: white; }
.reveal .slides section { text-align: left; height: 100%; overflow-y: auto; padding: 12px 30px; }
.reveal .slides section { box-sizing: border-box; }
.reveal h1, .reveal h2, .reveal h3 { font-weight: bold; margin: 0.4em 0; }
.reveal h1 { font-size: 40px; } .reveal h2 { font-size: 34px; } .reveal h3 { font-size: 28px; }
.reveal p, .reveal ul, .reveal ol, .reveal table { margin: 0.5em 0; }
.reveal ul { padding-left: 1.2em; list-style: disc; } .reveal ol { padding-left: 1.2em; list-style: decimal; }
.reveal pre, .reveal code { font-family: monospace; font-size: 21px; line-height: 1.3; white-space: pre-wrap; }
.reveal .highlight { background: $frame; padding: 8px 14px; margin: 0.5em 0; }
.reveal strong { font-weight: bold; } .reveal em { font-style: italic; }
.reveal a { color: $accent; text-decoration: underline; }
.reveal table { font-size: 20px; border-collapse: collapse; }
.reveal th, .reveal td { padding: 2px 10px; border-bottom: 1px solid $line; text-align: left; }
.reveal img { max-width: 100%; max-height: 620px; width: auto; height: auto; }
.reveal .anchor-link, .reveal .jp-InputPrompt, .reveal .jp-OutputPrompt, .reveal .prompt { display: none; }
</style>
</head>
<body>
<div class="reveal"><div class="slides">
$sections
</div></div>
<script src="reveal.js/dist/reveal.js"></script>
<script>
Reveal.initialize({
  width: 1280, height: 720, margin: 0, center: false, transition: "none", hash: true,
  slideNumber: (slide) => [slide?.dataset.number ?? ""],  // asked first before there is a slide
});
</script>
</body>
</html>
""")


def write_slides(chapter: str, to: Path) -> Path:
    """Write a chapter's slides into a folder, with the reveal.js that shows them.

    What a cell puts out comes on a slide after the cell, with the same number: a question can be asked before.

    Args:
        chapter: its number, e.g. "02".
        to: the folder.

    Returns:
        The page to open in a browser.

    Raises:
        CopyError: there is no such chapter; says which there are.
        ModuleNotFoundError: no reveal.js here; says which package ships it.

    """
    source, reveal = find_chapter(chapter), _find_reveal()
    import nbformat
    from nbconvert import HTMLExporter
    from nbformat.v4 import new_notebook
    from pygments.formatters import HtmlFormatter

    built = nbformat.read(source, as_version=4)
    words = {"template_name": "basic", "exclude_input_prompt": True, "exclude_output_prompt": True}
    shows, only_outputs = HTMLExporter(**words), HTMLExporter(exclude_input=True, **words)
    sections = []
    slides = [*split_into_slides(built.cells)]
    for number, slide in enumerate(slides, 1):
        for part in _split_at_outputs(slide):
            exporter = only_outputs if part[0].get("outputs") else shows
            cells = [nbformat.from_dict(cell) for cell in part]
            page, _ = exporter.from_notebook_node(new_notebook(cells=cells, metadata=built.metadata))
            sections.append(f'<section data-number="{number} / {len(slides)}">{page}</section>')
    title = built.cells[1].source.splitlines()[0].removeprefix("# ")
    page = _PAGE.substitute(
        title=html.escape(title),
        style=HtmlFormatter().get_style_defs(".highlight"),
        sections="\n".join(sections),
        **LIGHT,
    )
    to.mkdir(parents=True, exist_ok=True)
    shutil.copytree(reveal / "dist", to / "reveal.js" / "dist", dirs_exist_ok=True)
    target = to / f"{source.stem}.html"
    target.write_text(page, encoding="utf-8")
    return target


def _split_at_outputs(slide: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Cut a slide where a cell has put something out: that comes on a slide of its own, after a question was asked."""
    part: list[dict[str, Any]] = []
    for cell in slide:
        outputs = join_pictures(cell.get("outputs", []))
        part.append({**cell, "outputs": []} if outputs else cell)
        if outputs and "guess = Guess(" not in cell["source"]:  # a guess has nothing to say yet
            yield part
            yield [{**cell, "outputs": [_make_static(output) for output in outputs]}]
            part = []
    if part:
        yield part


def _make_static(output: dict[str, Any]) -> dict[str, Any]:
    """An output that needs no kernel: of a widget its picture."""
    data = {kind: shown for kind, shown in output.get("data", {}).items() if kind != _WIDGET}
    return {**output, "data": data} if data else output


def _find_reveal() -> Path:
    """Find reveal.js, which a package for Sphinx ships whole."""
    spec = find_spec("sphinx_revealjs")
    if spec is None or spec.origin is None:
        command = "pip install sphinx-revealjs" if IS_INSTALLED else "make dev"
        raise ModuleNotFoundError(
            f"reveal.js is missing. `{command}` installs the package that contains it, sphinx-revealjs"
        )
    return Path(spec.origin).parent / "_static" / "revealjs"
