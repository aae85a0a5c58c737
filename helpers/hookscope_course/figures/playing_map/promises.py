"""What `PlayingMap` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.playing_map.figure import PlayingMap, hook_pass

PROMISES: dict[str, Promises] = {
    "PlayingMap": Promises(
        lambda _: PlayingMap(),
        {"hooks": {"forward": "multiply", "tensor_x": "look"}, "index": 3},
        refused=(("hooks", {"foward": "look"}, "did you mean 'forward'?"), ("index", 99, "from 0 to")),
        calls=(
            (lambda play: play.place("foward"), "did you mean 'forward'?"),
            (lambda play: play.place("forward", "double"), "can 'look' or 'multiply'"),
            (lambda play: play.place("retain_grad", "multiply"), "takes no function"),
            (lambda play: play.move("tensor_x", "tensor_y"), "no hook at 'tensor_x'; there are hooks at: forward_pre"),
            (lambda play: play.move("forward", "forward_pre"), "already; remove('forward_pre')"),
            (lambda play: play.remove("tensor_x"), "no hook at 'tensor_x'"),
            (lambda play: play.choose("forward"), "PlayingMap(guess=True) does"),
            (lambda _: hook_pass("full_backward").place("forward"), "there are: full_backward"),
            (lambda _: hook_pass("full_backward", backward=False), "no place 'full_backward'"),
        ),
    ),
    "PlayingMap, guess": Promises(
        lambda _: PlayingMap(["forward_pre", "forward"], guess=True),
        {"guesses": [["forward", "forward_pre"]], "index": 1},
        secret=lambda _: ("x.grad = ", "in this order"),
        reveal={"guesses": [["forward_pre"], ["forward"]]},
    ),
    "PlayingMap, forward": Promises(
        lambda _: hook_pass("forward_pre", "forward", backward=False),
        {"hooks": {"forward": "look"}},
        secret=lambda _: ("grad", "ackward"),
    ),
}

CONTROLS: dict[str, Controls] = {
    "PlayingMap": Controls(
        "The map that plays",
        """
from hookscope_course.figures import PlayingMap
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
    "PlayingMap, guess": Controls(
        "The map that plays",
        """
from hookscope_course.figures import PlayingMap
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
    "hook_pass": Controls(
        "The map that plays",
        """
from hookscope_course.figures import hook_pass
small = hook_pass('full_backward_pre', 'full_backward')
small.speed = 8
small
""",
        (".sc-play",),
        "small.index",
        "8",
        ".sc-peg[data-kind=full_backward]",
        ("Enter", "ArrowRight"),
        "1",
        touch=False,
    ),
}
