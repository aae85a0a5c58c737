"""A report on a training run that is lost, its watchdog and its repair: all are run, judged, and drawn."""

from __future__ import annotations

import gc
import math
import textwrap
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.pictures.picture import Picture
from hookscope_course.chapters.ch20_training_runs import (
    Alarm,
    TrainingRun,
    Update,
    draw_run,
    healthy_run,
    lost_run,
    norm_net,
    record_run,
)
from hookscope_course.practice.blank import holds_blank
from hookscope_course.practice.check_helpers import check_removal
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.rubric import NOTHING_YET, Review, run_point

__all__ = ["WatchReview", "review", "show_watch"]

Watch = Callable[[nn.Module], AbstractContextManager[list[Alarm]]]
_ASKED = (
    "`first` and `loss` are what happens in the run",
    "the watchdog barks there first, before the loss is NaN",
    "on two other runs it names the step and the module",
    "on a healthy run it is silent",
    "with it, every loss and weight is the same, and no tensor is kept",
    "it comes off, also after an error, and begins anew",
    "with the repair, every output is finite and the loss falls",
)
_LEARNS = 2.05
"""The loss of a repaired run ends at most here; without a decay it is 1.97."""


class WatchReview(Review):
    """What is true of a report, its watchdog and its repair: a reason for each point, and the alarms.

    Attributes:
        report: as it was handed in.
        criteria: seven, in the order of the question.
        alarms: what the watchdog said in the run.

    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.alarms: list[Alarm] = []

    def picture(self) -> Picture:
        """Return the page: the losses, what each module returned, the alarm, the sentence and the points."""
        words = f"{textwrap.fill(self.quote(), 90)}\n{self.count_points()}"
        return draw_run(_the_run(), self.alarms[0] if self.alarms else None, words)


def show_watch(report: Mapping[str, Any], watch: Watch, repair: Update) -> None:
    """Show the page of a report, below the cell.

    Args:
        report: with the fields first, loss and sentence.
        watch: to be used as `with watch(model) as alarms`.
        repair: the update of `lost_run` without its mistake.

    """
    from IPython.display import display

    display(_page_of(report, watch, repair))  # type: ignore[no-untyped-call]


def _page_of(report: Mapping[str, Any], watch: Watch, repair: Update) -> Picture | Card:
    if any(map(holds_blank, (report, watch, repair))):
        return Card("No page yet.", "your page appears here when no `____` is left in the three answers")
    return review(report, watch, repair).picture()


def review(report: Mapping[str, Any], watch: Watch, repair: Update) -> WatchReview:
    """Run every claim of a report, try its watchdog on other runs, and train with its repair.

    Args:
        report: first (a step and the name of a module), loss (a step) and sentence.
        watch: to be used as `with watch(model) as alarms`; `alarms` is a list of steps with names.
        repair: returns a new weight, from the name of a parameter, its weight and its gradient.

    """
    found = WatchReview(report)
    points: tuple[Callable[[], str | None], ...] = (
        partial(_wrong_report, report),
        partial(_late, watch, found.alarms),
        partial(_misnames, watch),
        partial(_false_alarm, watch),
        partial(_changes, watch),
        partial(_stays, watch),
        partial(_not_repaired, repair, is_reported=_wrong_report(report) is None),
    )
    found.give_points(_ASKED, map(run_point, points))
    return found


@lru_cache(maxsize=1)
def _the_run() -> TrainingRun:
    return record_run(norm_net(), lost_run)


def _wrong_report(report: Mapping[str, Any]) -> str | None:
    run, first, loss = _the_run(), report.get("first"), report.get("loss")
    if first is None or loss is None:
        return NOTHING_YET
    match first:
        case (int() as step, str() as name):
            pass
        case _:
            return f"`first` is {first!r}; write a step and the name of a module, such as (7, 'block1.linear')"
    if type(loss) is not int:
        return f"`loss` is {loss!r}; write the number of a step"
    if name not in run.names:
        return f"there is no module {name!r}; there are {', '.join(run.names)}"
    assert run.first is not None
    if (step, name) != run.first:
        if not 0 <= step < len(run.largest) or math.isfinite(run.largest[step][run.names.index(name)]):
            return f"in step {step}, all that {name} returned is finite"
        return f"before {name} in step {step}, another output was not finite"
    if loss != run.loss:
        what = "has a number as its loss" if 0 <= loss < (run.loss or 0) else "is not the first without one"
        return f"step {loss} {what}; steps are counted from 0"
    return None


def _said(alarms: object) -> list[Alarm]:
    if not isinstance(alarms, list):
        raise TypeError(f"`watch` yields {alarms!r}; it has to yield a list of (step, name)")
    return [(step, name) for step, name in alarms]


def _judge(said: list[Alarm], expected: Alarm, what: str) -> str | None:
    if not said:
        return f"{what}, and your watchdog is silent"
    return None if said[0] == expected else f"{what}, and your first alarm is {said[0]}"


def _late(watch: Watch, heard: list[Alarm]) -> str | None:
    run, barked = _the_run(), list[int]()
    model = norm_net()
    with watch(model) as alarms:
        lost_run(model, look=lambda step: barked.append(step) if alarms and not barked else None)
    heard += _said(alarms)
    assert run.first is not None
    if not heard:
        return f"your watchdog is silent, and the loss is NaN from step {run.loss} on"
    if heard[0] != run.first:
        step, name = heard[0]
        if name not in run.names:
            return f"your first alarm is {heard[0]}, and there is no such module"
        known = 0 <= step < len(run.largest)
        bad = known and not math.isfinite(run.largest[step][run.names.index(name)])
        what = "another output was not finite before" if bad else "there all is finite"
        return f"your first alarm is {heard[0]}; {what}"
    if barked[:1] != [run.first[0]]:
        return "while the run goes on, the alarm is not in the list; append it in the hook"
    return None


class _Square(nn.Module):
    """Multiplies what its child returns by itself: only the block's own output overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return x * x


