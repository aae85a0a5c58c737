"""What `WhereItLooks` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.where_it_looks.figure import WhereItLooks

PROMISES: dict[str, Promises] = {
    "WhereItLooks": Promises(
        lambda net: WhereItLooks(net, samples.digit(1), "block3", most=0.04),
        {"target": 1, "step": 5},
        refused=(("step", 21, "step=21"), ("target", 12, "target=12")),
        calls=(
            (lambda _: WhereItLooks(samples.digit_cnn(), samples.digit(9), "block9"), "It has block1"),
            (lambda _: WhereItLooks(samples.digit_cnn(), samples.digit(9), "head"), "does not return maps"),
            (
                lambda _: WhereItLooks(samples.digit_cnn(), samples.digit(9), "block3", classes=[10]),
                "classes from 0 to 9",
            ),
        ),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "WhereItLooks": Controls(
        "Where it looks",
        """
from hookscope import samples
from hookscope_course.figures import WhereItLooks
net, one = samples.digit_cnn(), samples.digit(1)
figure = WhereItLooks(net, one, "block3", most=0.04)
figure
""",
        ("button:text-is('1')",),
        "figure.target, figure.step",
        "1 0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight"),
        "8 2",
        alone=False,
    ),
}
