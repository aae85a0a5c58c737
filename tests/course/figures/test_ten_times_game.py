"""The ten-times table: its values are torch's own, it tells nothing before a row is run, and its reasons are true."""

from __future__ import annotations

import re

import pytest

from hookscope_course.figures import TenTimesGame
from hookscope_course.figures.playing_map.one_layer import MULTIPLIERS, PLACES
from hookscope_course.figures.ten_times_game.figure import COLUMNS, REASONS
from tests.course.figures.by_hand import run_by_hand


@pytest.mark.parametrize("kind", MULTIPLIERS)
def test_each_row_is_what_torch_does(kind):
    game = TenTimesGame(kind)
    game.run()
    _, plain = run_by_hand({})
    _, ends = run_by_hand({kind: "multiply"})
    assert list(game.numbers()) == [{"hook": "no hook", **plain}, {"hook": PLACES[kind].name, **ends}]
    assert game.changes(kind) == [name for name in COLUMNS if ends[name] == 10 * plain[name]]
    assert all(ends[name] in (plain[name], 10 * plain[name]) for name in COLUMNS)


@pytest.mark.parametrize("kind", MULTIPLIERS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_reason_that_names_a_result_names_the_one_of_torch(kind, column):
    value = run_by_hand({kind: "multiply"})[1][column]
    reason = REASONS[kind][column]
    for said in re.findall(rf"so (?:{re.escape(column)}|it) is (?:[\d ·]+= )?(\d+)", reason):
        assert float(said) == value
    changed = value != run_by_hand({})[1][column]
    assert changed or not re.search(r"so \S+ is", reason)


def test_right_wrong_and_the_reason_of_each_wrong_cell():
    game = TenTimesGame()
    game.mark("full_backward", "weight.grad")
    assert game.run("full_backward") == (
        "full backward hook: 1 of 3 cells right.\n"
        "x.grad becomes 20: the hook replaces grad_input, which is what goes on to x, so x.grad is 10 · 2 = 20.\n"
        "weight.grad stays 3: the layer makes it from grad_output; the hook replaces grad_input, which goes on to x."
    )
    game.mark("forward_pre", "y", "x.grad", "weight.grad")
    assert game.run("forward_pre") == "forward pre-hook: right."
    assert game.score == "1 of 2 rows"


def test_five_of_six_rows():
    game = TenTimesGame()
    for kind in game._kinds:
        game.mark(kind, *[name for name, value in run_by_hand({kind: "multiply"})[1].items() if value > 6])
    game.mark("post_accumulate_grad", "x.grad")
    game.run()
    assert game.score == "5 of 6 rows"
    assert repr(game).startswith("TenTimesGame: 5 of 6 rows\nforward pre-hook: right.")
    game.start_over()
    assert (game.marks, game.revealed, game.score) == ({}, [], "0 of 0 rows")


def test_a_row_without_a_mark_is_not_guessed():
    game = TenTimesGame()
    game.mark("forward", "y")
    game.mark("tensor_y")
    game.run("tensor_y")
    assert game.score == "0 of 0 rows; 1 not guessed"
    game.run()
    assert game.score == "0 of 1 rows; 5 not guessed"
    told = game.run("full_backward").splitlines()
    assert told[0] == "full backward hook: not guessed."
    assert [line.partition(":")[0] for line in told[1:]] == ["y stays 6", "x.grad becomes 20", "weight.grad stays 3"]


def test_each_hook_changes_something_so_no_mark_is_no_guess():
    for kind in MULTIPLIERS:
        assert run_by_hand({kind: "multiply"})[1] != run_by_hand({})[1]
