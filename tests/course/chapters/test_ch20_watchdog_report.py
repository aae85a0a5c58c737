"""The report on a run that is lost: what is not true gets no point, and each bad watchdog loses the right ones."""

from __future__ import annotations

import doctest
import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope_course import exercises
from hookscope_course.chapters import ch20_training_runs as training_runs
from hookscope_course.chapters import ch20_watchdog_report as watchdog_report
from hookscope_course.chapters.ch20_training_runs import healthy_run, is_finite, lost_run, norm_net, record_run
from hookscope_course.chapters.ch20_watchdog_report import review
from hookscope_course.practice.feedback_card import Card
from lessons.build import lesson_source
from tests.shared.exercises import run_answer

(EXERCISE,) = exercises(20)
RUN = record_run(norm_net(), lost_run)
REPORT = {"first": RUN.first, "loss": RUN.loss, "sentence": "The squares overflow."}
Look = Callable[[int, str, Any], Any]


def open_dict(output: Any) -> Any:
    return tuple(output.values()) if isinstance(output, dict) else output


def watchdog(
    bad: Callable[[Any], bool] = lambda output: not is_finite(open_dict(output)),
    *,
    modules: Callable[[nn.Module], Any] = nn.Module.named_modules,
    act: Callable[[Any], Any] = lambda output: None,
    note: Callable[[int, str], Any] = lambda step, name: (step, name),
    count_from: int = -1,
    remove: Callable[[Any], Any] = lambda handle: handle.remove(),
) -> Any:
    """The watchdog of the solution, with one part exchanged."""

    @contextmanager
    def watch(model: nn.Module) -> Any:
        alarms: list[Any] = []
        step, handles = count_from, []

        def begin(module: nn.Module, args: object) -> None:
            nonlocal step
            step += 1

        def look(name: str, module: nn.Module, args: object, output: Any) -> Any:
            if bad(output):
                alarms.append(note(step, name))
            return act(output)

        handles.append(model.register_forward_pre_hook(begin))
        for name, module in modules(model):
            handles.append(module.register_forward_hook(partial(look, name)))
        try:
            yield alarms
        finally:
            for handle in handles:
                remove(handle)

    return watch


def repair(name: str, weight: Tensor, grad: Tensor) -> Tensor:
    """The update of `lost_run`, with the right sign."""
    new = weight - 2**-4 * grad
    return new * (1 - 2**-6) if name.startswith("block") else new


def lost(report: Any = None, watch: Any = None) -> dict[int, str]:
    """Which points are not given, and why."""
    found = review({**REPORT, **(report or {})}, watch or watchdog(), repair)
    return {at: problem for at, (_, problem) in enumerate(found.criteria, start=1) if problem}


def test_the_run_is_lost_and_the_loss_is_the_last_to_know() -> None:
    assert RUN.first is not None
    assert RUN.loss is not None
    assert 10 <= RUN.loss - RUN.first[0] <= 30
    assert all(map(math.isfinite, RUN.losses[: RUN.loss]))
    assert not any(map(math.isfinite, RUN.losses[RUN.loss :]))


def test_the_solution_gets_all_points() -> None:
    assert lost() == {}
    assert doctest.testmod(watchdog_report).failed == doctest.testmod(training_runs).failed == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first": None}, "nothing is written yet"),
        ({"loss": None}, "nothing is written yet"),
        ({"first": "block2.square"}, "write a step and the name of a module"),
        ({"first": (math.nan, "block1")}, "write a step and the name of a module"),
        ({"first": (0, "block1")}, "all that block1 returned is finite"),
        ({"first": (-1, "head")}, "all that head returned is finite"),
        ({"first": (RUN.loss, "head")}, "another output was not finite"),
        ({"first": (3, "block9")}, "there is no module 'block9'"),
        ({"loss": RUN.first[0]}, "has a number as its loss"),  # type: ignore[index]
        ({"loss": RUN.loss + 1}, "is not the first"),  # type: ignore[operator]
        ({"loss": math.nan}, "write the number of a step"),
        ({"loss": True}, "write the number of a step"),
    ],
)
def test_a_claim_that_is_not_true_costs_the_first_point(changes: dict[str, Any], said: str) -> None:
    found = lost(changes)
    assert {*found} == {1}
    assert said in found[1]


def leaves_only(model: nn.Module) -> Any:
    return ((name, module) for name, module in model.named_modules() if not [*module.children()])


@contextmanager
def silent(model: nn.Module) -> Any:
    yield []


@contextmanager
def knows_the_run(model: nn.Module) -> Any:
    yield [RUN.first]


@contextmanager
def tells_at_the_end(model: nn.Module) -> Any:
    alarms: list[Any] = []
    with watchdog()(model) as found:
        yield alarms
    alarms += found


