"""The report on one photograph: what is true gets its point, and no trick does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course import exercises
from hookscope_course.chapters import ch19_photo_report as photo_report
from hookscope_course.chapters.ch19_photo_report import STATEMENTS, load_photo, review
from hookscope_course.practice.feedback_card import Card
from lessons.site.chapter_cards import find_picture
from tests.shared.exercises import run_answer, run_submission

(EXERCISE,) = exercises(19)


REPORT, QUIET = run_submission(EXERCISE)


def lost(report: dict[str, Any], quiet: Any = QUIET) -> dict[int, str]:
    """Which points a report does not get, and why."""
    return {at: problem for at, (_, problem) in enumerate(review(report, quiet).criteria, start=1) if problem}


def zero(channels: Any) -> Callable[..., Tensor]:
    def quiet(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, channels] = 0
        return output

    return quiet


def test_the_solution_gets_six_points_and_leaves_no_hook() -> None:
    assert lost(REPORT) == {}
    net = photo_report._trained()
    assert len(hookscope.census(net)) == 0
    assert all(parameter.requires_grad for parameter in net.parameters()), "it was changed for the next report"


@pytest.mark.parametrize(
    ("changes", "points", "said"),
    [
        ({"reads": ("barbell", 0.9)}, {1}, "the network gives barbell 0.14; you wrote 0.9"),
        ({"reads": ("barbell", float("nan"))}, {1}, "you wrote nan"),
        ({"reads": ("space shuttle", 0.14)}, {1}, "the network says barbell; you wrote space shuttle"),
        ({"reads": "barbell"}, {1}, "write the class and the probability"),
        ({"box": (0, 224, 0, 224)}, {2, 3}, "50,176 pixels; it can have 6,400 at most"),
        ({"box": (0, 224, 0, 224), "control": (0, 224, 0, 224)}, {2, 3}, "6,400 at most"),
        ({"box": (-80, 0, 0, 80)}, {2, 3}, "write four integers"),
        ({"box": (80, 0, 80, 0)}, {2, 3}, "top < bottom"),
        ({"box": (False, True, 0, 80)}, {2, 3}, "write four integers"),
        ({"box": (0, 80, 0, float("nan"))}, {2, 3}, "write four integers"),
        ({"box": REPORT["control"], "control": REPORT["box"]}, {2, 3}, "it should be 0.07 or less"),
        ({"control": (0, 1, 0, 1)}, {3}, "the control is 1 high and 1 wide"),
        ({"control": REPORT["box"]}, {3}, "the control overlaps the box"),
        ({"control": None}, {3}, "nothing is written yet"),
        ({"limits": None}, {6}, "nothing is written yet"),
        ({"limits": {"A"}}, {6}, "one more is true"),
        ({"limits": {*STATEMENTS}}, {6}, "B goes too far"),
        ({"limits": "A and D"}, {6}, "write the letters of two statements"),
        ({"photo": "camera"}, {1, 2, 3, 4, 5, 6}, "the camera is read right"),
        ({"photo": "nowhere.png"}, {1, 2, 3, 4, 5, 6}, "the photograph cannot be opened"),
        ({"photo": None}, {1, 2, 3, 4, 5, 6}, "has to be a name"),
    ],
)
def test_a_claim_that_is_not_true_gets_no_point(changes: dict[str, Any], points: set[int], said: str) -> None:
    found = lost({**REPORT, **changes})
    assert {*found} == points
    assert said in found[min(points)]


def test_a_photograph_that_cannot_be_opened_is_named_once() -> None:
    said = [problem for _, problem in review({**REPORT, "photo": "nowhere.png"}, QUIET).criteria]
    assert sum("nowhere.png" in problem for problem in said) == 1


def test_the_page_has_controls_that_the_writer_did_not_choose() -> None:
    found = review(REPORT, QUIET)
    picture = found.picture()
    assert picture is not None
    assert "Of 36 gray boxes of 64 by 64, 9 halve the probability and 11 raise it." in picture.alt
    hooked, random = found.readings[-2:]
    assert (hooked.done, random.done) == ("with the hook", "random channels")
    assert hooked.chance < 0.03 < 0.1 < random.chance


def test_three_classes_name_people() -> None:
    assert {"ballplayer", "groom", "scuba diver"} < {*samples.PHOTO_CLASSES}
    assert len(samples.PHOTO_CLASSES) == 1000


def for_the_astronaut_only(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Quiet what is right for one photograph, and leave all others as they are."""
    return output if len(output) == 4 else QUIET(module, args, output)


