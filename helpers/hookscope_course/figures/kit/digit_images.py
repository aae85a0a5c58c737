"""Words and pictures that the figures of the digits share."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from hookscope.pictures.colors import DATA
from hookscope.pictures.palette import VIRIDIS
from hookscope.pictures.picture import Rows

__all__ = ["a", "compare_scores", "draw_bars", "gray", "percent", "url", "viridis"]


def a(digit: int) -> str:
    """Return a digit with its article."""
    return f"{'an' if digit == 8 else 'a'} {digit}"


def percent(share: float) -> str:
    """Return a probability as text."""
    return f"{100 * share:.1f} %"


def compare_scores(rows: Sequence[tuple[str, float, float]]) -> Rows:
    """List the probabilities of digits with a hook, and what they were without it."""
    return [
        {"digit": name, "without the hook": percent(was), "with the hook": percent(share)} for name, share, was in rows
    ]


def gray(image: Tensor, low: float, high: float) -> str:
    """Return an image (…, H, W), from black at `low` to white at `high`, as a data URL."""
    return url(_levels(image, low, high))


def viridis(image: Tensor, low: float, high: float) -> str:
    """Return a map (…, H, W) in the colors of `feature_grid` as a data URL."""
    return url(VIRIDIS[_levels(image, low, high)])


def draw_bars(axes: Axes, rows: Sequence[tuple[str, float, float]]) -> None:
    """Draw the probabilities of digits as filled bars, and what they were before as outlines."""
    places = range(len(rows))
    axes.barh(places, [after for _, _, after in rows], color=DATA[0], height=0.7)
    axes.barh(places, [before for _, before, _ in rows], color="none", edgecolor="black", height=0.7)
    for place, (_, _, after) in zip(places, rows, strict=True):
        axes.text(1.03, place, percent(after), va="center", fontsize=9)
    axes.set(xlim=(0, 1), xticks=[], yticks=list(places), yticklabels=[name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _levels(image: Tensor, low: float, high: float) -> NDArray[np.uint8]:
    values = image.reshape(image.shape[-2:]).cpu().double().nan_to_num().numpy()
    return np.rint(255 * np.clip((values - low) / ((high - low) or 1), 0, 1)).astype(np.uint8)


def url(pixels: NDArray[np.uint8]) -> str:
    """Return pixels, gray or RGB, as a data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
