"""The tasks of the gradient playground, and what a wrong guess of a `.grad` is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hookscope.pictures.picture import as_text
from hookscope_course.figures.gradient_playground.expression import ExpressionRun

__all__ = ["TASKS", "Task", "explain_guesses", "is_right", "read_guess"]


@dataclass(frozen=True)
class Task:
    """Something to guess: what is put on which tensor of an expression, and whose `.grad` is asked for."""

    name: str
    words: str
    expression: str
    asks: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)


TASKS = (
    Task(
        "1 · Every .grad",
        "What is in each .grad after backward()? It is a number, or None.",
        "chain",
        ("a", "b", "c", "d", "e"),
    ),
    Task(
        "2 · A hook on d",
        "A hook on d multiplies by 10, and retain_grad() keeps the gradient of d in d.grad. What are the four now?",
        "chain",
        ("a", "b", "c", "d"),
        {"d": "hook, then retain_grad"},
        {"d": 10.0},
    ),
    Task(
        "3 · The hook moves to a",
        "The same hook is on a now, and d has no retain_grad(). What are the three now?",
        "chain",
        ("a", "b", "d"),
        {"a": "hook"},
        {"a": 10.0},
    ),
    Task(
        "4 · d is used twice",
        "f = d + e uses d once more, and d has retain_grad(). What arrives at d, and at a?",
        "used twice",
        ("a", "d"),
        {"d": "retain_grad"},
    ),
)


def read_guess(text: str) -> float | None:
    """Read what was typed: a number, or None.

    Raises:
        ValueError: it is neither.

    """
    if text.strip().lower() == "none":
        return None
    number = float(text.replace(",", "."))
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def is_right(guess: float | None, value: float | None) -> bool:
    """Return whether a guess counts as a value: half a percent off does."""
    if guess is None or value is None:
        return guess is value
    return math.isclose(guess, value, rel_tol=0.005, abs_tol=1e-9)


def explain_guesses(record: ExpressionRun, without: ExpressionRun) -> dict[str, Any]:
    """Return for each tensor its `.grad`, reasons for wrong guesses, and a sentence for all others.

    The page looks a guess up here, so that it needs no kernel.

    Args:
        record: the run.
        without: the same run without hooks and `retain_grad`.

    """
    return {
        name: {
            "right": _finite(row.after),
            "shown": "None" if row.after is None else as_text(row.after),
            "reasons": [[_finite(guess), why] for guess, why in _list_reasons(name, record, without)],
            "otherwise": _otherwise(name, record),
        }
        for name, row in record.tensors.items()
    }


def _finite(value: float | None) -> float | str | None:
    """Return a value as JSON has it."""
    return value if value is None or math.isfinite(value) else as_text(value)


def _list_reasons(name: str, record: ExpressionRun, without: ExpressionRun) -> list[tuple[float | None, str]]:
    """List wrong guesses with what they reveal; the first that fits counts."""
    row, plain = record.tensors[name], without.tensors[name]
    grad = f"{name}.grad"
    uses = [use.on for (_, operand), flow in record.edges.items() if operand == name for use in flow]
    found: list[tuple[float | None, str]] = []
    if row.after is None:
        if row.arrived is not None:
            kept = f"arrives at {name}, but nobody keeps it: {name} is not a leaf and has no retain_grad()."
            found.append((row.arrived, f"{as_text(row.arrived)} {kept}"))
    elif row.is_leaf:
        found.append((None, f"{name} is a leaf, so backward() keeps its gradient in {grad}."))
    else:
        found.append((None, f"{name} is not a leaf, but it has retain_grad(), so its gradient is kept in {grad}."))
    if row.arrived is not None and row.saw is not None:
        found.append(
            (row.arrived, f"{as_text(row.arrived)} arrives at {name}; then its hook returns {as_text(row.returned)}.")
        )
    if row.arrived is not None and row.before is not None:
        found.append((row.arrived, f"{as_text(row.arrived)} arrives in this pass, and it is added to {grad}."))
    if plain.arrived is not None and plain.arrived != row.arrived:
        hooked = " and ".join(each for each, other in record.tensors.items() if other.saw is not None)
        found.append(
            (plain.arrived, f"That would be so without the hook on {hooked}. What it returns flows on to {name}.")
        )
    if len(uses) > 1:
        found += [
            (
                part,
                f"{as_text(part)} comes from one use of {name}. It is used more than once, and the gradients add up.",
            )
            for part in uses
        ]
    factor = next(
        (other.returned / other.saw for other in record.tensors.values() if other.saw and other.returned), None
    )
    if factor is not None and row.after is not None and row.saw is None and plain.arrived == row.arrived:
        found.append((row.after * factor, f"The gradient of {name} does not pass the hook."))
    for step, flow in ((step, flow) for (step, operand), flow in record.edges.items() if operand == name):
        parts = [use.on for (_, operand), uses_of in record.edges.items() if operand == step for use in uses_of]
        if len(parts) > 1 and len(flow) == 1:
            found += [
                (
                    part * flow[0].local,
                    f"{step} is used more than once. The gradients of its uses add up before they go on to {name}.",
                )
                for part in parts
            ]
    found.append((row.value, f"{as_text(row.value)} is the value of {name}, not its gradient."))
    return found


def _otherwise(name: str, record: ExpressionRun) -> str:
    row = record.tensors[name]
    if not row.requires_grad:
        return f"{name} does not require grad, so no gradient comes to it."
    if row.arrived is None:
        return f"No gradient reaches {name}."
    if row.after is None:
        return f"{name} is not a leaf and has no retain_grad(), so nobody keeps its gradient."
    flows = [use for (_, operand), flow in record.edges.items() if operand == name for use in flow]
    if not flows:
        return f"The pass begins with a 1 at {name}."
    steps = " and ".join(f"{as_text(use.back)} × {as_text(use.local)}" for use in flows)
    return f"Follow the arrows: what arrives at {name} is {steps}."
