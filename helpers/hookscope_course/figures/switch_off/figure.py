"""Switch off one channel of a layer with a click: the first figure of the site."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.replay import ALL, Choice, Replay
from hookscope_course.figures.silence_channel.figure import SilenceChannel

__all__ = ["SwitchOff"]


def _list_switches(figure: SwitchOff) -> Iterator[Choice]:
    for channel, factor in product(range(len(figure._maps)), (0.0, 1.0)):
        figure.tried = {}
        yield {"channel": channel, "factor": factor}


class SwitchOff(SilenceChannel):
    """Show what goes in, the maps of a layer and what the model reads; a click on a map sets it to zero.

    It is `SilenceChannel` with one control: a factor of 0 or 1.

    Example:
        >>> from hookscope import samples
        >>> figure = SwitchOff(samples.digit_cnn(), samples.digit(1))
        >>> print(figure.sentence)
        Nothing is changed: the model reads an 8 (65.0 %).

    """

    _esm, _css = assets(KIT / "digits", Path(__file__).with_suffix(""))
    replay = Replay(("channel", "factor"), {ALL: _list_switches})
