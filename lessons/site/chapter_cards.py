"""The chapters as cards for the first page: a picture out of each, its title, and what you do there."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from hookscope.pictures.colors import DARK
from hookscope_course.practice.question import questions_of
from lessons.build import lesson_source

_MAP = "A module between its input"  # how the map of all hooks begins, which many chapters show
_SHOWN = (640, 320)  # pixels; site.css shows a card's picture 128 pixels high


def make_cards(folder: Path) -> str:
    """Write the pictures into a folder; return the HTML of the cards.

    Args:
        folder: `_static/cards` of the site.

    """
    made = []
    for path in lesson_source.chapter_files():
        name, header = lesson_source.name_of(path), lesson_source.header_of(path)
        image = find_picture(lesson_source.NOTEBOOKS / f"{name}.ipynb")
        if image:
            (folder / f"{name}.webp").write_bytes(shrink(image))
        questions = len(questions_of(int(name[:2])))
        # Its title says what the picture would say again.
        shown = (
            f'<img alt="" loading="lazy" src="_static/cards/{name}.webp">' if image else '<span class="none"></span>'
        )
        made.append(
            f'<a class="card" href="{name}.html">{shown}<strong>{name[:2]} · {html.escape(header["title"])}</strong>'
            f"<span>{html.escape(header['promise'])}</span>"
            f'<span class="guessed" data-chapter="{name[:2]}" data-questions="{questions}"></span></a>'
        )
    return f'<div class="cards">\n{chr(10).join(made)}\n</div>'


def find_picture(notebook: Path) -> bytes | None:
    """The largest picture of a notebook that is no map of all hooks and in no solution; None where there is none."""
    found = [
        base64.b64decode("".join(output["data"]["image/png"]))
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if "solution" not in cell["metadata"].get("tags", [])
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {}) and not output["metadata"]["image/png"]["alt"].startswith(_MAP)
    ]
    return max(found, key=len, default=None)


def shrink(image: bytes) -> bytes:
    """Return a picture as WebP, small enough for a card and large enough for a phone with two pixels in one."""
    picture = Image.open(io.BytesIO(image)).convert("RGB")
    picture.thumbnail(_SHOWN)
    kept = io.BytesIO()
    picture.save(kept, format="webp", quality=85, method=6)
    return kept.getvalue()


def draw_social_card() -> bytes:
    """Draw the image that is shown where somebody posts a link to the site, as a PNG of 1200 by 630 pixels."""
    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor=DARK["page"])
    figure.text(0.05, 0.74, "hookscope", color="white", fontsize=54, weight="bold")
    words = "See what happens inside\na PyTorch model, change it,\nand learn how hooks work."
    figure.text(0.05, 0.32, words, color=DARK["ink"], fontsize=24, linespacing=1.5)
    figure.text(0.05, 0.1, "What is going on inside? Click.", color=DARK["hook"], fontsize=24)
    picker = Image.open(lesson_source.ROOT / "docs" / "picker.png").convert("RGB")
    axes = figure.add_axes((0.5, 0.1, 0.46, 0.8))
    axes.imshow(picker)
    axes.set_axis_off()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", facecolor=figure.get_facecolor())
    return drawn.getvalue()
