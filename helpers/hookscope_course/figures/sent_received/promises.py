"""What `SentReceived` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from typing import Any, cast

from hookscope import samples
from hookscope_course.chapters.ch00_reader import DigitReader
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.sent_received.figure import SentReceived

PROMISES: dict[str, Promises] = {
    "SentReceived": Promises(
        lambda net: SentReceived(net, samples.digit(5)),
        {"place": "door", "picked": "sent"},
        refused=(("place", "roof", "place"), ("picked", "both", "picked")),
        calls=(
            (lambda _: SentReceived(DigitReader(), samples.digit(9), layer="block2"), "receives (1, 16, 28, 28)"),
            (lambda _: SentReceived(DigitReader(), samples.digit(9), layer="blok1"), "blok1"),
            (lambda _: SentReceived(DigitReader(), samples.digit(9), layer="conv"), "picks 3 layers"),
            (lambda _: SentReceived(DigitReader(), samples.digit(9)[0]), "Pass one gray image"),
            (lambda _: SentReceived(DigitReader(), cast(Any, [samples.digit(9)])), "digit is list"),
        ),
        model=DigitReader,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SentReceived": Controls(
        "Sent and received",
        """
from torch import nn
from hookscope import samples
from hookscope_course.chapters.ch00_reader import DigitReader
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
