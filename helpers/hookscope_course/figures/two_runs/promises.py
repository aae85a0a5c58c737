"""What `TwoRuns` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope import samples
from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.two_runs.figure import CLEAN, TwoRuns

PROMISES: dict[str, Promises] = {
    "TwoRuns": Promises(
        TwoRuns,
        {"at": [6, 14], "tried": [[6, 14]], "measure": "logits"},
        refused=(("at", [9, 0], "is no cell"), ("tried", [[0]], "is no cell"), ("measure", "cosine", "measure")),
        calls=(
            (lambda runs: runs.patch("norm", 1), "there are tokens"),
            (lambda runs: runs.patch("tokens", 15), "there are 15"),
            (lambda _: TwoRuns(samples.story_lm(), "the dogs near the cat", "the dogs near cat"), "5 and 4 words"),
            (lambda _: TwoRuns(samples.story_lm(), CLEAN, CLEAN.replace("park", "school")), "the answer to both"),
        ),
        model=samples.story_lm,
        secret=lambda runs: tuple(f"{layer} at {position} " for layer, position in runs.red[1:]),
        reveal={"shown": True},
    ),
}

CONTROLS: dict[str, Controls] = {
    "TwoRuns": Controls(
        "Two runs and one arrow",
        """
from hookscope_course.figures import TwoRuns
runs = TwoRuns()
runs
""",
        (".tr-cell[data-cell='tokens 10'] >> nth=1",),
        "runs.tried, runs.at",
        "[[0, 10]] [0, 10]",
        ".tr-cell[tabindex='0']",
        (
            "Home",
            "ArrowUp",
            "End",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "ArrowDown",
            "Enter",
        ),
        "[[6, 14]] [6, 14]",
        touch=True,
    ),
}
