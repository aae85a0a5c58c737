"""Register hooks on the tensors of a small expression, call `retain_grad`, and see every gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import traitlets

from hookscope.pictures.picture import Rows, Table, as_text
from hookscope.widgets.base import HookWidget, assets
from hookscope_course.figures.gradient_playground.expression import (
    KINDS,
    MOST_RUNS,
    ExpressionRun,
    Step,
    list_leaves,
    parse,
    run_expression,
    write_code,
)
from hookscope_course.figures.gradient_playground.tasks import TASKS, explain_guesses, is_right, read_guess
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.boxes import Arrow, TextBox, lay_out, to_png
from hookscope_course.figures.kit.replay import Choice, Replay

__all__ = ["EXPRESSIONS", "GradientPlayground"]


EXPRESSIONS = {
    "chain": "d = a * b; e = d * c",
    "used twice": "d = a * b; e = d * c; f = d + e",
    "leaf used twice": "d = a * b; e = a * d",
    "detached": "d = a * b; e = d.detach(); f = d * e",
}
"""Expressions by name."""

_VALUES = {"a": 2.0, "b": 3.0, "c": 4.0}
_INPUTS = ("expression", "values", "choices", "factors", "zero_grad", "live", "runs", "task", "guesses")
_OWN_WORDS = "Change a value, a hook or the expression; then run backward. Start again brings the task back."
_WIDE = 26  # characters: the width of a box, so that a graph does not change its size with what is in it


def _list_tasks(playground: GradientPlayground) -> Iterator[Choice]:
    for task in range(len(TASKS)) if playground.shown["guess"] else [playground.task]:
        for runs in range(3):
            yield {"task": task, "runs": runs}


class GradientPlayground(HookWidget):
    """Try `retain_grad` and tensor hooks on a small expression, and see every gradient.

    Each tensor can have `retain_grad`, a hook that multiplies its gradient, or both. Every backward pass is a real one,
    and its gradients travel down the arrows.
    Attributes, results and details: https://hookscope.github.io/hookscope/limits/gradient_playground.html

    Args:
        expression: a name in `EXPRESSIONS`, or your own steps, as in ``"y = x ** 2; z = y * 3"``.
        values: the values of the leaves, by name; a=2, b=3, c=4 by default.
        choices: for some tensors "retain_grad", "hook", "hook, then retain_grad" or "retain_grad, then hook".
        factors: the factor of each tensor's hook, by name; 2 by default.
        zero_grad: set `.grad` of the leaves to None before every backward pass.
        live: run backward after every change.
        guess: begin with the first of `TASKS`, and ask for every `.grad` before backward runs.

    Raises:
        ValueError: the expression is not valid, a leaf has no value, or torch refuses the hook.

    Example:
        >>> playground = GradientPlayground()
        >>> playground.grads
        {'a': 12.0, 'b': 8.0, 'c': 6.0, 'd': None, 'e': None}
        >>> playground.set("d", retain_grad=True, hook=10, first="retain_grad")
        >>> print(playground.notes[1])
        d.grad is 40: retain_grad() stores what the hook returned, although you called retain_grad() first.

    """

    expression = traitlets.Unicode("chain").tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    factors = traitlets.Dict().tag(sync=True)
    zero_grad = traitlets.Bool(False).tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)
    runs = traitlets.Int(0).tag(sync=True)
    task = traitlets.Int(-1).tag(sync=True)  # the place in TASKS; -1 if the reader chooses
    guesses = traitlets.Dict().tag(sync=True)  # what was typed, by tensor
    shown = traitlets.Dict().tag(sync=True)  # all that the page draws

    _esm, _css = assets(KIT / "boxes", Path(__file__).with_suffix(""))
    replay = Replay(
        ("task", "runs"),
        {
            "Tasks and passes are answered from a recording of the real widget; expressions, values and hooks of your "
            "own need a kernel (`make lab`).": _list_tasks
        },
        quiet=("guesses",),
        unseen=("png",),
    )

    def __init__(
        self,
        expression: str = "chain",
        values: Mapping[str, float] | None = None,
        *,
        choices: Mapping[str, str] | None = None,
        factors: Mapping[str, float] | None = None,
        zero_grad: bool = False,
        live: bool = True,
        guess: bool = False,
    ) -> None:
        self._is_updating = True
        self._guess = guess
        super().__init__()
        with self.hold_sync():
            self._given = _VALUES | dict(values or {})
            self.values = self._given
            self.factors = dict(factors or {})
            self.expression = expression
            self.choices = dict(choices or {})
            live = live and not guess
            self.zero_grad, self.live, self.runs = zero_grad, live, int(live)
            if guess:
                self.task = 0
                self._begin_task()
            self._update()
        self.observe(self._on_change, list(_INPUTS))
        self._is_updating = False

    def set(self, name: str, *, retain_grad: bool = False, hook: float | None = None, first: str = "hook") -> None:
        """Replace the hook and retain_grad of one tensor.

        Args:
            name: the name of the tensor.
            retain_grad: call `retain_grad()` on it.
            hook: the factor of its hook; None for no hook.
            first: which call comes first if there are both, "hook" or "retain_grad".

        Raises:
            ValueError: the tensor does not exist, or torch refuses the call.

        """
        if first not in ("hook", "retain_grad"):
            raise ValueError(f"first={first!r}: choose 'hook' or 'retain_grad'")
        asked = [word for word, wanted in (("retain_grad", retain_grad), ("hook", hook is not None)) if wanted]
        kind = ", then ".join(sorted(asked, key=lambda word: word != first)) or "nothing"
        factors = self.factors if hook is None else self.factors | {name: _check_number("hook", hook)}
        with self.hold_sync():
            self.choices = self.choices | {name: kind}
            self.factors = factors

    def run(self) -> None:
        """Run forward and backward once more."""
        self.runs += 1

    def restart(self) -> None:
        """Create new tensors, and do not run backward."""
        self.runs = 0

    @property
    def score(self) -> str:
        """How many of the guesses are right after the first pass; "" at other times, and without guesses."""
        if self.runs != 1 or not self.guesses:
            return ""
        right = [is_right(read_guess(text), self.grads[name]) for name, text in self.guesses.items()]
        return f"{sum(right)} of {len(right)} right"

    @property
    def code(self) -> str:
        """Plain torch code for the current choices."""
        return write_code(self._steps, self.values, self.choices, self.factors, self.zero_grad, self.runs)

    @property
    def grads(self) -> dict[str, float | None]:
        """`.grad` of every tensor after the last pass."""
        return {name: row.after for name, row in self._run_record.tensors.items()}

    @property
    def table(self) -> Table:
        """All numbers, one row per tensor."""
        return Table(self._list_rows(), f"{self._text}, {_format_runs(self.runs)}")

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the result."""
        return _write_notes(self._steps, self._run_record, self._plain_record, self)

    def summary(self) -> str:
        """Describe `.grad` of every tensor, and explain the result."""
        grads = [f"{name}.grad {_format_grad(value)}" for name, value in self.grads.items()]
        lines = [f"GradientPlayground {self._text}, {_format_runs(self.runs)}: {_join(grads)}."]
        return "\n".join([*lines, *filter(None, [self.score]), *self.notes])

    def numbers(self) -> Rows:
        """List the numbers of every tensor. `table` has three more columns, which do not fit on a narrow page."""
        flags = {"is_leaf", "requires_grad", "retains_grad"}
        return [{name: value for name, value in row.items() if name not in flags} for row in self._list_rows()]

    @property
    def _text(self) -> str:
        return EXPRESSIONS.get(self.expression, self.expression)

    @property
    def _steps(self) -> list[Step]:
        return parse(self._text)

    @traitlets.validate("expression")
    def _check_expression(self, proposal: Any) -> str:
        text = proposal["value"]
        if text not in EXPRESSIONS and "=" not in text:
            raise ValueError(
                f"no expression {text!r}. Choose {', '.join(EXPRESSIONS)}, or write steps such as 'y = x * 3'"
            )
        steps = parse(EXPRESSIONS.get(text, text))
        for name in list_leaves(steps):
            if name not in self.values:
                raise ValueError(f"the leaf {name} has no value. Pass values={{{name!r}: 2.0}} first")
        run_expression(steps, self.values, {}, {}, False, 1)
        return str(text)

    @traitlets.validate("values", "factors")
    def _check_numbers(self, proposal: Any) -> dict[str, float]:
        trait = proposal["trait"].name
        return {str(name): _check_number(f"{trait}[{name!r}]", value) for name, value in proposal["value"].items()}

    @traitlets.validate("choices")
    def _check_choices(self, proposal: Any) -> dict[str, str]:
        steps = self._steps
        names = [*list_leaves(steps), *(step.name for step in steps)]
        chosen = proposal["value"]
        for name, kind in chosen.items():
            if name not in names:
                raise ValueError(f"no tensor {name!r} in {self._text}. The tensors are {', '.join(names)}")
            if kind not in KINDS:
                raise ValueError(f"choices[{name!r}] = {kind!r}: choose from {', '.join(map(repr, KINDS))}")
        chosen = {name: chosen[name] for name in names if chosen.get(name, "nothing") != "nothing"}
        run_expression(steps, self.values, chosen, {}, False, 1)
        return chosen

    @traitlets.validate("task")
    def _check_task(self, proposal: Any) -> int:
        if not -1 <= proposal["value"] < len(TASKS):
            raise ValueError(f"task={proposal['value']}: choose 0 to {len(TASKS) - 1}, or -1 for none")
        return int(proposal["value"])

    @traitlets.validate("guesses")
    def _check_guesses(self, proposal: Any) -> dict[str, str]:
        names = [*list_leaves(self._steps), *(step.name for step in self._steps)]
        for name, text in proposal["value"].items():
            if name not in names:
                raise ValueError(f"no tensor {name!r} in {self._text}. The tensors are {', '.join(names)}")
            try:
                read_guess(str(text))
            except ValueError:
                raise ValueError(f"your guess of {name}.grad is {text!r}. Type a number, or None") from None
        return {name: str(proposal["value"][name]).strip() for name in names if name in proposal["value"]}

    @traitlets.validate("runs")
    def _check_runs(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] <= MOST_RUNS:
            raise ValueError(f"runs={proposal['value']}: choose 0 to {MOST_RUNS} backward passes")
        return int(proposal["value"])

    def _on_change(self, change: Any) -> None:
        if self._is_updating:
            return
        self._is_updating = True
        try:
            with self.hold_sync():
                self._reset(change["name"])
                self._update()
        finally:
            self._is_updating = False

    def _reset(self, changed: str) -> None:
        """Set what follows from a change: the passes start again, and old guesses do not fit any more."""
        if changed == "expression":
            self.choices = {}
        if changed == "task" and self.task >= 0:
            self._begin_task()
        elif changed in ("expression", "values", "choices", "factors", "zero_grad"):
            self.task, self.guesses = -1, {}
        if changed not in ("runs", "guesses") and not (changed == "live" and self.runs):
            self.runs = int(self.live)

    def _begin_task(self) -> None:
        task = TASKS[self.task]
        self.guesses, self.choices = {}, {}
        self.values, self.expression = self._given, task.expression
        self.choices, self.factors = dict(task.choices), dict(task.factors)
        self.zero_grad = False

    def _update(self) -> None:
        """Run the expression, and update the page."""
        with self.catch_errors():
            steps = self._steps
            self._run_record = run_expression(steps, self.values, self.choices, self.factors, self.zero_grad, self.runs)
            self._plain_record = run_expression(steps, self.values, {}, {}, self.zero_grad, self.runs)
            drawing = _draw(steps, self._run_record, self.choices, self.factors, self.runs, self._guess)
            self.alt = _write_alt(self._text, self._run_record, self.runs)
            self.png = to_png(drawing)
            tensors = [
                {"name": name, "made": row.made, "leaf": row.made == "leaf", "free": row.requires_grad}
                for name, row in self._run_record.tensors.items()
            ]
            self.shown = {
                "expressions": [[name, f"{name}: {text}"] for name, text in EXPRESSIONS.items()],
                "kinds": KINDS,
                "most": MOST_RUNS,
                "tensors": tensors,
                "drawing": drawing,
                "rows": [{key: _format_cell(value) for key, value in row.items()} for row in self._list_rows()],
                "notes": self.notes,
                "code": self.code,
                "times": _format_runs(self.runs),
                "guess": self._guess,
                "tasks": [task.name for task in TASKS],
                "words": TASKS[self.task].words if self.task >= 0 else _OWN_WORDS,
                "asks": list(TASKS[self.task].asks if self.task >= 0 else self._run_record.tensors),
                "answers": explain_guesses(self._run_record, self._plain_record) if self.runs else {},
            }

    def _list_rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for name, row in self._run_record.tensors.items():
            rows.append(
                {
                    "tensor": name,
                    "made by": row.made,
                    "value": row.value,
                    "is_leaf": row.is_leaf,
                    "requires_grad": row.requires_grad,
                    "retains_grad": row.retains_grad,
                    "arrived": row.arrived,
                    "hook saw": row.saw,
                    "hook returned": row.returned,
                    ".grad before": "None" if row.before is None else row.before,
                    ".grad after": "None" if row.after is None else row.after,
                }
            )
        return rows