@contextmanager
def last_name_for_all(model: nn.Module) -> Any:
    alarms: list[Any] = []
    steps: list[int] = []
    handles = [model.register_forward_pre_hook(lambda module, args: steps.append(0))]
    for name, module in model.named_modules():

        def look(module: nn.Module, args: object, output: Any) -> None:
            if not is_finite(open_dict(output)):
                alarms.append((len(steps) - 1, name))  # noqa: B023  # the mistake

        handles.append(module.register_forward_hook(look))
    try:
        yield alarms
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def counts_each_layer(model: nn.Module) -> Any:
    alarms: list[Any] = []
    calls: dict[str, int] = {}

    def look(name: str, module: nn.Module, args: object, output: Any) -> None:
        calls[name] = calls.get(name, -1) + 1
        if not is_finite(open_dict(output)) or (name == "act" and calls[name] == 2):
            alarms.append((calls[name], name))

    handles = [m.register_forward_hook(partial(look, name)) for name, m in model.named_modules()]
    try:
        yield alarms
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def forgets_after_an_error(model: nn.Module) -> Any:
    alarms: list[Any] = []
    steps: list[int] = []

    def look(name: str, module: nn.Module, args: object, output: Any) -> None:
        if not is_finite(open_dict(output)):
            alarms.append((len(steps) - 1, name))

    handles = [model.register_forward_pre_hook(lambda module, args: steps.append(0))]
    handles += [m.register_forward_hook(partial(look, name)) for name, m in model.named_modules()]
    yield alarms
    for handle in handles:
        handle.remove()


@contextmanager
def swallows(model: nn.Module) -> Any:
    with watchdog()(model) as alarms, suppress(Exception):
        yield alarms


@contextmanager
def takes_all_off(model: nn.Module) -> Any:
    with watchdog()(model) as alarms:
        yield alarms
    for module in model.modules():
        module._forward_hooks.clear()


ONE_LIST: list[Any] = []


@contextmanager
def one_list_for_all(model: nn.Module) -> Any:
    ONE_LIST.clear()
    with watchdog(note=lambda step, name: ONE_LIST.append((step, name)))(model):
        yield ONE_LIST


class CountsOn:
    """The steps of all blocks are counted in one number."""

    def __init__(self) -> None:
        self.step = -1

    def __call__(self, model: nn.Module) -> Any:
        @contextmanager
        def watch() -> Any:
            def begin(module: nn.Module, args: object) -> None:
                self.step += 1

            inner = watchdog(note=lambda step, name: (self.step, name))
            with model.register_forward_pre_hook(begin), inner(model) as found:
                yield found

        return watch()


@contextmanager
def in_eval_mode(model: nn.Module) -> Any:
    model.eval()
    with watchdog()(model) as alarms:
        yield alarms


def draw(output: Any) -> None:
    torch.rand(1)


KEPT: list[Any] = []


