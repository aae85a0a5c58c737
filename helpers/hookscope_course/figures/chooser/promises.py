"""What `Chooser` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.chooser.figure import Chooser
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "Chooser": Promises(
        lambda _: Chooser(),
        {"words": "gradient", "group": "debug"},
        refused=(("group", "x", "group"),),
        follows=False,
        has_picture=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "Chooser": Controls(
        "The chooser",
        """
from hookscope_course.figures import Chooser
chooser = Chooser()
chooser
""",
        ("button:text-is('Debug')",),
        "chooser.group",
        "debug",
        "button:text-is('Debug')",
        ("Enter",),
        "debug",
        pane=False,
    ),
}
