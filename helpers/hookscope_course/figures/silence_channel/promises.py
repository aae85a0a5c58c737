"""What `SilenceChannel` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.silence_channel.figure import SilenceChannel

PROMISES: dict[str, Promises] = {
    "SilenceChannel": Promises(
        lambda net: SilenceChannel(net, samples.digit(1)),
        {"channel": 6, "factor": 0.5},
        refused=(("channel", 16, "Pass 0 to 15"), ("factor", 3.0, "Pass 0 to 2")),
        calls=((lambda _: SilenceChannel(samples.digit_cnn(), samples.digit(9), "head"), "returns a tensor (1, 10)"),),
        model=samples.digit_cnn,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SilenceChannel": Controls(
        "Silence a channel",
        """
from hookscope import samples
from hookscope_course.figures import SilenceChannel
net, one = samples.digit_cnn(), samples.digit(1)
figure = SilenceChannel(net, one)
figure
""",
        (
            ".si-tile >> nth=6",
            "button:has-text('Silence')",
        ),
        "figure.channel, figure.factor",
        "6 0.0",
        ".si-tile[tabindex='0']",
        ("ArrowDown", "ArrowRight"),
        "9 1.0",
        alone=False,
    ),
}