def detached(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else None


def mended(output: Any) -> Any:
    return output.nan_to_num() if isinstance(output, Tensor) else None


def clamped(output: Any) -> None:
    if isinstance(output, Tensor) and output.is_floating_point():
        with torch.no_grad():
            output.clamp_(-100, 100)


def above(bound: float) -> Callable[[Any], bool]:
    return lambda output: isinstance(output, Tensor) and bool((output.abs() > bound).any() or output.isnan().any())


def is_nan(output: Any) -> bool:
    return isinstance(output, Tensor) and bool(output.isnan().any())


def tensors_only(output: Any) -> bool:
    return isinstance(output, Tensor) and not is_finite(output)


def stop(step: int, name: str) -> Any:
    raise FloatingPointError(name)


@pytest.mark.parametrize(
    ("watch", "points", "said"),
    [
        (silent, {2, 3}, "your watchdog is silent"),
        (knows_the_run, {2, 3, 4}, ""),
        (tells_at_the_end, {2}, "append it in the hook"),
        (last_name_for_all, {2, 3}, ""),
        (counts_each_layer, {3}, "(2, 'act')"),
        (watchdog(is_nan), {2, 3}, "another output was not finite before"),
        (watchdog(above(1000)), {2, 3, 4}, "there all is finite"),
        (watchdog(lambda output: True), {2, 3, 4}, "there all is finite"),
        (watchdog(tensors_only), {3}, "an LSTM returns NaN in its tuple"),
        (watchdog(lambda output: not is_finite(output)), {3}, "returns NaN in a dict"),
        (watchdog(modules=leaves_only), {3}, "`block` multiplies 1e30 by itself"),
        (watchdog(count_from=0), {2, 3}, ""),
        (watchdog(note=lambda step, name: (0, name)), {2, 3}, ""),
        (watchdog(note=lambda step, name: (name, step)), {2, 3}, ""),
        (watchdog(note=stop), {2, 3, 5, 6}, "FloatingPointError"),
        (watchdog(act=draw), {5}, "the loss of step 1 is"),
        (watchdog(act=mended), {5}, "the loss of step"),
        (watchdog(act=detached), {2, 4, 5}, "does not require grad"),
        (watchdog(act=clamped), {2, 3, 4, 5}, "inplace operation"),
        (watchdog(act=KEPT.append), {5}, "keeps 40 outputs of `block1` alive"),
        (in_eval_mode, {5}, "eval mode"),
        (watchdog(remove=lambda handle: None), {6}, "hooks are still on the model"),
        (forgets_after_an_error, {6}, "a layer raised"),
        (swallows, {6}, "kept it to itself"),
        (one_list_for_all, {6}, "two `with` blocks share one list"),
        (CountsOn(), {3, 6}, ""),
        (lambda model: None, {2, 3, 4, 5, 6}, "raised"),
        (None, {2, 3, 4, 5, 6}, "raised TypeError"),
    ],
)
def test_a_bad_watchdog_loses_the_right_points(watch: Any, points: set[int], said: str) -> None:
    found = review(REPORT, watch, repair)
    problems = {at: problem for at, (_, problem) in enumerate(found.criteria, start=1) if problem}
    KEPT.clear()
    assert {*problems} == points, problems
    assert said in problems[min(points)]


def test_hooks_of_others_that_are_taken_off_are_told_by_the_check() -> None:
    assert EXERCISE.check(REPORT, takes_all_off, repair).outcome == "wrong"


def test_the_page_says_everything_in_words() -> None:
    page = review(REPORT, watchdog(), repair).picture()
    assert RUN.first is not None
    for said in (f"A ring is at step {RUN.first[0]}, {RUN.first[1]}", "The squares overflow.", "7 of 7 points"):
        assert said in page.alt
    assert page.png


def test_the_starter_shows_no_page_and_is_not_attempted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_answer(EXERCISE, EXERCISE.text.starter).outcome == "not attempted"
    assert "your page appears here" in capsys.readouterr().out.lower()
    assert isinstance(watchdog_report._page_of({"first": "____"}, silent, repair), Card)


def fingerprint() -> str:
    """A hash of all weights and of all that modules return in two lost and two healthy runs."""
    found = hashlib.sha256()
    for seed, train in product((1, 4), (lost_run, healthy_run)):
        run = record_run(net := norm_net(seed), train)
        found.update(repr(run.largest).encode())
        for parameter in net.parameters():
            found.update(parameter.detach().nan_to_num().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_the_runs_are_the_same_to_the_bit_with_other_instructions() -> None:
    code = "from tests.course.chapters import test_ch20_watchdog_report as this; print(this.fingerprint())"
    plain = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    command, root = [sys.executable, "-c", code], lesson_source.LESSONS.parent
    other = subprocess.run(command, env=os.environ | plain, cwd=root, check=True, capture_output=True, text=True)
    assert other.stdout.split() == [fingerprint()]


def test_losses_tell_where_runs_part_and_where_one_is_lost() -> None:
    page = training_runs.draw_losses(
        {
            "fine": {"none": [4.0, 2.0, 1.0], "same": [4.0, 2.0, 1.0], "other": [4.0, 3.0, 0.5]},
            "lost": {"none": [2.0, math.nan]},
        }
    )
    assert [(row["hook"], row["other losses from step"], row["loss at the end"]) for row in page.rows] == [
        ("none", None, "1.00"),
        ("same", None, "1.00"),
        ("other", 1, "0.50"),
        ("none", None, "NaN"),
    ]
    assert "lost, none: NaN at the end." in page.alt


def decay(amount: float, name: str, weight: Tensor, grad: Tensor, rate: float = 2**-4) -> Tensor:
    new = weight - rate * grad
    return new * (1 - amount) if name.startswith("block") else new


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (repair, ""),
        (partial(decay, 0), ""),
        (lambda name, weight, grad: weight * 0.99 - 2**-4 * grad, ""),
        (lambda name, weight, grad: decay(-0.5, name, weight, grad.clamp(-1, 1)), "146.5 in the steps before"),
        (
            lambda name, weight, grad: decay(-0.5, name, weight, grad).nan_to_num(),
            "28 the loss is NaN; it ends",
        ),
        (lambda name, weight, grad: decay(-0.5, name, weight, grad).clamp(-1, 1), "but the loss ends at 2.17"),
        (partial(decay, 0.5), "but the loss ends at 2.31"),
        (partial(decay, 0, rate=0), "block1.linear.weight has not changed at all"),
        (lambda name, weight, grad: None, "`repair` returns None; return the new weight"),
    ],
)
def test_a_repair_is_judged_by_its_own_training(update: Any, said: str) -> None:
    reason = watchdog_report._not_repaired(update) or ""
    assert said in reason
    assert bool(said) == bool(reason)