def _check_number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _format_cell(value: object) -> str:
    return as_text(value) if value is not None else "–"


def _format_grad(value: float | None) -> str:
    return "None" if value is None else as_text(value)


def _format_runs(runs: int) -> str:
    return {0: "before the first backward pass", 1: "after 1 backward pass"}.get(runs, f"after {runs} backward passes")


def _join(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _draw(
    steps: list[Step],
    record: ExpressionRun,
    choices: Mapping[str, str],
    factors: Mapping[str, float],
    runs: int,
    guess: bool,
) -> dict[str, Any]:
    numbers = {name: number for number, name in enumerate(record.tensors)}
    stages = _list_stages(record) if runs else {}
    blocks, before = {}, {}
    for name, row in record.tensors.items():
        what = f"hook × {as_text(factors.get(name, 2.0))}" if "hook" in choices.get(name, "") else ""
        made = "" if row.made == "leaf" else f" = {row.made}"
        flags = "leaf" if row.is_leaf else "not a leaf"
        kept = ", retain_grad" if "retain_grad" in choices.get(name, "") else ""
        head = (
            (f"{name}{made} = {as_text(row.value)}", "title"),
            (f"{flags}{kept}" if row.requires_grad else f"{flags}, no requires_grad", "quiet"),
        )
        came = f"arrives: {_format_sum(name, record) or _format_cell(row.arrived)}" if row.requires_grad else ""
        hooked = what if row.saw is None else f"{what}: {as_text(row.saw)} → {as_text(row.returned)}"
        change = f"{_format_grad(row.before)} → " if row.before is not None else ""
        grad = (f".grad: {change}{_format_grad(row.after)}", "quiet" if row.after is None else "grad")
        old = (f".grad: {_format_grad(row.before)}", "quiet" if row.before is None else "grad")
        after = (*head, (came, "text"), (hooked, "hook"), grad)
        before[name] = (
            *head,
            ("", "text"),
            (what, "hook"),
            old if runs else (f".grad: {'?' if guess else 'None'}", "quiet"),
        )
        lit = bool(runs) and row.saw is not None and row.saw != row.returned
        blocks[numbers[name]] = TextBox(after if runs else before[name], round=row.is_leaf, lit=lit)
    arrows = {}
    for step in steps:
        for operand in dict.fromkeys(step.operands):
            flow = record.edges.get((step.name, operand), ()) if runs else ()
            text = " + ".join(f"{as_text(use.back)} × {_parenthesize(use.local)}" for use in flow)
            text += f" = {as_text(flow[0].on)}" if len(flow) == 1 else "" if flow or not runs else "no gradient"
            arrows[numbers[step.name], numbers[operand]] = Arrow(text, (step.name, operand) in record.ways)
    drawing = lay_out(blocks, arrows, numbers[steps[-1].name], _WIDE)
    for box, name in zip(drawing["boxes"], record.tensors, strict=True):
        box |= {"name": name, "before": [list(line) for line in before[name]]}
        box["stage"] = max((stages.get(step, 0) for step, operand in record.edges if operand == name), default=0)
    named = {number: name for name, number in numbers.items()}
    for line, (source, target) in zip(drawing["arrows"], arrows, strict=True):
        edge = (named[source], named[target])
        flow = record.edges.get(edge, ()) if runs else ()
        line |= {"stage": stages.get(edge[0], 0) if flow else 0, "values": [as_text(use.on) for use in flow]}
    return drawing


def _list_stages(record: ExpressionRun) -> dict[str, int]:
    """Number the steps in the order in which the engine ran them."""
    return {step: place for place, step in enumerate(dict.fromkeys(step for step, _ in record.edges), 1)}


def _list_uses(name: str, record: ExpressionRun) -> list[tuple[str, float]]:
    """List the gradient that each use of a tensor passed to it, with the name of the step."""
    return [(step, use.on) for step in record.tensors for use in record.edges.get((step, name), ())]


def _format_sum(name: str, record: ExpressionRun) -> str:
    """Format the gradient of a tensor as a sum; "" if the tensor is used only once."""
    (_, first), *others = [*_list_uses(name, record), ("", 0.0)]
    arrived = record.tensors[name].arrived
    if len(others) < 2 or arrived is None:
        return ""
    return f"{as_text(first)} + {' + '.join(_parenthesize(on) for _, on in others[:-1])} = {as_text(arrived)}"


def _parenthesize(number: float) -> str:
    return f"({as_text(number)})" if number < 0 else as_text(number)


def _write_alt(text: str, record: ExpressionRun, runs: int) -> str:
    grads = [f"{name}.grad {_format_grad(row.after)}" for name, row in record.tensors.items()]
    flow = "gradients flow from top to bottom, and each step multiplies by its local gradient"
    return f"Graph of {text}, {_format_runs(runs)}; {flow}. {_join(grads)}."


def _write_notes(
    steps: list[Step], record: ExpressionRun, without: ExpressionRun, owner: GradientPlayground
) -> list[str]:
    if not owner.runs and owner._guess:
        return []  # the rules of the game say it
    if not owner.runs:
        return ["Backward has not run yet. Guess every .grad first, then run backward."]
    notes = []
    fed: dict[str, list[str]] = {}
    for step, operand in record.ways:
        fed.setdefault(step, []).append(operand)
    lost, unreached = [], []
    for name, row in record.tensors.items():
        chosen = owner.choices.get(name, "nothing")
        if not row.requires_grad:
            notes.append(f"{name} does not require grad, so the backward pass ends there.")
            continue
        if row.arrived is None:
            unreached.append(name)
            continue
        if total := _format_sum(name, record):
            uses = _list_uses(name, record)
            who, often = _join([f"{as_text(on)} from {step}" for step, on in uses]), len(uses)
            notes.append(f"{name} is used {'twice' if often == 2 else f'{often} times'}: {who}. They add up: {total}.")
        if row.saw is not None:
            on = _join(fed.get(name, []))
            goes = f"it flows on to {on}" if on else f"it is added to {name}.grad"
            notes.append(f"The hook on {name} saw {as_text(row.saw)} and returned {as_text(row.returned)}; {goes}.")
        if row.retains_grad and row.saw is not None and _format_grad(row.after) == _format_grad(row.returned):
            order = ", although you called retain_grad() first" if chosen.startswith("retain_grad") else ""
            notes.append(
                f"{name}.grad is {_format_grad(row.after)}: retain_grad() stores what the hook returned{order}."
            )
        elif row.retains_grad:
            notes.append(f"{name}.grad is {_format_grad(row.after)}, stored by retain_grad().")
        elif not row.is_leaf:
            lost.append(name)
        if row.is_leaf and "retain_grad" in chosen:
            notes.append(f"retain_grad() has no effect on {name}, because a leaf always stores its .grad.")
    changed = [
        f"{name}.grad would be {_format_grad(without.tensors[name].after)}"
        for name, row in record.tensors.items()
        if row.is_leaf and _format_grad(row.after) != _format_grad(without.tensors[name].after)
    ]
    if changed:
        notes.append(f"Without hooks, {_join(changed)}.")
    if lost:
        are = "is None: it is not a leaf and has" if len(lost) == 1 else "are None: they are not leaves and have"
        notes.append(f"{_join([f'{name}.grad' for name in lost])} {are} no retain_grad().")
    if unreached:
        notes.append(f"No gradient reached {_join(unreached)}.")
    if owner.runs > 1:
        grown = [(name, row) for name, row in record.tensors.items() if row.is_leaf and row.before is not None]
        if owner.zero_grad:
            names = _join([f"{name}.grad" for name, _ in grown])
            notes.append(
                f"This was backward pass {owner.runs}. Before it, {names} were set to None, so nothing adds up."
            )
        else:
            moves = _join(
                [
                    f"{name}.grad went from {_format_grad(row.before)} to {_format_grad(row.after)}"
                    for name, row in grown
                ]
            )
            notes.append(f"This was backward pass {owner.runs}, without zeroing. A leaf's .grad adds up: {moves}.")
    return notes
