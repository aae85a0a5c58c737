"""The report on one head: what is true gets its point, and no trick does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope_course import exercises
from hookscope_course.chapters import ch21_head_report as head_report
from hookscope_course.chapters.ch21_cloakroom import cloakroom_lists, cloakroom_lm, things_of
from hookscope_course.chapters.ch21_head_report import STATEMENTS, review, turned_by
from hookscope_course.practice.feedback_card import Card
from tests.shared.exercises import run_answer, run_submission

(EXERCISE,) = exercises(21)
REPORT, STEER = run_submission(EXERCISE)
HEAD, CONTROL = REPORT["head"], REPORT["control"]
IDLE = next((1, number) for number in range(4) if (1, number) not in (HEAD, CONTROL))
Hook = Callable[..., Any]


def lost(report: dict[str, Any], steer: Any = STEER) -> dict[int, str]:
    """Which points a report does not get, and why."""
    return {at: problem for at, (_, problem) in enumerate(review(report, steer).criteria, start=1) if problem}


def adds(vector: Tensor) -> Hook:
    def steer(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, -1] += vector
        return output

    return steer


def vector_of(steer: Hook) -> Tensor:
    rows = torch.zeros(1, 2, 32)
    found: Tensor = steer(None, (rows,), rows)[0, -1]
    return found


VECTOR = vector_of(STEER)


def test_the_solution_gets_six_points_and_leaves_no_hook() -> None:
    assert lost(REPORT) == {}
    assert len(hookscope.census(head_report._model())) == 0


@pytest.mark.parametrize(
    ("changes", "points", "said"),
    [
        ({"head": IDLE}, {1, 2, 3}, "a patch of"),
        ({"head": CONTROL, "control": HEAD}, {1, 2, 3}, "turns 0 of 100"),
        ({"head": CONTROL, "control": HEAD, "turned": REPORT["turned"][::-1]}, {1, 2}, "turns 0 of 100"),
        ({"head": (0, 0)}, {1, 2, 3}, "turns 0 of 100"),
        ({"head": None}, {1, 2, 3}, "nothing is written yet"),
        ({"head": 1}, {1, 2, 3}, "write block and number of a head"),
        ({"head": (1, 4)}, {1, 2, 3}, "write block and number of a head"),
        ({"head": (True, 0)}, {1, 2, 3}, "write block and number of a head"),
        ({"head": (-1, HEAD[1])}, {1, 2, 3}, "write block and number of a head"),
        ({"control": HEAD, "turned": (REPORT["turned"][0],) * 2}, {2}, "a control is a second one"),
        ({"control": (0, 0)}, {2}, "take one of the same block"),
        ({"control": IDLE}, {2}, "take one that looks there as much"),
        ({"control": None}, {2, 3}, "nothing is written yet"),
        ({"control": "1, 2"}, {2, 3}, "write block and number of a head"),
        ({"turned": (12, 0)}, {3}, "you wrote 12"),
        ({"turned": (REPORT["turned"][0], 50)}, {3}, "a patch of the control turns 0; you wrote 50"),
        ({"turned": REPORT["turned"][0]}, {3}, "write two integers"),
        ({"turned": (1.0, 0.0)}, {3}, "write two integers"),
        ({"turned": (float("nan"), 0)}, {3}, "write two integers"),
        ({"turned": None}, {3}, "nothing is written yet"),
        ({"limits": {"A", "E"}}, {6}, "A goes too far"),
        ({"limits": {*STATEMENTS}}, {6}, "A goes too far"),
        ({"limits": {"B"}}, {6}, "one more is true"),
        ({"limits": "B and E"}, {6}, "write the letters of two statements"),
        ({"limits": 2}, {6}, "write the letters of two statements"),
        ({"limits": None}, {6}, "nothing is written yet"),
    ],
)
def test_a_claim_that_is_not_true_gets_no_point(changes: dict[str, Any], points: set[int], said: str) -> None:
    found = lost({**REPORT, **changes})
    assert {*found} == points
    assert said in found[min(points)]


def at_every_token(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output + VECTOR


def at_the_first(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    output = output.clone()
    output[:, 1] += VECTOR
    return output


def at_thirteen(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Right on each list, and not what was asked for."""
    output = output.clone()
    output[:, 13] += VECTOR
    return output


