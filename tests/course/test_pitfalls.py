"""Each bug of chapter 11 is still one, and so is what chapter 18 says of a model that torch runs in another way."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope_course import Exercise, exercises
from tests.shared.exercises import run_cell
from tests.shared.lessons import CHAPTERS

BUGS: dict[str, Exercise] = {exercise.name: exercise for exercise in exercises(11)}
CHAPTER = next(chapter for chapter in CHAPTERS if chapter.number == "11")
CELLS = [cell.source for cell in CHAPTER.notebook.cells if cell.cell_type == "code"]


def broken(bug: Exercise) -> str:
    """The code of the bug: the first of its wrong answers."""
    return bug.text.wrong[0][0].strip("\n")


def test_six_bugs() -> None:
    assert list(BUGS) == [f"q{number}" for number in range(1, 7)]
    assert all(bug.text.is_bug for bug in BUGS.values())


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_in_the_chapter_and_still_a_bug(name: str) -> None:
    bug = BUGS[name]
    in_lesson = [re.sub(r"^ +____\n", "", cell, flags=re.MULTILINE) for cell in CELLS]
    assert broken(bug) in in_lesson, f"chapter 11 does not have the code of {name} as its checks have it"
    names = {"__name__": "__main__", "torch": torch, "nn": nn, "F": F, name: bug}
    exec(bug.text.before, names)
    symptom = bug.text.wrong[0][1]
    (fresh,) = (each for each in exercises(11) if each.name == name)
    for is_told in (False, True):
        feedback = run_cell(f"{broken(bug)}\n", names | {name: fresh})
        assert feedback.outcome == "not attempted", "it is as the learner found it"
        assert (symptom in feedback.message) is is_told, "what goes wrong is told at the second run"
    feedback = run_cell(f"{broken(bug)}  # run again", names)
    assert feedback.outcome == "wrong", (
        f"on torch {torch.__version__} bug {bug.number} is none any more: {bug.text.question!r} Chapter 11 must say so."
    )
    assert symptom in feedback.message, (
        f"on torch {torch.__version__} bug {bug.number} of chapter 11 has another symptom: {feedback.message!r}, "
        f"not {symptom!r}"
    )


def two_layers() -> nn.Sequential:
    """2 · 3 = 6."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net.get_parameter("0.weight"), 2.0)
    nn.init.constant_(net.get_parameter("1.weight"), 3.0)
    return net


@pytest.mark.parametrize(("reentrant", "again"), [(True, ["0", "1"]), (False, ["0"])])
def test_a_checkpoint_runs_layers_again_in_the_backward_pass(reentrant: bool, again: list[str]) -> None:
    net, fired = two_layers(), list[str]()
    for name, layer in net.named_children():
        layer.register_forward_hook(lambda module, args, output, name=name: fired.append(name))
    output = checkpoint(net, torch.ones(1, 1, requires_grad=True), use_reentrant=reentrant)
    assert fired == ["0", "1"]
    output.sum().backward()
    assert fired[2:] == again


@pytest.mark.parametrize(("too_early", "gradient"), [(False, 20), (True, 2)])
def test_a_hook_that_changes_a_checkpoint_must_stay_until_backward_is_over(too_early: bool, gradient: int) -> None:
    net = two_layers()
    handle = net[0].register_forward_hook(lambda module, args, output: 10 * output)
    output = checkpoint(net, torch.ones(1, 1, requires_grad=True), use_reentrant=False)
    if too_early:
        handle.remove()
    output.sum().backward()
    grad = net.get_parameter("1.weight").grad
    assert grad is not None
    assert grad.item() == gradient


def test_vmap_runs_once_and_autocast_rounds() -> None:
    net, seen = two_layers(), list[tuple[tuple[int, ...], torch.dtype]]()
    net[0].register_forward_hook(lambda module, args, output: seen.append((tuple(output.shape), output.dtype)))
    torch.func.vmap(net)(torch.ones(5, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.ones(5, 1))
    assert seen == [((1,), torch.float32), ((5, 1), torch.bfloat16)]


def test_a_hook_sees_scaled_gradients() -> None:
    net, scaler, seen = two_layers(), torch.amp.GradScaler("cpu", init_scale=1024.0), list[Tensor]()
    net[1].register_full_backward_pre_hook(lambda module, grad_output: seen.extend(grad_output))
    scaler.scale(net(torch.ones(1, 1)).sum()).backward()
    assert [grad.item() / scaler.get_scale() for grad in seen] == [1]
