"""What `BothEnds` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.both_ends import figure as both_ends
from hookscope_course.figures.both_ends.figure import BothEnds
from hookscope_course.figures.kit.promises import Controls, Promises, list_boxes

PROMISES: dict[str, Promises] = {
    "BothEnds": Promises(
        lambda _: BothEnds(),
        {"stops": ["stop_output"], "plain": ["x1"], "marks": ["x2.grad"], "ran": True},
        refused=(
            ("stops", ["stop_weight"], "there are: stop_input, stop_output"),
            ("plain", ["W"], "there are: x1, x2"),
            ("marks", ["y"], "there are: x1.grad, x2.grad, W.grad"),
        ),
        secret=lambda _: (r"\b(15|10|6)\b",),
        reveal={"ran": True},
        final=(("marks", ["x1.grad"], "the marks stay; change a gate"),),
        hidden="gradients",
        boxes=lambda narrow: list_boxes(both_ends._place(narrow)),
    ),
}

CONTROLS: dict[str, Controls] = {
    "BothEnds": Controls(
        "Both ends of a module",
        "from hookscope_course.figures import BothEnds\nends = BothEnds()\nends",
        ("[data-gate=stop_input]", "[data-end='x1.grad']", "button:has-text('Run backward')"),
        "ends.stops, ends.marks, ends.ran",
        "['stop_input'] ['x1.grad'] True",
        "[data-gate=stop_output]",
        ("ArrowDown", "Tab", "Tab", "Space", "Tab", "Enter", "Tab", "Space", "Tab", "Enter"),
        "['stop_output'] ['x1.grad', 'x2.grad', 'W.grad'] True",
        touch=True,
    ),
}
