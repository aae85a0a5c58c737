"""What `FactCheck` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.fact_check.figure import FactCheck
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "FactCheck": Promises(
        lambda _: FactCheck(),
        {"words": "hook", "group": "outdated"},
        refused=(("group", "x", "group"),),
        follows=False,
        has_picture=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "FactCheck": Controls(
        "The fact check",
        """
from hookscope_course.figures import FactCheck
facts = FactCheck()
facts
""",
        ("button:has-text('outdated')",),
        "facts.group",
        "outdated",
        "button:has-text('outdated')",
        ("Enter",),
        "outdated",
        pane=False,
    ),
}
