"""What `TenTimesGame` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

import re

from hookscope_course.figures.kit.promises import Controls, Promises
from hookscope_course.figures.ten_times_game.figure import REASONS, TenTimesGame

PROMISES: dict[str, Promises] = {
    "TenTimesGame": Promises(
        lambda _: TenTimesGame(),
        {"marks": {"forward": ["y", "weight.grad"]}, "revealed": ["forward"]},
        calls=(
            (lambda game: game.mark("forward", "bias.grad"), "there are: y, x.grad, weight.grad"),
            (lambda game: game.mark("foward", "y"), "did you mean 'forward'?"),
            (lambda game: game.run("tensor_x"), "there is no place 'tensor_x' for a hook"),
            (lambda _: TenTimesGame(()), "kinds is empty"),
            (lambda _: TenTimesGame("retain_grad"), "there is no place 'retain_grad' for a hook"),
            (lambda game: game.changes("full_backward"), "hidden until you have guessed; then call run('full_b"),
        ),
        secret=lambda _: (r"\b60\b", *map(re.escape, REASONS["forward"].values())),
        reveal={"revealed": ["forward"]},
        final=(("marks", {"forward": ["y"]}, "has been run, so its marks stay"),),
        together=False,
    ),
}

CONTROLS: dict[str, Controls] = {
    "TenTimesGame": Controls(
        "The ten-times table",
        "from hookscope_course.figures import TenTimesGame\ngame = TenTimesGame()\ngame",
        ("button[aria-label='the forward pre-hook changes y']", "button:has-text('Run'):visible >> nth=0"),
        "game.marks, game.revealed",
        "{'forward_pre': ['y']} ['forward_pre']",
        "button[aria-label='the forward pre-hook changes y']",
        ("Space", "ArrowDown", "Space", "ArrowUp", "ArrowRight", "Space"),
        "{'forward_pre': ['y', 'x.grad'], 'forward': ['y']} []",
    ),
}