class _ReadsInput(nn.Module):
    """One ReLU that is called twice, and an LSTM that returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.lstm, self.head = nn.ReLU(), nn.LSTM(2, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.act(self.act(x) + 1))
        return self.head(states)  # type: ignore[no-any-return]


class _ReturnsDict(nn.Module):
    """Returns a dict, as many models of Hugging Face do."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x}


def _misnames(watch: Watch) -> str | None:
    model = nn.Sequential()
    for name, layer in (("stem", nn.Identity()), ("block", _Square()), ("head", nn.Identity())):
        model.add_module(name, layer)
    with watch(model) as alarms:
        for value in (1.0, 1000.0, 1e30):
            model(torch.full((1, 2), value))
    what = "in step 2 `block` multiplies 1e30 by itself, which none of its children does: (2, 'block')"
    if problem := _judge(_said(alarms), (2, "block"), what):
        return problem
    reader = _ReadsInput()
    with watch(reader) as alarms:
        reader(torch.ones(1, 3, 2))
        with torch.no_grad():
            reader.lstm.weight_hh_l0.fill_(torch.nan)  # type: ignore[operator]
        reader(torch.ones(1, 3, 2))
    what = "in step 1 an LSTM returns NaN in its tuple, and a ReLU is called twice in each step: (1, 'lstm')"
    if problem := _judge(_said(alarms), (1, "lstm"), what):
        return problem
    keyed = nn.Sequential(_ReturnsDict())
    with watch(keyed) as alarms:
        for value in (1.0, math.nan):
            keyed(torch.full((1, 2), value))
    what = "in step 1 the module '0' returns NaN in a dict: (1, '0')"
    return _judge(_said(alarms), (1, "0"), what)


