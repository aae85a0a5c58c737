"""A sweep over the sentence encoder, or a recording of it if the weights are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from hookscope import samples
from hookscope.interp.sweeps import Sweep
from hookscope.samples.minilm import SENTENCE_WEIGHTS

__all__ = ["run_or_recall"]

RECORDING = Path(__file__).with_suffix(".json")
MISSING = (
    f"NOTE: the weights of the sentence encoder are missing ({SENTENCE_WEIGHTS}). What you see is a recording of the "
    "run with the weights."
)


def run_or_recall(run: Callable[[], Sweep]) -> Sweep:
    """Run the sweep of chapter 15; if the weights are not installed, say so, and return what it gave elsewhere.

    Args:
        run: makes the sweep.

    Example:
        >>> recall().kind
        'position'

    """
    if samples.has_sentence_weights():
        return run()
    print(MISSING)
    return recall()


def recall() -> Sweep:
    """Return the recorded sweep."""
    found = json.loads(RECORDING.read_text(encoding="utf-8"))
    values = torch.tensor(found.pop("values"), dtype=torch.float64)
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return Sweep(
        values=values, **found | lists, batches=(), checked=0, largest_difference=0.0, notes=("this is a recording",)
    )


def record(sweep: Sweep) -> None:
    """Write down a sweep, rounded, for `recall`."""
    names = ("baseline", "source", "layers", "columns", "kind", "change", "title", "tokens")
    found = {name: getattr(sweep, name) for name in names} | {"values": sweep.values.tolist()}
    rounded = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))
    RECORDING.write_text(json.dumps(rounded, indent=None) + "\n", encoding="utf-8")
