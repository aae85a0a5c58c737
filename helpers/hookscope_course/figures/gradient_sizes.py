"""Lay the sizes of gradients over a digit, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from hookscope.pictures.colors import MUTED
from hookscope.pictures.picture import Picture, from_figure

__all__ = ["gradient_sizes"]

_REDS = LinearSegmentedColormap.from_list("reds", [(1, 0.96, 0.94, 0.15), (0.85, 0.15, 0.1, 0.8), (0.4, 0, 0.05, 0.95)])


def gradient_sizes(
    digit: Tensor, gradients: Mapping[str, Tensor], title: str, side: float = 4.1, square: int = 0
) -> Picture:
    """Draw where each gradient is large, over the digit. Its absolute values are summed over the channels.

    Args:
        digit: one gray image (1, 1, H, W); its ink is drawn in light gray.
        gradients: maps the name of each picture to its gradient (1, channels, h, w).
        title: the start of the caption.
        side: the width of each picture, in inches.
        square: if not 0, lines divide each picture into squares of this many positions a side.

    Example:
        >>> import torch
        >>> from hookscope import samples
        >>> gradient_sizes(samples.digit(5), {"A": torch.ones(1, 2, 14, 14)}, "Ones").rows
        [{'picture': 'A', 'size': '14×14', 'smallest': 2.0, 'largest': 2.0}]

    """
    height, width = digit.shape[-2:]
    figure = Figure(figsize=(side * len(gradients), side + 0.3))
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.88, wspace=0.04)
    rows = []
    for axes, (name, gradient) in zip(
        figure.subplots(1, len(gradients), squeeze=False)[0], gradients.items(), strict=True
    ):
        size = gradient[0].detach().cpu().abs().sum(dim=0)
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes.imshow(1 - 0.45 * digit[0, 0].cpu().numpy(), cmap="gray", vmin=0, vmax=1, extent=extent)
        axes.imshow(
            size.numpy(), cmap=_REDS, vmin=0, vmax=float(size.max()) or 1, extent=extent, interpolation="nearest"
        )
        for at in range(square, min(size.shape), square) if square else ():
            line = {"color": MUTED, "linewidth": 0.8}
            axes.axhline(height * at / size.shape[0] - 0.5, **line)
            axes.axvline(width * at / size.shape[1] - 0.5, **line)
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, fontsize=15)
        high, wide = size.shape
        low, top = (round(float(value), 3) for value in (size.min(), size.max()))
        rows.append({"picture": name, "size": f"{high}×{wide}", "smallest": low, "largest": top})
    caption = f"{title}: a redder square has a larger gradient"
    pictures = "1 picture" if len(rows) == 1 else f"{len(rows)} pictures"
    return from_figure(figure, f"{pictures} over a digit: {', '.join(gradients)}. {caption}.", caption, rows)
