"""Cover a digit with a black square, in one place or in many, and see what a model reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from hookscope.pictures.colors import DOOR, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope_course.figures.kit.digit_images import a, percent
from hookscope_course.figures.kit.digit_passes import DigitModel, DigitPass

__all__ = ["count_reads", "cover_source", "occlusion_map", "run_covered", "sweep"]

STEP = 3  # pixels from one place to the next


def cover_source(row: int, column: int, size: int) -> str:
    """Return the pre-hook that covers a square, as Python."""
    covered = f"    x[..., {row}:{row + size}, {column}:{column + size}] = 0\n" if size else ""
    return f"def cover(module, args):\n    x = args[0].clone()\n{covered}    return (x, *args[1:])"


def run_covered(model: DigitModel, row: int, column: int, size: int) -> DigitPass:
    """Run the model once with the square."""
    names: dict[str, Any] = {}
    exec(compile(cover_source(row, column, size), "<pre-hook>", "exec"), names)  # what is shown is what runs
    return model.run(pre_hook=names["cover"])


def sweep(model: DigitModel, size: int, step: int = STEP) -> list[dict[str, Any]]:
    """Return for each place of the square what is read, and how much probability the digit has lost."""
    was = model.run()
    height, width = model.digit.shape[-2:]
    cells = []
    for row in range(0, height - size + 1, step):
        for column in range(0, width - size + 1, step):
            seen = run_covered(model, row, column, size)
            lost = float(was.probabilities[was.read] - seen.probabilities[was.read])
            cells.append({"row": row, "column": column, "reads": seen.read, "lost": max(0.0, lost)})
    return cells


def count_reads(model: DigitModel, size: int) -> Counter[int]:
    """Return how often each digit is read with a square of this side, over all places inside the image."""
    return Counter(model.read_all(torch.cat(list(_covered(model.digit, size)))))


def _covered(digit: Tensor, size: int) -> Iterator[Tensor]:
    height, width = digit.shape[-2:]
    for row in range(height - size + 1):
        for column in range(width - size + 1):
            covered = digit.clone()
            covered[..., row : row + size, column : column + size] = 0
            yield covered


def occlusion_map(model: nn.Module, digit: Tensor, size: int = 7, step: int = STEP) -> Picture:
    """Draw what a model reads with a black square in each of many places.

    For each place, a pre-hook on the model covers the square. The cell lies where the middle of the square was. The
    redder it is, the more probability the digit has lost; the number in it is the digit that the model reads.

    Args:
        model: returns scores of shape (1, classes).
        digit: one gray image (1, 1, H, W).
        size: the side of the square.
        step: pixels from one place to the next.

    Example:
        >>> from hookscope import samples
        >>> occlusion_map(samples.digit_cnn(), samples.digit(9)).caption
        'A square of 7×7 in 64 places: 10 times the model reads another digit than 9'

    """
    pair = DigitModel(model, digit, "")
    cells, was = sweep(pair, size, step), pair.run().read
    others = [cell["reads"] for cell in cells if cell["reads"] != was]
    caption = (
        f"A square of {size}×{size} in {len(cells)} places: {len(others)} times the model reads another digit "
        f"than {was}"
    )
    figure = Figure(figsize=(3.5, 3.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(1 - 0.35 * digit[0, 0].cpu().numpy(), cmap="gray", vmin=0, vmax=1)  # light ink, so that the red is seen
    for cell in cells:
        top, left = (cell[name] + (size - step) / 2 - 0.5 for name in ("row", "column"))
        axes.add_patch(
            Rectangle((left, top), step, step, facecolor=(0.85, 0.25, 0.15, 0.8 * cell["lost"]), edgecolor=DOOR, lw=0.5)
        )
        place: dict[str, Any] = {"x": left + step / 2, "y": top + step / 2, "ha": "center", "va": "center"}
        look: dict[str, Any] = {"fontsize": 8, "color": MUTED}
        if cell["reads"] != was:
            look = {"fontsize": 12, "fontweight": "bold"}
        axes.text(s=str(cell["reads"]), **place, **look)
    axes.set_axis_off()
    rows = [
        {"row": cell["row"], "column": cell["column"], "reads": cell["reads"], "lost": percent(cell["lost"])}
        for cell in cells
    ]
    return from_figure(figure, f"A heat map over {a(was)}. {caption}.", caption, rows)
