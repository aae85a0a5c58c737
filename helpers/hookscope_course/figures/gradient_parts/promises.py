"""What `GradientParts` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.gradient_parts.figure import GradientParts
from hookscope_course.figures.gradient_parts.layout import place_steps, place_twice
from hookscope_course.figures.kit.promises import Controls, Promises, list_boxes

PROMISES: dict[str, Promises] = {
    "GradientParts": Promises(
        lambda _: GradientParts(),
        {"place": "step 2", "effect": "double", "guesses": {"got": "8"}, "ran": True},
        refused=(
            ("place", "h9", "choose from '', 'w', 'step 1'"),
            ("effect", "halve", "choose from 'look', 'double'"),
            ("guesses", {"x": "1"}, "what is asked: got, w.grad"),
        ),
        calls=((lambda _: GradientParts("rnn"), "choose from steps, twice"),),
        secret=lambda _: (r"\b18\b", r"4 \+ 8 \+ 6"),
        reveal={"ran": True},
        final=(("guesses", {"w.grad": "1"}, "the guesses stay; move the hook"),),
        hidden="gradients",
        boxes=lambda narrow: list_boxes(place_steps(narrow=narrow)),
    ),
    "GradientParts, twice": Promises(
        lambda _: GradientParts("twice"),
        {"place": "y", "effect": "detach", "guesses": {"first": "8", "second": "8"}, "ran": True},
        secret=lambda _: (r"\b12\b",),
        reveal={"ran": True},
        hidden="gradients",
        boxes=lambda narrow: list_boxes(place_twice(narrow=narrow)),
    ),
}

CONTROLS: dict[str, Controls] = {
    "GradientParts": Controls(
        "Parts of a gradient",
        """
from hookscope_course.figures import GradientParts
parts = GradientParts()
parts
""",
        ("[data-peg=main]",),
        "parts.place, parts.effect, parts.ran",
        "double False",
        "[data-peg=main]",
        ("ArrowUp", "ArrowLeft", "Enter"),
        "step 2 double False",
        touch=True,
    ),
    "GradientParts, twice": Controls(
        "A gradient of a gradient",
        """
from hookscope_course.figures import GradientParts
twice = GradientParts('twice')
twice
""",
        (),
        "twice.effect, twice.ran",
        "look False",
        "select",
        ("ArrowDown", "ArrowDown"),
        "double False",
        touch=True,
    ),
}
