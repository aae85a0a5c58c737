"""What `FoolingSquare` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.fooling_square.figure import FoolingSquare
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "FoolingSquare": Promises(
        lambda net: FoolingSquare(net, samples.digit(9)),
        {"size": 5, "hinted": True},
        refused=(("size", 29, "Pass 0 to 28"), ("goal", 9, "pass one of")),
        calls=((lambda _: FoolingSquare(samples.digit_cnn(), samples.digit(9), goal=9), "reads a 9 already"),),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "FoolingSquare": Controls(
        "The square that fools",
        """
from hookscope import samples
from hookscope_course.figures import FoolingSquare
net, nine = samples.digit_cnn(), samples.digit(9)
figure = FoolingSquare(net, nine, goal=4)
figure
""",
        (".sq-pad",),
        "figure.size, figure.tries",
        "7 1",
        ".sq-pad",
        ("-", "-", "ArrowDown", "ArrowRight"),
        "6 4",
        alone=False,
    ),
}