def only_maps_of_photographs(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Pass the probe with a good hook, and do something else on photographs."""
    return QUIET(module, args, output) if output.dtype == torch.float64 else 0 * output


def in_the_middle_only(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    output = output.clone()
    output[:, :32, 2:5, 2:5] = 0
    return output


def writes_and_returns_nothing(module: nn.Module, args: Any, output: Tensor) -> None:
    output[:, :32] = 0


@pytest.mark.parametrize(
    ("quiet", "points", "said"),
    [
        (lambda module, args, output: 0 * output, {4, 5}, "your hook scales 1,280 of 1,280 channels; take 32 at most"),
        (zero(range(33)), {4, 5}, "33 of 1,280"),
        (lambda module, args, output: output, {4, 5}, "your hook changes no channel"),
        (lambda module, args, output: None, {4, 5}, "your hook returned None"),
        (lambda module, args, output: output.mean(), {4, 5}, "returned ()"),
        (lambda module, args, output: output + 1, {4, 5}, "does not scale"),
        (lambda module, args, output: output * torch.tensor(1.0).new_full((1280, 1, 1), 2), {4, 5}, "a factor is 2"),
        (lambda module, args, output: 1 / 0, {4, 5}, "your hook raised ZeroDivisionError"),
        (lambda output: output, {4, 5}, "your hook raised TypeError"),
        (for_the_astronaut_only, {4, 5}, "on a photograph your hook does something else"),
        (only_maps_of_photographs, {4, 5}, "on a photograph your hook does something else"),
        (in_the_middle_only, {4, 5}, "its factors are different"),
        (writes_and_returns_nothing, {4, 5}, "your hook returned None"),
        (zero(range(32)), {4, 5}, "the network still says barbell"),
        (None, {4, 5}, "write a forward hook"),
        (42, {4, 5}, "write a forward hook"),
    ],
)
def test_a_hook_that_does_something_else_gets_no_point(quiet: Any, points: set[int], said: str) -> None:
    found = lost(REPORT, quiet)
    assert {*found} == points
    assert said in found[min(points)]


def test_channels_that_another_photograph_needs_cost_the_fifth_point() -> None:
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    exec(EXERCISE.text.before, names)
    rank, index = names["rank_channels"], samples.PHOTO_CLASSES.index
    of_cat = rank(samples.photo("cat"), index("Egyptian cat"))[:2]
    of_barbell = rank(samples.photo("astronaut"), index("barbell"))[:2]
    found = lost(REPORT, zero(torch.cat([of_cat, of_barbell])))
    assert found == {5: "cat turns from Egyptian cat to tiger cat; leave alone the channels that it needs"}


def test_random_channels_of_the_tripod_turn_nothing() -> None:
    """What chapter 19 says: of 50 random sets of 64 channels, none turns the photograph."""
    camera, tripod, model = samples.photo("camera"), samples.PHOTO_CLASSES.index("tripod"), samples.photo_cnn()
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(50):
            with model.head.register_forward_hook(zero(torch.randperm(1280)[:64])):
                assert model(camera).argmax() == tripod


def test_a_photograph_of_ones_own_is_cropped_and_read(tmp_path: Path) -> None:
    colors = samples.denormalize(samples.photo("astronaut"))[0]
    wide = torch.zeros(3, 224, 300)
    wide[..., 38:262] = colors
    Image.fromarray((wide * 255).round().byte().permute(1, 2, 0).numpy()).save(path := tmp_path / "mine.png")
    assert torch.allclose(load_photo(path), samples.photo("astronaut"), atol=1e-5)
    found = review({**REPORT, "photo": str(path)}, QUIET)
    assert [*found.others] == [*samples.PHOTOS], "all of them are others now"
    # The astronaut is among the others now, and the hook turns her.
    assert [at for at, (_, problem) in enumerate(found.criteria, start=1) if problem] == [5]
    (tmp_path / "no.png").write_text("no image", encoding="utf-8")
    assert "cannot be opened" in lost({**REPORT, "photo": tmp_path / "no.png"})[1]


def test_the_page_says_everything_in_words() -> None:
    page = review(REPORT, QUIET).picture()
    assert page is not None
    for said in ("the box in rows", "the control in rows", "barbell has 0.14", REPORT["sentence"], "6 of 6 points"):
        assert said in " ".join(page.alt.split()), page.alt
    assert len(page.rows) == 9
    width = int.from_bytes(page.png[16:20], "big")
    assert width == 900


def test_a_page_with_nothing_on_it_yet_and_one_without_a_photograph() -> None:
    nothing = dict.fromkeys(REPORT)
    assert isinstance(photo_report._page_of(nothing, QUIET), Card)
    page = review({**nothing, "photo": "astronaut"}, None).picture()
    assert page is not None
    assert "Your sentence is missing" in page.alt
    assert page.png


def test_the_question_has_the_statements_and_the_bounds() -> None:
    question = " ".join(EXERCISE.text.question.split())
    assert all(f"{letter}: {text}" in question for letter, (text, _) in STATEMENTS.items())
    assert f"at most {photo_report.LARGEST:,} pixels" in question
    assert f"at most {photo_report.MOST_CHANNELS} channels" in question


def test_the_false_statements_are_false_and_the_true_ones_true() -> None:
    net = samples.photo_cnn().requires_grad_(False)
    image = samples.photo("astronaut")
    target = samples.PHOTO_CLASSES.index("barbell")

    def chance(box: tuple[int, int, int, int], cover: float) -> float:
        top, bottom, left, right = box
        changed = image.clone()
        changed[..., top:bottom, left:right] = cover
        return float(net(changed).softmax(dim=1)[0, target])

    top, bottom, left, right = REPORT["box"]
    grays, darks = (chance(REPORT["box"], cover) for cover in (0, -2))
    assert abs(grays - darks) > 0.002, "A is not true"
    shifted = [chance((top + by, bottom + by, left, right), 0) for by in (-16, -8, 8)]
    assert min(shifted) < grays, "C may be true"
    adds_to = (net.classifier.weight > 0).sum(dim=0)
    assert int(adds_to.min()) > 200, "E may be true"


def test_without_weights_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "has_photo_weights", lambda: False)
    said = EXERCISE.check(REPORT, QUIET)
    assert said.outcome == "wrong"
    assert "the weights of the photo network are missing" in said.message
    assert "weights of the photo network are missing" in repr(photo_report._page_of(REPORT, QUIET))


def test_the_starter_shows_no_page_and_is_not_attempted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_answer(EXERCISE, EXERCISE.text.starter).outcome == "not attempted"
    assert "your page appears here" in capsys.readouterr().out.lower()


def test_the_page_with_the_solution_is_on_no_card_of_the_site(tmp_path: Path) -> None:
    def cell(alt: str, letters: int, *tags: str) -> dict[str, Any]:
        image = base64.b64encode(b"x" * letters).decode()
        output = {"data": {"image/png": image}, "metadata": {"image/png": {"alt": alt}}}
        return {"metadata": {"tags": [*tags]}, "outputs": [output]}

    notebook = {"cells": [cell("the photograph", 5), cell("the page", 50, "solution")]}
    (path := tmp_path / "19.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    assert find_picture(path) == b"x" * 5
