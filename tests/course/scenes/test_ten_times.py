"""The ten-times table: its values are torch's own, it tells nothing before a row is run, and its reasons are true."""

from __future__ import annotations

import re

import pytest

from hookscope_course.scenes import TenTimesGame
from hookscope_course.scenes.one_layer import MULTIPLIERS, PLACES
from hookscope_course.scenes.ten_times import COLUMNS, REASONS
from tests.course.scenes.by_hand import run_by_hand


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


def test_before_a_row_is_run_nothing_is_told():
    game = TenTimesGame()
    assert "?" in str(game.numbers())
    assert "60" not in game.alt + repr(game) + str(game.numbers())
    hidden = game.png
    with pytest.raises(RuntimeError, match=r"hidden until you have guessed; then call run\('forward'\)"):
        game.changes("forward")
    game.run("forward")
    assert game.changes("forward") == ["y", "x.grad", "weight.grad"]
    assert game.png != hidden
    with pytest.raises(RuntimeError, match="hidden"):
        game.changes("full_backward")


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


def test_a_row_that_was_run_keeps_its_marks():
    game = TenTimesGame()
    game.mark("forward", "y")
    game.run("forward")
    with pytest.raises(ValueError, match=r"the row 'forward' has been run, so its marks stay; start_over\(\)"):
        game.mark("forward", "y", "x.grad", "weight.grad")
    assert game.marks == {"forward": ["y"]}


def test_the_page_marks_and_runs_as_python_does():
    game = TenTimesGame()
    game.set_state({"marks": {"forward": ["weight.grad", "y", "x.grad"]}, "_request": 1})
    game.set_state({"revealed": ["forward"], "_request": 2})
    assert (game.score, game.problem) == ("1 of 1 rows", "")
    game.set_state({"revealed": [], "marks": {}, "_request": 3})
    assert game.summary().startswith("TenTimesGame: A table of 6 hooks")


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda game: game.mark("forward", "bias.grad"), "no column 'bias.grad'; there are: y, x.grad, weight.grad"),
        (lambda game: game.mark("foward", "y"), "did you mean 'forward'?"),
        (lambda game: game.run("tensor_x"), "there is no place 'tensor_x' for a hook"),
        (lambda game: TenTimesGame(()), "kinds is empty"),
        (lambda game: TenTimesGame("retain_grad"), "there is no place 'retain_grad' for a hook"),
    ],
)
def test_what_cannot_be_is_refused(act, text):
    game = TenTimesGame()
    with pytest.raises(ValueError, match=re.escape(text)):
        act(game)
    assert (game.marks, game.revealed) == ({}, [])


def test_it_can_be_read_before_it_runs():
    game = TenTimesGame()
    assert game.png.startswith(b"\x89PNG")
    assert game.alt.endswith("Which of y, x.grad and weight.grad does each of them reach?")
    game.run("full_backward")
    assert game.alt.endswith("Run so far: the full backward hook changes x.grad.")
