"""What `SentReceived` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.sent_received.figure import SentReceived


class SwappedReader(nn.Module):
    """Turns black and white around, as the program of chapter 00 does."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: Tensor) -> Tensor:
        """Return the scores of the digits."""
        return cast(Tensor, self.network(1 - scan))


PROMISES: dict[str, Promises] = {
    "SentReceived": Promises(
        lambda net: SentReceived(net, samples.digit(5)),
        {"place": "door", "picked": "sent"},
        refused=(("place", "roof", "place"), ("picked", "both", "picked")),
        calls=(
            (lambda _: SentReceived(SwappedReader(), samples.digit(9), layer="block2"), "receives (1, 16, 28, 28)"),
            (lambda _: SentReceived(SwappedReader(), samples.digit(9), layer="blok1"), "blok1"),
            (lambda _: SentReceived(SwappedReader(), samples.digit(9), layer="conv"), "picks 3 layers"),
            (lambda _: SentReceived(SwappedReader(), samples.digit(9)[0]), "Pass one gray image"),
            (lambda _: SentReceived(SwappedReader(), cast(Any, [samples.digit(9)])), "digit is list"),
        ),
        model=SwappedReader,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SentReceived": Controls(
        "Sent and received",
        """
from torch import nn
from hookscope import samples
from hookscope_course.figures import SentReceived
class DigitReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = samples.digit_cnn()
    def forward(self, scan):
        return self.network(1 - scan)
figure = SentReceived(DigitReader(), samples.digit(5))
figure
""",
        (".se-received .se-pick",),
        "figure.picked, figure.place",
        "received layer",
        ".se-received .se-pick",
        ("Enter",),
        "received layer",
        alone=False,
    ),
}
