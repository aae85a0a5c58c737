"""What `Bridge` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.bridge import figure as bridge
from hookscope_course.figures.bridge.figure import Bridge
from hookscope_course.figures.kit.promises import Controls, Promises, list_boxes

PROMISES: dict[str, Promises] = {
    "Bridge": Promises(
        lambda _: Bridge(),
        {"place": 3},
        refused=(("place", 6, "the places are 0 to 5"),),
        calls=(
            (lambda each: each.move("backward hook"), "the places are for"),
            (lambda _: Bridge(bridge.RECORDED[:1]), "takes the results of train_one_step"),
            (lambda _: Bridge([{"weight": 1.0}] * 2), "takes the results of train_one_step"),
        ),
        boxes=lambda narrow: list_boxes(bridge._lay_out(narrow=narrow)),
    ),
}

CONTROLS: dict[str, Controls] = {
    "Bridge": Controls(
        "The bridge",
        "from hookscope_course.figures import Bridge\nbridge = Bridge()\nbridge",
        (".sc-slot >> nth=9 >> circle",),
        "bridge.place",
        "3",
        ".sc-peg[data-rank='1']",
        ("ArrowRight", "ArrowDown", "ArrowUp", "End"),
        "5",
        touch=True,
    ),
}