class _Large(nn.Module):
    """Returns what is no trouble: large numbers, integers, None."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
        return -1e30 * x, x.argmax(1), None


def _false_alarm(watch: Watch) -> str | None:
    model = norm_net(seed=3)
    with watch(model) as alarms:
        losses = healthy_run(model)
    if said := _said(alarms):
        return f"the loss goes down to {min(losses):.2f} and all outputs are finite, and your first alarm is {said[0]}"
    large = nn.Sequential(_Large())
    with watch(large) as alarms:
        large(torch.ones(2, 3))
    return f"-1e30, an integer and None are no trouble; your alarm is {alarms[0]}" if _said(alarms) else None


@lru_cache(maxsize=2)
def _plain(train: Callable[..., list[float]]) -> tuple[list[float], Tensor]:
    model = norm_net()
    return train(model), _weights(model)


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).nan_to_num()


def _changes(watch: Watch) -> str | None:
    for train in (lost_run, healthy_run):
        expected, weights = _plain(train)
        model, alive = norm_net(), list[weakref.ref[Tensor]]()
        model.block1.register_forward_hook(lambda module, args, output, alive=alive: alive.append(weakref.ref(output)))
        with watch(model) as alarms:
            losses = train(model)
        gc.collect()
        kept = sum(output() is not None for output in alive)
        for step, (loss, plain) in enumerate(zip(losses, expected, strict=True)):
            if repr(loss) != repr(plain):  # NaN is NaN
                return f"with your watchdog, the loss of step {step} is {loss:.6g}, and without it {plain:.6g}"
        if not torch.equal(_weights(model), weights):
            return "with your watchdog, the weights are not the same at the end"
        if kept > 1:
            return f"your watchdog keeps {kept} outputs of `block1` alive; keep names and numbers"
        if not model.training:
            return "after your watchdog, the model is in eval mode"
        del alarms
    return None


def _stays(watch: Watch) -> str | None:
    if problem := check_removal(watch):
        return problem
    model, lists = nn.Sequential(nn.Identity()), list[list[Alarm]]()
    for _ in range(2):
        with watch(model) as alarms:
            for value in (1.0, math.inf):
                model(torch.full((1, 1), value))
        lists.append(alarms)
    first, second = map(_said, lists)
    if first != second:
        return f"two `with` blocks see the same, and the alarms are {first} and {second}"
    if lists[0] is lists[1]:
        return "two `with` blocks share one list, so the second has changed what the first has found"
    return None


def _largest_weight(model: nn.Module) -> float:
    return max(p.detach().abs().max().item() for name, p in model.named_parameters() if name.startswith("block"))


def _not_repaired(repair: Update, is_reported: bool = True) -> str | None:
    model, steps, largest = norm_net(), list[int](), list[float]()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def update(name: str, weight: Tensor, grad: Tensor) -> Tensor:
        if name == "block1.linear.weight":
            largest.append(_largest_weight(model))
        shape, new = weight.shape, repair(name, weight, grad)
        if not isinstance(new, Tensor) or new.shape != shape:
            got = f"a tensor of shape {tuple(new.shape)}" if isinstance(new, Tensor) else repr(new)
            raise TypeError(f"for {name}, `repair` returns {got}; return the new weight, of shape {tuple(shape)}")
        return new

    try:
        run = record_run(model, partial(lost_run, look=steps.append, update=update))
    except Exception as error:
        return f"in step {len(steps) - 1} the training stopped: {error}"
    weights, end = "the largest weight of the blocks went from", sum(run.losses[-5:]) / 5
    if run.first is not None:
        step, name = run.first
        if run.loss is None:
            later = f"the loss stays a number, and ends at {end:.2f}"
        else:
            later = f"in step {run.loss} the loss is NaN" + (f"; it ends at {end:.2f}" if math.isfinite(end) else "")
        grown = f"{weights} {largest[0]:.2f} to {largest[step]:.4g} in the steps before"
        if not is_reported and (run.first, run.loss) == (_the_run().first, _the_run().loss):  # the answer of point 1
            return f"an output is still not finite: {grown}. Once point 1 is right, this line says where"
        return f"in step {step}, the output of {name} is still not finite: {grown}. Later, {later}"
    for name, parameter in model.named_parameters():
        if torch.equal(parameter, before[name]):
            return f"nothing overflows, but {name} has not changed at all: it no longer learns"
    if end > _LEARNS:
        now = max(
            parameter.detach().abs().max().item() for name, parameter in model.named_parameters() if "block" in name
        )
        moved = f"{weights} {largest[0]:.2f} to {now:.2g}"
        return f"nothing overflows, but the loss ends at {end:.2f}, and {_LEARNS} is possible; {moved}"
    return None
