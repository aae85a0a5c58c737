"""What `CallSource` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.call_source.figure import CallSource
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "CallSource": Promises(
        lambda _: CallSource(),
        {"way": "forward", "step": 1},
        refused=(("way", "backward", "way"), ("step", 0, "step")),
        follows=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "CallSource": Controls(
        "What a call runs",
        """
from hookscope_course.figures import CallSource
source = CallSource()
source
""",
        ("button >> nth=1",),
        "source.way, source.step",
        "forward 1",
        "button >> nth=0",
        ("Tab", "Enter"),
        "forward 1",
        pane=False,
    ),
}
