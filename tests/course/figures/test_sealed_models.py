"""Sealed models: the symptom is real, the four questions tell all mistakes apart, and the points are right."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch

from hookscope import census
from hookscope_course.figures import SealedModels, find_layer
from hookscope_course.figures.sealed_models.figure import QUESTION, WORTH
from hookscope_course.figures.sealed_models.puzzles import _WEIGHTS, BOXES, LAYERS, MISTAKES, QUESTIONS, Box, Puzzle
from hookscope_course.lessons import folder_of

ALL = [Puzzle(box, layer, kind) for box in BOXES for layer, kind in product(LAYERS, box.kinds)]
BEST = {
    "Too few notes": "capture",
    "Too many notes": "record",
    "A different result": "compare",
    "A wrong value": "capture",
}


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.title)
def test_the_questions_tell_all_mistakes_apart(box: Box) -> None:
    puzzles = [puzzle for puzzle in ALL if puzzle.box is box]
    answers = {json.dumps([puzzle.answer(question) for question in QUESTIONS]) for puzzle in puzzles}
    assert len(answers) == len(puzzles) == 8
    assert len({puzzle.box.mistakes for puzzle in puzzles}) == 1
    # One well-chosen question names the layer: of each mistake, or else of one of the two.
    told = [json.dumps(puzzle.answer(BEST[box.title])) for puzzle in puzzles]
    assert sum(told.count(each) == 1 for each in told) >= 4


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.title)
def test_the_symptom_alone_does_not_name_the_mistake(box: Box) -> None:
    if box.title == "A different result":
        assert "30, 0" in Puzzle(box, "mix", "pre").symptom()
        return
    assert len({puzzle.symptom() for puzzle in ALL if puzzle.box is box}) == 1


def by_hand(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each layer returns in a sound model."""
    found = {}
    for name, weight in zip(LAYERS, _WEIGHTS, strict=True):
        found[name] = x @ torch.tensor(weight, dtype=torch.float32).T
        x = found[name].relu()
    return found


@pytest.mark.parametrize("puzzle", ALL, ids=lambda puzzle: f"{puzzle.layer}, {puzzle.mistake.name}")
def test_the_symptom_is_what_happens(puzzle: Puzzle) -> None:
    x = torch.tensor([[1.0, 2.0]])
    sound = by_hand(x)
    result = puzzle.run(x)
    match puzzle.box.title:
        case "Too few notes":
            assert puzzle.notes == [name for name in LAYERS if name != puzzle.layer]
        case "Too many notes":
            assert [puzzle.notes.count(name) for name in LAYERS] == [
                3 if name == puzzle.layer else 1 for name in LAYERS
            ]
        case "A different result":
            assert not torch.equal(result, sound["head"].relu())
            census(puzzle.model).remove_all()
            assert torch.equal(puzzle.run(x), sound["head"].relu())
        case "A wrong value":
            wrong = [name for name in LAYERS if not torch.equal(puzzle.kept[name], sound[name])]
            assert wrong == [puzzle.layer]
            assert torch.equal(result, sound["head"].relu())


def test_only_record_names_the_layer_of_box_1_for_either_mistake() -> None:
    rows = find_layer(1).rows
    assert [row.pop("question") for row in rows] == list(QUESTIONS)
    assert [[*row.values()] for row in rows] == [["no", "yes"], ["yes", "yes"], ["yes", "no"], ["yes", "no"]]
    for layer, kind in product(LAYERS, ("never", "no hook")):
        fired = {row["layer"] for row in Puzzle(BOXES[0], layer, kind).answer("record")}
        assert fired == {*LAYERS} - {layer}


def questions_needed(puzzles: list[Puzzle]) -> int:
    """How many questions tell these puzzles apart, with the best choice each time and the worst luck."""
    if len(puzzles) == 1:
        return 0
    needed = []
    for question in QUESTIONS:
        alike: dict[str, list[Puzzle]] = {}
        for puzzle in puzzles:
            alike.setdefault(json.dumps(puzzle.answer(question)), []).append(puzzle)
        if len(alike) > 1:
            needed.append(1 + max(map(questions_needed, alike.values())))
    return min(needed)


def test_good_questions_reach_the_score_that_the_lesson_names() -> None:
    needed = [
        questions_needed([Puzzle(box, layer, kind) for layer, kind in product(LAYERS, box.kinds)]) for box in BOXES
    ]
    assert sorted(needed) == [1, 1, 2, 2]
    lesson = " ".join((folder_of(11) / "lesson.md").read_text(encoding="utf-8").split())
    best = sum(WORTH - QUESTION * many for many in needed)
    assert f"you get at least {best} of the {WORTH * len(BOXES)} points." in lesson


def test_points() -> None:
    boxes = SealedModels()
    layer, mistake = boxes._right(1)
    other = next(each for each in LAYERS if each != layer)
    assert (boxes.points, boxes.score) == (5, 0)
    boxes.ask("census")
    boxes.ask("census")
    assert boxes.points == 4, "the same question costs once"
    assert boxes.accuse(other, mistake).startswith("The mistake is right, but the layer is wrong. ")
    assert boxes.points == 2
    wrong = next(each.name for each in MISTAKES if each.name != mistake)
    assert boxes.accuse(layer, wrong).startswith("The layer is right, but the mistake is wrong. ")
    assert (boxes.points, boxes.score) == (0, 0)
    assert boxes.accuse(layer, mistake) == f"Right: {layer}, {mistake}. 0 of 5 points."
    boxes.box = 2
    assert boxes.accuse(*boxes._right(2)).endswith("5 of 5 points.")
    assert boxes.score == 5
    assert "open: 1, 2; 5 of 20 points" in repr(boxes)


def test_a_wrong_guess_gets_a_reason_that_the_learner_could_have_seen() -> None:
    for box in BOXES:
        truth = Puzzle(box, "mix", box.kinds[0])
        for layer, mistake in product(LAYERS, MISTAKES):
            if (layer, mistake) == (truth.layer, truth.mistake):
                continue
            reason = truth.explain(layer, mistake)
            if mistake not in box.mistakes:
                assert f"“{next(each.title for each in BOXES if mistake in each.mistakes)}”" in reason
                continue
            guess = Puzzle(box, layer, box.kinds[box.mistakes.index(mistake)])
            named = [question for question in QUESTIONS if f"`{question}`" in reason]
            assert named
            assert all(guess.answer(question) != truth.answer(question) for question in named)
    boxes = SealedModels()
    for _ in range(2):
        said = boxes.accuse("gate", "it is never called")
    assert said.endswith("With your guess, `record` shows no rows for `gate`. In this box it shows 1 row.")


def test_another_seed_makes_other_boxes_and_the_same_seed_the_same() -> None:
    right = [[boxes._right(box) for box in range(1, 5)] for boxes in map(SealedModels, (1, 2, 3, 1))]
    assert len({str(each) for each in right}) == 3
    assert right[0] == right[3]
