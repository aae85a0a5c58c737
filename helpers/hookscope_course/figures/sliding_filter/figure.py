"""Slide a filter over a digit, and watch the map fill with the sums."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
import traitlets
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from hookscope.layers.find import Which
from hookscope.pictures.colors import DARK
from hookscope.pictures.palette import COOLWARM, LEVELS, palette
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import gray, url
from hookscope_course.figures.kit.digit_passes import DigitModel
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import ALL, Choice, Replay

__all__ = ["SlidingFilter"]

_HUNDREDTHS = 100  # the products travel as the integers that the page shows, in as few bits as they need


def _list_filters(figure: SlidingFilter) -> Iterator[Choice]:
    yield from ({"channel": channel} for channel in range(len(figure._filters)))


class SlidingFilter(LazyFigure):
    """Slide a filter of a convolution over a digit: the products, their sum, and the map that fills with the sums.

    The map is what the layer returned, kept by a forward hook. The products are computed by torch for every position.

    Args:
        model: runs the layer on the digit.
        digit: one gray image (1, 1, H, W).
        layer: a `Conv2d` that gets the digit itself, and returns a map of its size; the end of its name is enough.
        guess: ask where the map will have its highest value, before it fills.

    Attributes:
        channel: which filter.
        row: the row of the filter's center, which is the row of the sum in the map.
        column: the column of the filter's center.
        answer: row and column of the guess; empty before.
        asks: whether the figure asks for a guess before it shows a sum.
        filled: whether the whole map is shown.

    Raises:
        ValueError: the digit has another shape.
        TypeError: the layer is no such convolution.
        LayerNotFoundError: there is no such layer.

    Example:
        >>> from hookscope import samples
        >>> figure = SlidingFilter(samples.digit_cnn(), samples.digit(5), channel=10)
        >>> figure.row, figure.column = figure.highest
        >>> print(figure.sentence)
        Row 4, column 13 of the map: the 25 products, 0.819, and the bias, 0.019, add up to 0.838.

    """

    _esm, _css = assets(KIT / "digits", Path(__file__).with_suffix(""))
    replay = Replay(
        ("channel",),
        {ALL: _list_filters},
        quiet=("row", "column", "answer", "asks", "filled"),
    )

    channel = traitlets.Int(0).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    answer = traitlets.List(traitlets.Int()).tag(sync=True)
    asks = traitlets.Bool(False).tag(sync=True)
    filled = traitlets.Bool(False).tag(sync=True)
    _filters = traitlets.List(traitlets.Dict()).tag(sync=True)  # a small picture of each, with its words
    _digit = traitlets.Dict().tag(sync=True)  # its picture, its size, its values
    _run = traitlets.Dict().tag(sync=True)  # all that belongs to the channel

    def __init__(
        self, model: nn.Module, digit: Tensor, layer: Which = "block1.conv", channel: int = 0, *, guess: bool = False
    ) -> None:
        found = DigitModel(model, digit, layer)
        conv = found.layer
        if not _fits(conv):
            raise TypeError(
                f"the layer {found.name!r} is {conv}. Pick a Conv2d with one input channel, a square odd kernel, "
                "stride 1, and zeros as padding that keep the size"
            )
        once = found.run()
        if not torch.equal(once.received, found.digit):
            raise TypeError(f"the layer {found.name!r} does not get the digit itself. Pick the first layer")
        self._height, self._width = digit.shape[-2:]
        self._weight = conv.weight.detach()[:, 0].cpu()  # (filters, k, k)
        bias = conv.bias
        self._bias = torch.zeros(len(self._weight)) if bias is None else bias.detach().cpu()
        self._map = once.returned[0].cpu()
        size = self._weight.shape[-1]
        self._patches = F.unfold(found.digit.cpu(), size, padding=size // 2)[0]  # (k · k, positions)
        self._name, self._image = found.name, found.digit[0, 0].cpu()
        most = float(self._weight.abs().max())
        filters = [
            {"src": _signed(each, most), "label": f"filter {n}, from {_text(each.min())} to {_text(each.max())}"}
            for n, each in enumerate(self._weight)
        ]
        values = [round(value, 3) for value in self._image.flatten().tolist()]
        shown = {"src": gray(self._image, 0, 1), "height": self._height, "width": self._width, "values": values}
        middle = {"row": self._height // 2, "column": self._width // 2}
        super().__init__(_filters=filters, _digit=shown, channel=channel, asks=guess, **middle)
        self._send_channel()

    @property
    def sums(self) -> Tensor:
        """The map of the channel, as the layer returned it, (H, W)."""
        return self._map[self.channel]

    @property
    def products(self) -> Tensor:
        """The products at each position, (positions, k, k)."""
        weight = self._weight[self.channel]
        return (self._patches * weight.flatten()[:, None]).T.reshape(-1, *weight.shape)

    @property
    def highest(self) -> tuple[int, int]:
        """Row and column of the highest value of the map."""
        row, column = divmod(int(self.sums.argmax()), self._width)
        return row, column

    @property
    def sentence(self) -> str:
        """What the filter gives where it lies, or what the figure asks."""
        if self.asks and not self.answer:
            return "Where will the map have its highest value? Click there on the digit, before anything is computed."
        if self.filled and self.answer:
            row, column = self.answer
            best = f"The highest value is {_text(self.sums.max())}, at row {self.highest[0]}, column "
            return f"{best}{self.highest[1]}. Where you clicked, it is {_text(self.sums[row, column])}."
        bias, value = (round(float(each), 3) for each in (self._bias[self.channel], self.sums[self.row, self.column]))
        total = _text(value - bias, 3)  # of what is shown, so that the sum on the page is right
        return (
            f"Row {self.row}, column {self.column} of the map: the {self._weight[0].numel()} products, {total}, and "
            f"the bias, {_text(bias, 3)}, add up to {_text(value, 3)}."
        )

    @property
    def verdict(self) -> str:
        """What the map has at the pixel of the guess, and what it has at most; empty before the guess."""
        if not self.answer:
            return ""
        row, column = self.answer
        here, most = _text(self.sums[row, column], 3), _text(self.sums.max(), 3)
        return (
            f"Your pixel: {here}, the highest!"
            if (row, column) == self.highest
            else f"Your pixel: {here}. The highest: {most}."
        )

    @traitlets.validate("channel", "row", "column")
    def _check(self, proposal: dict[str, Any]) -> int:
        name, value = proposal["trait"].name, proposal["value"]
        many = {"channel": len(self._weight), "row": self._height, "column": self._width}[name]
        if not 0 <= value < many:
            raise traitlets.TraitError(f"{name}={value} is out of range. Pass 0 to {many - 1}")
        return int(value)

    @traitlets.validate("answer")
    def _check_answer(self, proposal: dict[str, Any]) -> list[int]:
        place = proposal["value"]
        if place and not (len(place) == 2 and 0 <= place[0] < self._height and 0 <= place[1] < self._width):
            raise traitlets.TraitError(f"answer={place}: pass a row and a column of the map")
        return list(place)

    @traitlets.observe("channel")
    @show_errors
    def _changed(self, change: object) -> None:
        if self._run:  # not while it is made
            self._send_channel()

    def _send_channel(self) -> None:
        products, top = self.products, float(self.sums.abs().max())
        with self.hold_sync():
            self.answer, self.filled = [], False
            whole = (products * _HUNDREDTHS).round()
            kind = "int8" if float(whole.abs().max()) <= 127 else "<i2"
            self._run = {
                "channel": self.channel,
                "filter": [round(value, 3) for value in self._weight[self.channel].flatten().tolist()],
                "bias": round(float(self._bias[self.channel]), 3),
                "products": base64.b64encode(whole.numpy().astype(kind).tobytes()).decode("ascii"),
                "bits": 8 if kind == "int8" else 16,
                "values": [round(value, 5) for value in self.sums.flatten().tolist()],
                "colors": base64.b64encode(_colors(self.sums, top).tobytes()).decode("ascii"),
                "best": list(self.highest),
                "most": round(float(products.abs().max()), 4),
                "strongest": round(float(self._weight.abs().max()), 4),
            }
            side = self._weight.shape[-1]
            self.alt = (
                f"A {side}×{side} filter on a digit, and the map of channel {self.channel} of {self._name}: red is "
                f"above 0, blue below. Its highest value is {_text(self.sums.max())}, at row {self.highest[0]}, "
                f"column {self.highest[1]}."
            )

    def numbers(self) -> Rows:
        """List the patch, the filter and the products where the map has its highest value."""
        place = self.highest[0] * self._width + self.highest[1]
        patch, products = self._patches[:, place].tolist(), self.products[place].flatten().tolist()
        weight = self._weight[self.channel]
        return [
            {"row": n // len(weight), "column": n % len(weight), "digit": patch[n], "filter": w, "product": products[n]}
            for n, w in enumerate(weight.flatten().tolist())
        ]

    # The filter lies where the map has its highest value.
    def _still(self) -> bytes:
        (row, column), side = self.highest, self._weight.shape[-1]
        products = self.products[row * self._width + column]
        patch = self._patches[:, row * self._width + column].reshape(side, side)
        most = float(self._weight.abs().max())
        top = float(self.sums.abs().max())
        figure = Figure(figsize=(10, 2.5))
        axes = figure.subplots(1, 5)
        signed = {"cmap": "coolwarm", "vmin": -most, "vmax": most}
        axes[0].imshow(self._image.numpy(), cmap="gray", vmin=0, vmax=1)
        axes[1].imshow(patch.numpy(), cmap="gray", vmin=0, vmax=1)
        axes[2].imshow(self._weight[self.channel].numpy(), **signed)
        axes[3].imshow(products.numpy(), **signed)
        axes[4].imshow(self.sums.numpy(), cmap="coolwarm", vmin=-top, vmax=top)
        corner = (column - side / 2, row - side / 2)
        axes[0].add_patch(Rectangle(corner, side, side, fill=False, edgecolor=DARK["hook"], lw=3))
        axes[4].add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", lw=2))
        names = ("the digit", "patch", f"× filter {self.channel}", "= products", "their sums: the map")
        for each, name in zip(axes, names, strict=True):
            each.set(xticks=[], yticks=[])
            each.set_title(name, fontsize=10)
        return from_figure(figure, self.alt).png


def _fits(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    if not isinstance(layer, nn.Conv2d) or layer.in_channels != 1:
        return False
    side, across = layer.kernel_size
    return (
        side == across
        and side % 2 == 1
        and layer.stride == layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and layer.padding in ((side // 2, side // 2), "same")
    )


def _text(value: Tensor | float, decimals: int = 2) -> str:
    """Write a value as the page does."""
    rounded = round(float(value), decimals) + 0.0  # no −0.00
    return f"{rounded:.{decimals}f}".replace("-", "−")


def _colors(values: Tensor, top: float) -> Any:
    """Return the RGB of values, blue below 0 and red above."""
    levels = ((values / (top or 1)).clamp(-1, 1) + 1) / 2 * (LEVELS - 1)
    return palette(COOLWARM)[levels.round().to(torch.uint8).numpy()]


def _signed(values: Tensor, top: float) -> str:
    return url(_colors(values, top))