def another_for_each(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Put the row of Anna in, whoever comes: no vector is added."""
    output = output.clone()
    output[:, -1] = VECTOR
    return output


def only_on_lists(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Pass the probe with a short vector, and push harder on lists."""
    return adds(VECTOR / 100 if output.dtype == torch.float64 else VECTOR)(module, args, output)


def writes_and_returns_nothing(module: nn.Module, args: Any, output: Tensor) -> None:
    output[:, -1] += VECTOR


@pytest.mark.parametrize(
    ("steer", "points", "said"),
    [
        (None, {4, 5}, "nothing is written yet"),
        (42, {4, 5}, "write a forward hook"),
        (lambda module, args, output: None, {4, 5}, "returned None, so the output of `blocks.0` stayed"),
        (writes_and_returns_nothing, {4, 5}, "wrote into `output` and returned None"),
        (
            lambda module, args, output: writes_and_returns_nothing(module, args, output) or output,
            {4, 5},
            "changed copy",
        ),
        (lambda module, args, output: output, {4, 5}, "changes nothing"),
        (lambda module, args, output: output[:, -1], {4, 5}, "return all the rows"),
        (lambda module, args, output: 0, {4, 5}, "returned int"),
        (lambda module, args, output: 1 / 0, {4, 5}, "your hook raised ZeroDivisionError"),
        (lambda output: output, {4, 5}, "your hook raised TypeError"),
        (at_every_token, {4, 5}, "changes other rows"),
        (at_the_first, {4, 5}, "changes other rows"),
        (at_thirteen, {4, 5}, "your hook raised IndexError"),
        (another_for_each, {4, 5}, "not add the same vector"),
        (only_on_lists, {4, 5}, "on a list, your hook does something else"),
        (adds(torch.full((32,), torch.inf)), {4, 5}, "not"),
        (adds(-VECTOR), {4, 5}, "Ben gets Anna's thing in"),
        (adds(VECTOR / 100), {4, 5}, "Ben gets Anna's thing in 0 of 100, and his own in 100"),
        (adds(100 * VECTOR), {4, 5}, "Ben gets Anna's thing in"),
        (adds(VECTOR / 0.7), {5}, "take a shorter one"),
    ],
)
def test_a_hook_that_does_something_else_gets_no_point(steer: Any, points: set[int], said: str) -> None:
    found = lost(REPORT, steer)
    assert {*found} == points
    assert said in found[min(points)]


def test_the_numbers_are_those_of_the_model() -> None:
    found = review(REPORT, STEER)
    lists = cloakroom_lists(100, seed=head_report._HIDDEN + 1, comes="Ben", waits="Anna")
    model = cloakroom_lm()
    with model.blocks[0].register_forward_hook(STEER):
        answers = model(lists.tokens)[:, -1].argmax(-1)
    plain, hooked, random, others = found.steering
    assert hooked.hers == int((answers == things_of(lists.tokens, "Anna")).sum())
    assert plain.right >= 99
    assert (round(random.hers), hooked.hers) == (11, 96), "the exercise's Why says so"
    assert [round(found.looks[head], 2) for head in (CONTROL, HEAD)] == [0.9, 0.86]
    assert others.right >= head_report.UNHARMED
    assert found.turned[HEAD] > 90
    assert REPORT["turned"] == tuple(turned_by(model, cloakroom_lists(100), *head) for head in (HEAD, CONTROL))


def test_the_page_says_everything_in_words() -> None:
    page = review(REPORT, STEER).picture()
    for said in ("head (1, ", "turns", "times Anna's thing", REPORT["sentence"], "6 of 6 points"):
        assert said in " ".join(page.alt.split()), page.alt
    assert len(page.rows) == 8 + 4
    assert int.from_bytes(page.png[16:20], "big") == 900


def test_a_page_with_nothing_on_it_yet() -> None:
    page = head_report._page_of(dict.fromkeys(REPORT), None)
    assert not isinstance(page, Card)
    assert "Your sentence is missing" in page.alt
    assert page.png
    assert "none is named yet" in page.alt
    assert [row for row in page.rows if "turns" in row] == [], "the heads are for the learner to find"


def test_the_page_shows_the_heads_that_are_named_until_they_are_found() -> None:
    page = review({**REPORT, "head": (1, 0), "control": None}, STEER).picture()
    assert [row["what"] for row in page.rows if "turns" in row] == ["head (1, 0)"]
    assert f"head {HEAD} turns" not in page.alt
    page = review({**REPORT, "turned": None, "limits": None}, None).picture()
    assert len([row for row in page.rows if "turns" in row]) == 8


def test_the_question_has_the_statements_and_the_bounds() -> None:
    question = " ".join(EXERCISE.text.question.split())
    assert all(f"{letter}: {text}" in question for letter, (text, _) in STATEMENTS.items())
    for bound in (
        f"Your head must turn at least {head_report.ENOUGH} of 100",
        f"must turn {head_report.FEW} lists or fewer",
        f"he gets {head_report.WHO}'s thing in at least {head_report.ENOUGH} of 100",
        f"still gets the right thing in at least {head_report.UNHARMED} of 100",
        f"it adds {head_report.RANDOM} random vectors",
    ):
        assert bound in question


def test_the_false_statements_are_false_and_the_true_ones_true() -> None:
    model, lists = cloakroom_lm(), cloakroom_lists(200, seed=5)
    right = (model(lists.tokens)[:, -1].argmax(-1) == lists.answers).float().mean()
    with hookscope.edit(model) as changes:
        changes.set("blocks.0.attn", 0.0)
        without = (model(lists.tokens)[:, -1].argmax(-1) == lists.answers).float().mean()
    assert float(right) > 0.95 > 0.5 > float(without), "C may be true"
    # Another vector, trained from another start, does the same: so D is false, and E true.
    lists = cloakroom_lists(200, seed=6, comes="Ben", waits="Anna")
    hers = things_of(lists.tokens, "Anna")
    start = 0.5 * VECTOR + 0.3 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    other = torch.nn.Parameter(start)
    optimizer = torch.optim.Adam([other], lr=0.05)
    with model.blocks[0].register_forward_hook(adds(other)):
        for _ in range(100):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(lists.tokens)[:, -1], hers)
            torch.autograd.backward(loss)
            optimizer.step()
    found = lost(REPORT, adds(other.detach()))
    assert 4 not in found
    assert float(torch.cosine_similarity(other.detach(), VECTOR, dim=0)) < 0.9


def test_the_starter_shows_no_page_and_is_not_attempted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_answer(EXERCISE, EXERCISE.text.starter).outcome == "not attempted"
    assert "your page appears here" in capsys.readouterr().out.lower()
