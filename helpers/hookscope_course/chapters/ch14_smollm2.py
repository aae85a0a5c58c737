"""SmolLM2 in chapters 14, 15, 16 and 21: its results, or recordings of them if the weights are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

import hookscope
from hookscope import samples
from hookscope.interp.sweeps import Sweep
from hookscope.pictures.colors import DATA, INK, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope.samples.smollm2 import ENGLISH_WEIGHTS

__all__ = ["ask_smollm2", "count_turned", "draw_ranks", "giving_stories", "read_back", "write_down"]

Result = TypeVar("Result")
RECORDING = Path(__file__).with_suffix(".json")
MISSING = (
    f"NOTE: the weights of SmolLM2 are missing ({ENGLISH_WEIGHTS}). What you see is a recording of the run with the "
    "weights."
)
_SWEEP = ("baseline", "source", "layers", "columns", "kind", "change", "title", "tokens")
_GIFTS = (
    ("Anna", "Ben", "park", "ball"), ("Mary", "John", "store", "drink"), ("Tom", "Lisa", "beach", "book"),
    ("Paul", "Clara", "school", "pen"), ("Emma", "David", "lake", "hat"), ("Peter", "Sarah", "market", "bag"),
    ("Kate", "Mark", "station", "key"), ("James", "Laura", "garden", "letter"),
)  # fmt: skip
"""Who gets something, who gives it, where, and what. Each word is one token, so all stories have 14 tokens."""


class GivingStories(NamedTuple):
    """Eight stories, each twice: once the second person gives something, and once the first.

    Attributes:
        clean: "When Anna and Ben went to the park, Ben gave the ball to", and seven others.
        corrupted: the same, with the first person as giver.
        getters: the person who gets something in `clean`.
        givers: the person who gives it in `clean`.

    """

    clean: list[str]
    corrupted: list[str]
    getters: list[str]
    givers: list[str]


def giving_stories() -> GivingStories:
    """Return eight stories of 14 tokens each.

    Example:
        >>> giving_stories().clean[1]
        'When Mary and John went to the store, John gave the drink to'

    """
    texts = [
        [f"When {first} and {second} went to the {place}, {giver} gave the {thing} to" for giver in (second, first)]
        for first, second, place, thing in _GIFTS
    ]
    clean, corrupted = (list(each) for each in zip(*texts, strict=True))
    return GivingStories(clean, corrupted, [gift[0] for gift in _GIFTS], [gift[1] for gift in _GIFTS])


def ask_smollm2(name: str, run: Callable[[], Result]) -> Result:
    """Run a function that uses SmolLM2; if the weights are not installed, say so, and return what it gave elsewhere.

    Args:
        name: the name of the result in the recording.
        run: the function.

    Example:
        >>> ask_smollm2("story", lambda: "it runs")
        'it runs'

    """
    if samples.has_english_weights():
        return run()
    print(MISSING)
    found: Result = read_back(name)
    return found


def read_back(name: str) -> Any:
    """Return a recorded result: a `Sweep`, or what JSON makes of it; None for a widget, of which there is no recording.

    Example:
        >>> read_back("story").endswith("gave the ball to Ben.")
        True

    """
    found = json.loads(RECORDING.read_text(encoding="utf-8")).get(name)
    if not (isinstance(found, dict) and "baseline" in found):
        return found
    lists = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
    values = torch.tensor(found["values"], dtype=torch.float64)
    notes = ("this is a recording",)
    return Sweep(**found | lists | {"values": values}, batches=(), checked=0, largest_difference=0.0, notes=notes)


def write_down(results: Mapping[str, Any]) -> None:
    """Record results for `read_back`, rounded: numbers, texts, lists of them, and sweeps."""
    found = {}
    for name, result in results.items():
        if isinstance(result, Sweep):
            result = {key: getattr(result, key) for key in _SWEEP} | {"values": result.values.tolist()}
        found[name] = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 2))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    RECORDING.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


@cache
def _run_stories() -> tuple[Any, dict[str, Tensor], dict[str, Tensor], Tensor, Tensor]:
    """Return the model, the inputs of the clean and of the corrupted stories, and the tokens of the two names."""
    model, tokenizer = samples.english_lm()
    stories = giving_stories()
    clean, corrupted = (dict(tokenizer(texts, return_tensors="pt")) for texts in (stories.clean, stories.corrupted))
    getters, givers = (
        torch.tensor([tokenizer(" " + name)["input_ids"][0] for name in names])
        for names in (stories.getters, stories.givers)
    )
    return model, clean, corrupted, getters, givers


def count_turned(layer: str, positions: Sequence[int]) -> int:
    """Patch rows of a layer from the clean into the corrupted stories; count those with the right name ahead.

    Args:
        layer: the layer whose output is patched.
        positions: the rows: -1 is that of the last token.

    Example:
        >>> count_turned("model.layers.29", [-1])
        8

    """
    model, clean, corrupted, getters, givers = _run_stories()
    rows = torch.arange(len(getters))
    with hookscope.capture(model, layer) as seen, torch.no_grad():
        model(**clean)
    with hookscope.edit(model) as changes, torch.no_grad():
        for position in positions:
            changes.set(layer, seen[layer].output[:, position], hookscope.at[:, position])
        logits = model(**corrupted).logits[:, -1]
    return int((logits[rows, getters] > logits[rows, givers]).sum())


def round_ranks(ranks: Sequence[int]) -> list[int]:
    """Round each rank to its first digit, so that no figure depends on the processor.

    Example:
        >>> round_ranks([5628, 410, 16, 0])
        [6000, 400, 20, 0]

    """
    return [round(rank, 1 - len(str(rank))) for rank in ranks]


def draw_ranks(ranks: Sequence[int], word: str) -> Picture:
    """Draw how many words the lens puts ahead of a word, after each block.

    Args:
        ranks: for each block, how many words are more likely than the word.
        word: the word.

    """
    from matplotlib.figure import Figure

    shown = round_ranks(ranks)
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(len(shown)), [rank + 1 for rank in shown], "o-", color=DATA[0], linewidth=1.5, markersize=5)
    axes.set_yscale("log")
    axes.invert_yaxis()
    axes.set_yticks([1, 11, 101, 1001, 10001], labels=["none", "10", "100", "1,000", "10,000"], color=INK)
    axes.minorticks_off()
    axes.set(xlabel="after block", ylabel=f"words ahead of {word}", xlim=(-0.5, len(shown) - 0.5))
    axes.set_xticks(range(0, len(shown), 2))
    axes.axhline(1, color=MUTED, linewidth=1, linestyle=":", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    rows = [{"after block": block, f"words ahead of {word}": f"about {rank:,}"} for block, rank in enumerate(shown)]
    told = f"about {shown[0]:,} after block 0, {shown[len(shown) // 2]:,} after block {len(shown) // 2}"
    last = f"{shown[-2]:,} after block {len(shown) - 2} and {shown[-1]:,} after the last"
    return from_figure(
        figure, f"The number of words ahead of {word}: {told}, {last}.", f"When {word} comes first", rows
    )
