"""Say what came of edits: the rows of their table, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from hookscope.edits.hooks import Layer
from hookscope.edits.reasons import UNSEEN_HEADS, why_not_called
from hookscope.edits.target import Target
from hookscope.layers import Modules

__all__ = ["missing", "notes_on", "row_of", "without_gradient"]


def missing(modules: Modules, target: Target, layer: Layer, runs: int) -> Iterator[str]:
    """Say what is missing of one edit on one layer that is not whole.

    Args:
        modules: those of the model.
        target: the edit.
        layer: the layer.
        runs: how often the model was called.

    """
    rule, module = target.rule, layer.module
    what = f"edit {rule.number}, {rule.text}: layer {target.layer!r}"
    times = "once" if layer.seen == 1 else f"{layer.seen} times"
    if runs and target.late == runs and not target.done:
        yield f"{what}: the model has not run since the edit was written, only before; write edits first"
        return
    if not layer.seen:
        yield f"{what} {why_not_called(modules, target.layer, module, runs)}"
        return
    meant = rule.calls or frozenset()
    if first := target.held.get("first"):  # the call that `freeze` took its values from stays as it is
        meant -= {first[0]}
    absent = sorted((rule.calls or set()) - set(range(1, layer.seen + 1)))
    if absent:
        yield f"{what} was called {times}, so call {', '.join(map(str, absent))} never came"
    elif target.missing_positions():
        places = ", ".join(map(str, target.missing_positions()[:8]))
        yield f"{what} was called {times}, but position {places} never came{target.came()}"
    elif target.done and (target.done >= meant or rule.positions is not None or rule.to == "edges"):
        return
    elif rule.change.verb == "freeze":
        yield f"{what} was called {times}: the first call is what it gives later, and no later one came"
    elif rule.to in ("heads", "edges"):
        yield f"{what} was called {times}, but {_not_seen(rule.to)}"
    elif target.missed:
        came = "was called with" if rule.to == "input" else "returned"
        yield f"{what} was called {times}, but the part never came: it {came} {target.missed}"
    elif rule.to == "grad" and target.hooked:
        yield (
            f"{what} was called {times}, but no gradient came: backward() was not run inside the block, or not "
            "from what depends on it, or the output was overwritten in place"
        )
    elif rule.to == "grad":
        yield f"{what} was called {times}, but what it returned does not require grad, or it ran under no_grad"
    else:
        yield f"{what} was called {times}, but raised an exception, which the model caught"


def without_gradient(target: Target) -> Iterator[str]:
    """Say of which calls no gradient came, where those of others did."""
    if absent := sorted(target.hooked - target.done) if target.done else []:
        calls = f"{', '.join(map(str, absent[:8]))}{', …' if len(absent) > 8 else ''}"
        yield (
            f"edit {target.rule.number} of layer {target.layer!r}: no gradient came of call {calls}: nothing that was "
            "run backward depends on it, or it was overwritten in place"
        )


def notes_on(modules: Modules, layer: Layer) -> Iterator[str]:
    """Say what there is to know about an edited layer: its other names, and whether it is still to run again."""
    if not any(layer.targets.values()):
        return
    if layer.seen > 1 and layer.module in modules.names:  # it may have gone since
        others = [repr(other) for other in modules.names_of(layer.module) if other != layer.name]
        if others:
            yield f"layer {layer.name!r} is also {', '.join(others)}: calls under each name count"
    if layer.checkpointed and not layer.again:
        yield (
            f"layer {layer.name!r} ran in a checkpoint, which runs it again in backward(): outside the block that is "
            "without the edit, so run backward() inside"
        )


def _not_seen(to: str) -> str:
    if to == "heads":
        return UNSEEN_HEADS
    return (
        "it computed no F.scaled_dot_product_attention that was seen: transformers' models are made for it with "
        'attn_implementation="sdpa", and nn.MultiheadAttention calls it with need_weights=False'
    )


def row_of(target: Target, layer: Layer) -> dict[str, object]:
    """Make the table's row of one edit on one layer."""
    row: dict[str, object] = {
        "edit": target.rule.number,
        "layer": target.layer or "(root)",
        "change": target.rule.text,
        "calls seen": layer.seen,
        **target.sizes.row(),
    }
    if target.places:
        calls = (f"call {number}: {', '.join(map(str, places))}" for number, places in sorted(target.places.items()))
        row["positions"] = "; ".join(calls)
    return row
