"""Every figure, one row each: how it is made, what a reader does with it, and what Python knows then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure and its controls.

    Attributes:
        label: what its region says of itself.
        code: makes it; the last line returns it.
        clicks: what a reader clicks, one after the other, as Playwright finds it.
        reads: what is printed to see what Python knows.
        clicked: what that is after the clicks, as text.
        focus: where the keyboard begins.
        keys: what is pressed then.
        pressed: what `reads` is after the keys, as text.
        pane: whether it fits into what JupyterLab shows at 1280×720, so that nobody has to scroll in it.
        touch: whether its words are drawn in a scene, where they must not touch.
        alone: whether it works without a kernel.

    """

    label: str
    code: str
    clicks: tuple[str, ...]
    reads: str
    clicked: str
    focus: str
    keys: tuple[str, ...]
    pressed: str
    pane: bool = True
    touch: bool = False
    alone: bool = True


FIGURES: dict[str, Figure] = {
    "PlayingMap": Figure(
        "The map that plays",
        """
from hookscope_course.scenes import PlayingMap
play = PlayingMap({'forward_pre': 'look', 'forward': 'multiply', 'full_backward': 'look'})
play.speed = 8
play
""",
        ("button[aria-label=Next]", ".sc-peg[data-kind=forward_pre]"),
        "play.index, play.hooks['forward_pre']",
        "0 multiply",
        "[role=slider], input[type=range]",
        ("End", "ArrowLeft"),
        "8 look",
        touch=True,
    ),
    "PlayingMap, guess": Figure(
        "The map that plays",
        """
from hookscope_course.scenes import PlayingMap
quiz = PlayingMap(['forward_pre', 'forward', 'full_backward'], guess=True)
quiz.speed = 8
quiz
""",
        (".sc-peg[data-kind=forward]", ".sc-peg[data-kind=forward_pre]"),
        "quiz.index, quiz.guesses",
        "1 [['forward', 'forward_pre']]",
        ".sc-peg[data-kind=forward_pre]",
        ("Enter",),
        "1 [['forward_pre']]",
        touch=True,
    ),
    "TenTimesGame": Figure(
        "The ten-times table",
        "from hookscope_course.scenes import TenTimesGame\ngame = TenTimesGame()\ngame",
        ("button[aria-label='the forward pre-hook changes y']", "button:has-text('Run'):visible >> nth=0"),
        "game.marks, game.revealed",
        "{'forward_pre': ['y']} ['forward_pre']",
        "button[aria-label='the forward pre-hook changes y']",
        ("Space", "ArrowRight", "Space"),
        "{'forward_pre': ['y', 'x.grad']} []",
    ),
    "BothEnds": Figure(
        "Both ends of a module",
        "from hookscope_course.scenes import BothEnds\nends = BothEnds()\nends",
        ("[data-gate=stop_input]", "[data-end='x1.grad']", "button:has-text('Run backward')"),
        "ends.stops, ends.marks, ends.ran",
        "['stop_input'] ['x1.grad'] True",
        "[data-gate=stop_output]",
        ("ArrowDown", "Tab", "Tab", "Space", "Tab", "Enter", "Tab", "Space", "Tab", "Enter"),
        "['stop_output'] ['x1.grad', 'x2.grad', 'W.grad'] True",
        touch=True,
    ),
    "Bridge": Figure(
        "The bridge",
        "from hookscope_course.scenes import Bridge\nbridge = Bridge()\nbridge",
        (".sc-slot >> nth=9 >> circle",),
        "bridge.place",
        "3",
        ".sc-peg[data-rank='1']",
        ("ArrowRight", "ArrowDown", "ArrowUp", "End"),
        "5",
        touch=True,
    ),
}
