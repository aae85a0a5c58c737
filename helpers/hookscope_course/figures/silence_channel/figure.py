"""Scale one channel of a layer with a forward hook, and see what the network reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import traitlets
from matplotlib.figure import Figure
from torch import Tensor, nn

from hookscope.layers.find import Which
from hookscope.pictures.colors import CHANGED
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import a, compare_scores, draw_bars, gray, percent, viridis
from hookscope_course.figures.kit.digit_passes import DigitModel, DigitPass, list_scores
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import ALL, Choice, Replay

__all__ = ["SilenceChannel"]

_MOST = 2.0  # the largest factor on the slider


def _list_factors(figure: SilenceChannel) -> Iterator[Choice]:
    for channel, tenths in product(range(len(figure._maps)), range(21)):
        figure.tried = {}  # else the page would show at once what every channel does
        yield {"channel": channel, "factor": tenths / 10}


class SilenceChannel(LazyFigure):
    """Multiply one channel of a layer by a factor, and see what the model reads.

    Each change runs the model twice, without the hook and with it. What the page shows as code is the hook that runs.

    Args:
        model: returns scores of shape (1, classes).
        digit: one gray image (1, 1, H, W).
        layer: a layer that returns maps (1, channels, H, W); the end of its dotted name is enough.

    Attributes:
        channel: which channel.
        factor: what it is multiplied by: 0 silences it, 1 changes nothing, 2 is the most.
        tried: for each channel that was silenced, the digit that the model read.

    Raises:
        ValueError: the digit has another shape.
        TypeError: the layer does not return maps.
        LayerNotFoundError: there is no such layer.

    Example:
        >>> from hookscope import samples
        >>> figure = SilenceChannel(samples.digit_cnn(), samples.digit(1))
        >>> figure.channel, figure.factor = 6, 0
        >>> print(figure.sentence)
        With channel 6 of block1 silenced, the model reads a 1 (71.1 %) instead of an 8.

    """

    _esm, _css = assets(KIT / "digits", Path(__file__).with_suffix(""))
    replay = Replay(("channel", "factor"), {ALL: _list_factors})

    channel = traitlets.Int(0).tag(sync=True)
    factor = traitlets.Float(1.0).tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)
    tried = traitlets.Dict().tag(sync=True)
    _maps = traitlets.List(traitlets.Dict()).tag(sync=True)  # as they are, each with its words
    _digit = traitlets.Unicode("").tag(sync=True)
    _shown = traitlets.Dict().tag(sync=True)  # all that changes

    def __init__(self, model: nn.Module, digit: Tensor, layer: Which = "block1") -> None:
        self._model = DigitModel(model, digit, layer)
        before, after = self._passes()
        maps = before.returned[0]
        tops = [float(each.max()) for each in maps]
        words = [
            {
                "src": viridis(each, 0, top),
                "label": f"channel {n}, " + (f"largest value {top:.3g}" if top else "0 everywhere"),
            }
            for n, (each, top) in enumerate(zip(maps, tops, strict=True))
        ]
        super().__init__(_maps=words, _digit=gray(self._model.digit, 0, 1))
        self._draw(before, after)

    @property
    def sentence(self) -> str:
        """What the hook has just done to the reading."""
        return str(self._shown["sentence"])

    @property
    def output(self) -> Tensor:
        """What the layer returned with the hook, (1, channels, H, W)."""
        return self._after.returned

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the scores with the hook, (classes,)."""
        return self._after.probabilities

    @traitlets.validate("channel")
    def _check_channel(self, proposal: dict[str, Any]) -> int:
        if not 0 <= proposal["value"] < len(self._maps):
            raise traitlets.TraitError(f"there is no channel {proposal['value']}. Pass 0 to {len(self._maps) - 1}")
        return int(proposal["value"])

    @traitlets.validate("factor")
    def _check_factor(self, proposal: dict[str, Any]) -> float:
        if not (math.isfinite(proposal["value"]) and 0 <= proposal["value"] <= _MOST):
            raise traitlets.TraitError(f"factor={proposal['value']} is out of range. Pass 0 to {_MOST:g}")
        return float(proposal["value"])

    @traitlets.observe("channel", "factor")
    @show_errors
    def _changed(self, change: object) -> None:
        self._draw(*self._passes())

    # --- the hook, and the runs ------------------------------------------------------------------------------

    def _hook_source(self) -> str:
        return f"""\
def scale_channel(module, args, output):
    changed = output.clone()
    changed[:, {self.channel}] *= {self.factor:g}
    return changed"""

    def _passes(self) -> tuple[DigitPass, DigitPass]:
        names: dict[str, Any] = {}
        exec(compile(self._hook_source(), "<hook>", "exec"), names)  # what is shown is what runs
        before = self._model.run()
        if not isinstance(before.returned, Tensor) or before.returned.ndim != 4 or len(before.returned) != 1:
            seen = before.returned
            what = f"a tensor {tuple(seen.shape)}" if isinstance(seen, Tensor) else type(seen).__name__
            raise TypeError(f"the layer {self._model.name!r} returns {what}. Pick one that returns (1, channels, H, W)")
        return before, self._model.run(hook=names["scale_channel"])

    # --- what is shown ---------------------------------------------------------------------------------------

    def _draw(self, before: DigitPass, after: DigitPass) -> None:
        self._before, self._after = before, after
        top = _MOST * float(before.returned[0, self.channel].max())  # the same scale for each factor
        map_ = after.returned[0, self.channel]
        with self.hold_sync():
            if self.factor == 0:
                self.tried = {**self.tried, str(self.channel): after.read}
            self.code = self._hook_source() + (
                f"\n\nwith {self._model.path}.register_forward_hook(scale_channel):\n    scores = model(digit)"
            )
            self._shown = {
                "sentence": (sentence := self._sentence()),
                "map": viridis(map_, 0, top),
                "alt": f"Channel {self.channel} with the hook: the largest value is {float(map_.max()):.3g}.",
                "rows": list_scores(before, after),
                "read": after.read,
                "was": before.read,
            }
            self.alt = f"{len(self._maps)} maps of {self._model.name}, and ten bars of the scores. {sentence}"

    def _sentence(self) -> str:
        was, now = self._before, self._after
        reading = f"the model reads {a(now.read)} ({percent(float(now.probabilities.max()))})"
        name = f"channel {self.channel} of {self._model.name}"
        if self.factor == 1:
            return f"Nothing is changed: {reading}."
        done = f"With {name} silenced" if self.factor == 0 else f"With {name} times {self.factor:g}"
        if now.read != was.read:
            return f"{done}, {reading} instead of {a(was.read)}."
        return f"{done}, {reading.replace('reads', 'still reads')}; before: {percent(float(was.probabilities.max()))}."

    def numbers(self) -> Rows:
        """List the probability of every digit, without and with the hook."""
        return compare_scores(self._shown["rows"])

    def _still(self) -> bytes:
        maps = self._after.returned[0].cpu()
        count = len(maps)
        figure = Figure(figsize=(8, 4.4))
        grid = figure.add_gridspec(3, 8, height_ratios=[1, 1, 2.6], hspace=0.25)
        for n, each in enumerate(maps[: min(count, 16)]):
            axes = figure.add_subplot(grid[n // 8, n % 8])
            axes.imshow(each.numpy(), vmin=0, vmax=float(self._before.returned[0, n].max()) or 1)
            axes.set(xticks=[], yticks=[])
            axes.set_title(str(n), fontsize=8, pad=2, fontweight="bold" if n == self.channel else "normal")
            if n == self.channel:
                axes.spines[:].set(color=CHANGED, linewidth=4)
        draw_bars(figure.add_subplot(grid[2, 3:7]), [(name, was, p) for name, p, was in self._shown["rows"]])
        digit = figure.add_subplot(grid[2, 0:3])
        digit.imshow(self._model.digit[0, 0].cpu().numpy(), cmap="gray")
        digit.set(xticks=[], yticks=[])
        digit.set_title(f"reads {self._after.read}", fontsize=10)
        return from_figure(figure, self.alt).png
