"""What `SwitchOff` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.switch_off.figure import SwitchOff

PROMISES: dict[str, Promises] = {
    "SwitchOff": Promises(
        lambda net: SwitchOff(net, samples.digit(1)),
        {"channel": 6, "factor": 0.0},
        refused=(("channel", 16, "Pass 0 to 15"),),
        calls=((lambda _: SwitchOff(samples.digit_cnn(), samples.digit(9), "head"), "returns a tensor (1, 10)"),),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SwitchOff": Controls(
        "Switch off a channel",
        """
from hookscope import samples
from hookscope_course.figures import SwitchOff
figure = SwitchOff(samples.digit_cnn(), samples.digit(1))
figure
""",
        (".so-tile >> nth=6",),
        "figure.channel, figure.factor, figure._after.read",
        "6 0.0 1",
        ".so-tile >> nth=4",
        ("Enter",),
        "4 0.0 1",
        alone=False,
    ),
}
