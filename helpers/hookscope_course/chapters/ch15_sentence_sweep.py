"""Sweeps over the sentence encoder, or recordings of them if the weights are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import hookscope
from hookscope import samples
from hookscope.interp.sweeps import Sweep
from hookscope.pictures.colors import DATA, INK, LINE, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope.samples.minilm import SENTENCE_WEIGHTS

__all__ = ["PAIRS", "draw_pairs", "run_or_recall", "share_of_rows", "sweep_pairs"]

RECORDING = Path(__file__).with_suffix(".json")
RECORDED_PAIRS = RECORDING.with_stem("ch15_more_pairs")
PAIRS = (
    ("The dog slept in the garden.", "car", "A puppy rested on the lawn."),
    ("The doctor wrote a letter to her friend.", "river", "A physician sent a note."),
    ("The boat crossed the lake at night.", "song", "A ship sailed over the water."),
    ("He ate an apple in the kitchen.", "anchor", "A man had some fruit."),
    ("The teacher opened the old window.", "guitar", "A school instructor let in the air."),
    ("The king built a castle of stone.", "moon", "A monarch made a fortress."),
)
"""A sentence, the word that replaces one of its nouns in the second sentence, and a third sentence to compare with."""
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
    return _read(json.loads(RECORDING.read_text(encoding="utf-8")))


def recall_pairs() -> list[tuple[Sweep, str]]:
    """Return the recorded sweeps of `PAIRS`, each with the word that was put in."""
    found = json.loads(RECORDED_PAIRS.read_text(encoding="utf-8"))
    return [(_read(each), word) for each, (_, word, _) in zip(found, PAIRS, strict=True)]


def _read(found: dict[str, Any]) -> Sweep:
    values = torch.tensor(found.pop("values"), dtype=torch.float64)
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return Sweep(
        values=values, **found | lists, batches=(), checked=0, largest_difference=0.0, notes=("this is a recording",)
    )


def record(sweep: Sweep) -> None:
    """Write down a sweep, rounded, for `recall`."""
    RECORDING.write_text(json.dumps(_write(sweep), indent=None) + "\n", encoding="utf-8")


def record_pairs() -> None:
    """Write down the sweeps of `PAIRS`, for `recall_pairs`."""
    found = [_write(sweep) for sweep, _ in sweep_pairs()]
    RECORDED_PAIRS.write_text(json.dumps(found, indent=None) + "\n", encoding="utf-8")


def _write(sweep: Sweep) -> Any:
    names = ("baseline", "source", "layers", "columns", "kind", "change", "title", "tokens")
    found = {name: getattr(sweep, name) for name in names} | {"values": sweep.values.tolist()}
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))


def sweep_pairs() -> list[tuple[Sweep, str]]:
    """Run the sweep of chapter 15 on each of `PAIRS`, or return the recordings if the weights are not installed."""
    if not samples.has_sentence_weights():
        return recall_pairs()
    encoder, tokenizer = samples.sentence_encoder()

    def read(sentence: str) -> dict[str, torch.Tensor]:
        return dict(tokenizer(sentence, return_tensors="pt"))

    found = []
    for clean, word, third in PAIRS:
        words = clean.split()
        words[1 if words[0] == "The" else 3] = word
        batch = read(" ".join(words))
        tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        with torch.no_grad():
            wanted = encoder(**read(third)).last_hidden_state.mean(1)
        sweep = hookscope.sweep(
            encoder,
            kwargs=batch,
            layers=[f"encoder.layer.{block}" for block in range(6)],
            source=read(clean),
            metric=partial(_compare, wanted),
            positions=range(len(tokens)),
            options=hookscope.SweepOptions(tokens=tokens, progress=False),
        )
        found.append((sweep, word))
    return found


def _compare(wanted: torch.Tensor, out: Any) -> torch.Tensor:
    return F.cosine_similarity(out.last_hidden_state.mean(1), wanted)


def share_of_rows(sweep: Sweep, word: str) -> tuple[list[float], list[float]]:
    """Return for each block the share of the difference that the row of a word restores, and the best other row."""
    assert sweep.tokens is not None
    assert sweep.source is not None
    own = sweep.tokens.index(word)
    shares = (sweep.values[-6:] - sweep.baseline) / (sweep.source - sweep.baseline)
    others = torch.cat([shares[:, :own], shares[:, own + 1 :]], dim=1)
    # Rounded, so that no picture depends on the processor.
    return [round(share, 2) for share in shares[:, own].tolist()], [
        round(share, 2) for share in others.amax(1).tolist()
    ]


def draw_pairs(yours: Sweep, others: list[tuple[Sweep, str]]) -> Picture:
    """Draw a line for each pair of sentences: how much the row of the changed word restores after each block.

    Args:
        yours: the sweep of the chapter, about the word "bank".
        others: sweeps like it, each with its word.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots()
    rows: list[dict[str, object]] = []
    for sweep, word in ((yours, "bank"), *others):
        own, rest = share_of_rows(sweep, word)
        is_yours = sweep is yours
        axes.plot(own, "o-", color=DATA[1] if is_yours else DATA[0], linewidth=3 if is_yours else 1.2, markersize=5)
        axes.plot(rest, "o:", color=MUTED, linewidth=1, markersize=3)
        numbers = {f"layer {block}": f"{share:.0%}" for block, share in enumerate(own)}
        rows.append({"changed word": word, **numbers, "best other row": f"{max(rest):.0%}"})
    for color, label, line in (
        (DATA[1], "row of “bank”", "o-"),
        (DATA[0], "row of the changed word, other pairs", "o-"),
        (MUTED, "the best other row", "o:"),
    ):
        axes.plot([], [], line, color=color, label=label, markersize=5)
    axes.axhline(1, color=LINE, linewidth=1, zorder=0)
    axes.set(ylabel="share of the difference\nthat is restored", ylim=(-0.05, 1.45))
    axes.set_yticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"])
    axes.set_xticks(range(6), labels=[f"layer {block}" for block in range(6)])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), labelcolor=INK)
    told = "; ".join(
        f"{row['changed word']} {row['layer 4']} after layer 4, {row['layer 5']} after layer 5" for row in rows
    )
    return from_figure(figure, f"A line for each pair of sentences. {told}.", "Seven pairs of sentences", rows)
