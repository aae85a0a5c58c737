"""What `GradientPlayground` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.gradient_playground.figure import GradientPlayground
from hookscope_course.figures.kit.promises import Controls, Promises

PROMISES: dict[str, Promises] = {
    "GradientPlayground": Promises(
        lambda _: GradientPlayground(),
        {"choices": {"d": "hook"}, "factors": {"d": 3.0}, "runs": 2},
        refused=(
            *(
                ("values", {"a": wrong, "b": 1.0, "c": 1.0}, "must be a finite number")
                for wrong in (float("nan"), float("inf"), "2", True, None)
            ),
            ("factors", {"a": "2"}, "must be a finite number"),
            ("choices", {"d": "retaingrad"}, "choose from 'nothing'"),
            ("runs", 21, "choose 0 to 20"),
            ("task", 4, "choose 0 to 3, or -1"),
            ("guesses", {"a": "twelve"}, "your guess of a.grad is 'twelve'"),
            ("guesses", {"z": "1"}, "no tensor 'z'"),
        ),
        calls=(
            (lambda each: each.set("z", retain_grad=True), "no tensor 'z'"),
            (lambda each: each.set("d", hook=float("nan")), "must be a finite number"),
            (lambda each: each.set("d", hook=2, first="last"), "first='last'"),
        ),
        together=False,
    ),
    "GradientPlayground, guess": Promises(
        lambda _: GradientPlayground(guess=True),
        {"task": 1, "guesses": {"a": "120"}},
        secret=lambda _: (r"\ba\.grad 12\b", r"\bb\.grad 8\b"),
        reveal={"runs": 1},
        together=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "GradientPlayground": Controls(
        "Gradient playground",
        """
from hookscope_course.figures import GradientPlayground
playground = GradientPlayground()
playground
""",
        ("button:has-text('Run backward')",),
        "playground.runs, playground.choices",
        "2 {}",
        "select >> nth=1",
        ("ArrowDown",),
        "1 {'a': 'retain_grad'}",
        pane=False,
        alone=False,
    ),
    "GradientPlayground, guess": Controls(
        "Gradient playground",
        """
from hookscope_course.figures import GradientPlayground
playground = GradientPlayground(guess=True)
playground
""",
        (),
        "playground.runs, playground.guesses",
        "0 {}",
        "input[aria-label^='your guess of a']",
        ("1", "2", "Enter"),
        "0 {'a': '12'}",
        pane=False,
        alone=False,
    ),
}
