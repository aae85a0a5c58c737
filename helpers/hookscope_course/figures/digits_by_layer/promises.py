"""What `DigitsByLayer` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hookscope import samples
from hookscope_course.figures.digits_by_layer.figure import DigitsByLayer
from hookscope_course.figures.kit.promises import Controls, Promises


def make_figure(
    net: nn.Module, feature: Callable[[Tensor], Tensor] = lambda output: output.mean((2, 3))
) -> DigitsByLayer:
    """Make it of few digits, in little time."""
    (images, labels), (others, names) = samples.digits("train"), samples.digits("test")
    known, shown = (images[:60], labels[:60]), (others[:40], names[:40])
    return DigitsByLayer({"trained": net}, feature, known, shown)


PROMISES: dict[str, Promises] = {
    "DigitsByLayer": Promises(
        make_figure,
        {"depth": 3, "digit": 8, "picked": 4},
        refused=(
            ("depth", 9, "0 to 8"),
            ("digit", 10, "0 to 9"),
            ("picked", 40, "-1 to 39"),
            ("network", "x", "trained"),
        ),
        calls=((lambda _: make_figure(samples.digit_cnn(), lambda output: output), "for pixels"),),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "DigitsByLayer": Controls(
        "Where a digit becomes its class",
        """
from hookscope import samples
from hookscope_course.figures import DigitsByLayer
train, test = samples.digits("train"), samples.digits("test")
known = train.images[:360], train.labels[:360]
networks = {"trained": samples.digit_cnn(), "untrained": samples.digit_cnn(trained=False)}
figure = DigitsByLayer(networks, lambda output: output.mean(dim=(2, 3)), known, test)
figure
""",
        (
            "button:text-is('untrained')",
            "[aria-label=eights]",
        ),
        "figure.network, figure.digit, figure.depth",
        "untrained 8 0",
        "input[type=range]",
        ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"),
        "trained 5 7",
    ),
}
