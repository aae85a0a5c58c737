"""Two pictures, or two numbers, to compare."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hookscope.pictures.colors import DATA, DOOR, LINE, MUTED
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["draw_highest", "draw_pair"]

_GAP, _TITLE = 24, 26  # pixels between the two, and for the title above each


def draw_pair(left: Picture, right: Picture) -> Picture:
    """Draw two pictures side by side, each with its title above it.

    Args:
        left: what `feature_grid` or `image_grid` returns, with a title.
        right: the picture to compare it with.

    Example:
        >>> import torch
        >>> from hookscope import feature_grid
        >>> maps = torch.tensor([[[0.0, 1.0]], [[0.0, 9.0]]])
        >>> own = feature_grid(maps, title="Own scales")
        >>> draw_pair(own, feature_grid(maps, scale="shared", title="One scale")).caption
        'Own scales | One scale'

    """
    from PIL import Image, ImageDraw, ImageFont

    both = (left, right)
    titles = [each.caption.partition("\n")[0].partition(":")[0] for each in both]
    images = [Image.open(io.BytesIO(each.png)).convert("RGB") for each in both]
    font = ImageFont.load_default(size=15)
    wide = [max(image.width, int(font.getlength(title)) + 8) for image, title in zip(images, titles, strict=True)]
    size = (sum(wide) + _GAP, _TITLE + max(image.height for image in images))
    canvas = Image.new("RGB", size, images[0].getpixel((0, 0)))
    pen, start = ImageDraw.Draw(canvas), 0
    for image, title, across in zip(images, titles, wide, strict=True):
        pen.text((start + 6, 4), title, fill=(20, 20, 20), font=font)
        canvas.paste(image, (start, _TITLE))
        start += across + _GAP
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG")
    rows = [{"picture": title, **row} for each, title in zip(both, titles, strict=True) for row in each.rows]
    return Picture(
        buffer.getvalue(), f"On the left: {both[0].alt} On the right: {both[1].alt}", " | ".join(titles), rows
    )


def draw_highest(channels: Sequence[str], before: Sequence[float], after: Sequence[float]) -> Picture:
    """Draw how high each channel gets before its ReLU: with the digits, and with digits ten times as bright.

    Args:
        channels: their names.
        before: the highest value of each, with the digits.
        after: the same with brighter digits.

    Example:
        >>> draw_highest(["block3: 4"], [-0.06], [-0.02]).rows
        [{'channel': 'block3: 4', 'the digits': -0.06, '10 × as bright': -0.02}]

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 0.9 + 0.42 * len(channels)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(min(*before, *after) - 0.1, 0, color=DOOR)
    axes.axvline(0, color=MUTED, linewidth=1.2)
    for row, (low, high) in enumerate(zip(before, after, strict=True)):
        way = {"arrowstyle": "-|>", "color": LINE, "linewidth": 1.6, "shrinkA": 5, "shrinkB": 5}
        axes.annotate("", (high, row), (low, row), arrowprops=way)
    rows = range(len(channels))
    axes.plot(before, rows, "o", ms=9, mfc="white", mec=DATA[0], mew=2, label="the digits")
    axes.plot(after, rows, "o", ms=9, color=DATA[0], label="10 × as bright")
    axes.set(xlim=(min(*before, *after) - 0.05, max(*before, *after) + 0.05), ylim=(len(channels) - 0.5, -0.5))
    axes.set_yticks(rows, channels)
    axes.set_xlabel("highest value before the ReLU; gray: the ReLU returns 0")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right", "left"]].set_visible(False)
    table = [
        {"channel": name, "the digits": round(low, 2), "10 × as bright": round(high, 2)}
        for name, low, high in zip(channels, before, after, strict=True)
    ]
    said = "; ".join(f"{row['channel']} from {row['the digits']} to {row['10 × as bright']}" for row in table)
    alt = f"The highest value of each channel before its ReLU, with the digits and ten times as bright: {said}."
    return from_figure(figure, alt=alt, rows=table, heading="The numbers in the picture")
