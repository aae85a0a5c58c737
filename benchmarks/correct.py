"""Which tool gives every call of every leaf as it was, on the models that peers were measured on."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.tools import TOOLS, Kept, at_work
from hookscope.pytree import find_tensors
from tests.shared.awkward_models import MODELS, PEERS, RAISED, Case, cloning

SKIPPED = (
    "plain forward",
    "plain forward, once more",
    "**hookscope**, `stats=True`",
    "**hookscope**, `gradients=True`, again",
)
"""What keeps no outputs, or needs a backward pass."""


def _same(kept: Any, expected: Any) -> bool:
    mine, theirs = find_tensors(kept), find_tensors(expected)
    return len(mine) == len(theirs) and all(map(_equal, mine, theirs))


def _equal(mine: Tensor, theirs: Tensor) -> bool:
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype and torch.equal(mine.detach(), theirs)


def case(name: str) -> Case:
    """Make a model and its inputs; in `eval()`, since tools may draw random numbers of their own."""
    model, args, kwargs = MODELS[name]()
    return model.eval(), args, kwargs


def reference(name: str) -> dict[str, list[Any]]:
    """Run the model with a clone made of every output at the moment its leaf returns it; give them by layer."""
    model, args, kwargs = case(name)
    with torch.no_grad(), cloning(model) as calls:
        model(*args, **kwargs)
    return by_layer({f"{call.layer}#{call.number}": call.output for call in calls if call.output is not RAISED})


def by_layer(kept: Kept) -> dict[str, list[Any]]:
    """Put the outputs of one layer together."""
    found: dict[str, list[Any]] = {}
    for label, output in kept.items():
        found.setdefault(label.split("#")[0], []).append(output)
    return found


def judge(label: str, name: str) -> str:
    """Return right, WRONG (other values without a word), partial (calls are missing) or fails (it raises)."""
    expected = reference(name)
    model, args, kwargs = case(name)
    try:
        with (
            at_work(label),
            torch.no_grad(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            run = TOOLS[label](model)
            for _ in range(2):  # the second pass finds what the first one left
                kept = by_layer(run(*args, **kwargs).read())
    except Exception:
        return "fails"
    kept = {layer: outputs for layer, outputs in kept.items() if layer in expected}
    if not all(_among(outputs, expected[layer]) for layer, outputs in kept.items()):
        return "WRONG"
    return (
        "right"
        if kept.keys() == expected.keys() and all(len(kept[layer]) == len(calls) for layer, calls in expected.items())
        else "partial"
    )


def _among(kept: list[Any], expected: list[Any]) -> bool:
    """Whether these are the calls, or the first or the last of them."""
    few = len(kept)
    return any(all(map(_same, kept, some)) for some in (expected[:few], expected[-few:]))


def table() -> list[dict[str, object]]:
    """Count the verdicts of every tool."""
    rows: list[dict[str, object]] = []
    for label in TOOLS:
        if label in SKIPPED:
            continue
        verdicts = {name: judge(label, name) for name in itertools.islice(MODELS, PEERS)}
        row: dict[str, object] = {"tool": label}
        for verdict in ("right", "WRONG", "partial", "fails"):
            row[verdict] = sum(found == verdict for found in verdicts.values())
        row["not right on"] = ", ".join(name for name, found in verdicts.items() if found != "right")
        rows.append(row)
        print(row, flush=True)
    return rows
