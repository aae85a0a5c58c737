"""What `SlidingFilter` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.sent_received.promises import SwappedReader
from hookscope_course.figures.sliding_filter.figure import SlidingFilter

PROMISES: dict[str, Promises] = {
    "SlidingFilter": Promises(
        lambda net: SlidingFilter(net, samples.digit(5), channel=10),
        {"channel": 3, "row": 5, "column": 20, "filled": True},
        refused=(
            ("channel", 16, "Pass 0 to 15"),
            ("row", 28, "Pass 0 to 27"),
            ("answer", [28, 0], "pass a row and a column"),
            ("answer", [3], "pass a row and a column"),
        ),
        calls=(
            (lambda _: SlidingFilter(samples.digit_cnn(), samples.digit(9), "block2.conv"), "with one input channel"),
            (lambda _: SlidingFilter(SwappedReader(), samples.digit(9), "network.block1.conv"), "get the digit itself"),
        ),
        model=samples.digit_cnn,
        together=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SlidingFilter": Controls(
        "The sliding filter",
        """
from hookscope import samples
from hookscope_course.figures import SlidingFilter
net, five = samples.digit_cnn(), samples.digit(5)
figure = SlidingFilter(net, five, channel=10, guess=True)
figure
""",
        (
            "button:has-text('Skip the question')",
            "button:has-text('Fill the map')",
        ),
        "figure.asks, figure.filled, figure.answer",
        "False True []",
        ".sf-pad",
        ("ArrowUp", "ArrowLeft", "Enter"),
        "True False [13, 13]",
        alone=False,
    ),
}
