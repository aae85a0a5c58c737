"""What `SealedModels` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.sealed_models.figure import SealedModels

PROMISES: dict[str, Promises] = {
    "SealedModels": Promises(
        lambda _: SealedModels(),
        {"box": 2, "asked": [[], ["census"], [], []]},
        refused=(
            ("box", 5, "box"),
            ("asked", [["open"]], "pass a list for each box"),
            ("accused", [[], [], [], [["head"]]], "pass a list of [layer, mistake]"),
        ),
        calls=(
            (lambda boxes: boxes.ask("open"), "there are census, record"),
            (lambda boxes: boxes.accuse("tail", "it has no hook"), "there is no layer"),
            (lambda boxes: boxes.accuse("head", "it is tired"), "there is no mistake"),
        ),
        secret=lambda boxes: tuple(": ".join(boxes._right(box)) for box in range(1, 5)),
        is_random=True,
    ),
}

CONTROLS: dict[str, Controls] = {
    "SealedModels": Controls(
        "Four sealed models",
        """
from hookscope_course.figures import SealedModels
boxes = SealedModels()
boxes
""",
        ("[data-question=record]",),
        "boxes.box, boxes.asked",
        "1 [['record'], [], [], []]",
        "[data-question=census]",
        ("Enter",),
        "1 [['census'], [], [], []]",
    ),
}
