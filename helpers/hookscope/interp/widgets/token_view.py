"""Images, captions and table rows for a token picker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.interp.attentions import AttentionMap
from hookscope.interp.attentions.drawing import find_choices as choosing
from hookscope.interp.lenses import Reading
from hookscope.interp.lenses.texts import WordTable
from hookscope.pictures.heatmap import Heatmap, draw_heatmap
from hookscope.pictures.picture import as_text
from hookscope.pictures.tokens import shorten_token

__all__ = [
    "SHOWS",
    "MapLabels",
    "StreamPicture",
    "TokenAttention",
    "describe_token",
    "draw_attention",
    "draw_map",
    "list_attention",
    "list_predictions",
    "list_values",
    "select_values",
    "write_words",
]

SHOWS = {
    "final word": "probability of the word that the model predicts",
    "next word": "probability of the next word in the text",
    "norm": "norm of the stream",
    "change": "how much the layer changed it",
    "attention": "norm of the attention output",
    "MLP": "norm of the MLP output",
}
_BY_LOG = ("norm", "change", "attention", "MLP")
_TOKENS, _LAYERS, _KEYS = 64, 16, 5  # in a table
_LETTERS = 24


class StreamPicture(NamedTuple):
    """A map with its alt text and caption."""

    heat: Heatmap
    alt: str
    caption: str


class TokenAttention(NamedTuple):
    """Attention from one token: all weights, the largest as table rows, and a description of the head."""

    weights: list[float]
    rows: list[list[str]]
    text: str


class MapLabels:
    """The labels of layers and tokens on a map.

    Attributes:
        layers: the labels of the layers.
        short: the labels without their common prefix.
        tokens: strings; `""` if unknown.

    Example:
        >>> names = MapLabels(["net.h.0", "net.h.1"], ["the", "cat"])
        >>> names.short, names.token(1)
        (['h.0', 'h.1'], '1 cat')

    """

    def __init__(self, layers: Sequence[str], tokens: Sequence[str]) -> None:
        self.layers, self.tokens = list(layers), list(tokens)
        parts = [label.split(".") for label in layers]
        same = 0
        while len(parts) > 1 and all(len(each) > same + 1 and each[same] == parts[0][same] for each in parts):
            same += 1
        if same and all(each[same][:1].isdigit() for each in parts):
            same -= 1  # h.0 is clearer than 0
        self.short = [".".join(each[same:]) for each in parts]

    def token(self, place: int) -> str:
        """Return the label of a token: its position and its text."""
        token = self.tokens[place]
        text = shorten_token(token if token.strip() else repr(token), _LETTERS) if token else ""
        return f"{place} {text}".strip()


def select_values(reading: Reading, show: str) -> Tensor | None:
    """Return the values of a map, [layers, tokens]; None if they are unknown."""
    found = {
        "norm": reading.norm,
        "change": reading.change,
        "attention": reading.attention,
        "MLP": reading.mlp,
        "final word": reading.final_probability,
        "next word": reading.next_probability,
    }[show]
    return None if found is None or (show != "norm" and bool(found.isnan().all())) else found


def draw_map(values: Tensor, show: str, names: MapLabels, title: str, width: int) -> StreamPicture:
    """Draw a map with a row per layer and a column per token."""
    log = show in _BY_LOG
    columns = [names.token(place) for place in range(len(names.tokens))]
    picture = draw_heatmap(values.numpy(), names.short, columns, log=log, low=None if log else 0.0, width=width)
    by = ", on a log scale" if log else ""
    alike = picture.ends[0] == picture.ends[1]
    dark, bright = (_shorten(float(end)) for end in picture.ends)
    scale = f"{dark} everywhere" if alike else f"from {dark} (dark) to {bright} (bright){by}"
    caption = f"{SHOWS[show].capitalize()}: {scale}. Rows are layers, columns are tokens."
    if bool(values.isnan().any()):
        caption += " Black cells have no value."
    known = values.nan_to_num(-math.inf)  # so that NaN is not the largest
    layer, token = divmod(int(known.argmax()), values.shape[1])
    where = f"{names.layers[layer]}, token {names.token(token)}"
    greatest = f"brighter is larger. The largest, {_shorten(float(values[layer, token]))}, is at {where}."
    alt = (
        f"Token map of {title}: {SHOWS[show]}, {values.shape[0]} layers as rows, from {names.layers[0]} to "
        f"{names.layers[-1]}, by {values.shape[1]} tokens as columns, {f'{scale}.' if alike else greatest}"
    )
    return StreamPicture(picture, alt, caption)


def list_values(values: Tensor | None, names: MapLabels, token: int) -> list[dict[str, object]]:
    """List the values of a map, a row per token. A long text is shortened to the part around the current token."""
    if values is None:
        return []
    count, tokens = values.shape
    layers = sorted(
        {round(place * (count - 1) / max(1, min(count, _LAYERS) - 1)) for place in range(min(count, _LAYERS))}
    )
    first = max(0, min(token - _TOKENS // 2, tokens - _TOKENS))
    return [
        {"token": names.token(place)} | {names.short[layer]: float(values[layer, place]) for layer in layers}
        for place in range(first, min(tokens, first + _TOKENS))
    ]


def list_predictions(reading: Reading, token: int, names: MapLabels, words: WordTable) -> list[dict[str, object]]:
    """List the top words of each layer at a token, preceded by those after its attention if they are known."""
    if reading.words is None or reading.probabilities is None:
        return []
    apart = reading.middle_words is not None
    rows = []
    for layer, label in enumerate(names.layers):
        for after, ids, chances in (
            ("attention", reading.middle_words, reading.middle_probabilities),
            ("MLP" if apart else "", reading.words, reading.probabilities),
        ):
            if ids is None or chances is None:
                continue
            row: dict[str, object] = {"layer": label}
            if apart:
                row["after"] = after
            found = zip(ids[layer, token].tolist(), chances[layer, token].tolist(), strict=True)
            for rank, (number, chance) in enumerate(found, start=1):
                row |= {f"{rank}": shorten_token(words[number], _LETTERS), f"{rank} probability": chance}
            rows.append(row)
    return rows


def describe_token(reading: Reading, layer: int, token: int, names: MapLabels, words: WordTable) -> str:
    """Describe a token at a layer in at most three sentences."""
    said = f"{names.layers[layer]}, token {names.token(token)}: the stream has the norm "
    said += _shorten(float(reading.norm[layer, token]))
    if reading.attention is not None and reading.mlp is not None:
        adds = (_shorten(float(part[layer, token])) for part in (reading.attention, reading.mlp))
        said += "; attention adds {}, the MLP {}".format(*adds)
    elif not math.isnan(change := float(reading.change[layer, token])):
        said += f"; the layer changed it by {_shorten(change)} times the norm before"
    chances = []
    if reading.final is not None and reading.final_probability is not None:
        word = shorten_token(words[int(reading.final[token])], _LETTERS)
        chances.append(f"{_percent(float(reading.final_probability[layer, token]))} to {word!r}, the word at the end")
    if reading.next_probability is not None and token + 1 < len(names.tokens):
        chance = _percent(float(reading.next_probability[layer, token]))
        chances.append(f"{chance} to {names.token(token + 1)!r}, the next word in the text")
    return f"{said}. The lens gives {', and '.join(chances)}." if chances else f"{said}."


def write_words(row: Mapping[str, object]) -> list[str]:
    """Return the words of a row of `list_predictions`, each with its probability, as text."""
    return [_percent(value) if isinstance(value, float) else str(value) for value in row.values()]


def _shorten(value: float) -> str:
    """Write a number with three digits."""
    return as_text(float(f"{value:.3g}"))


def _percent(chance: float) -> str:
    return "nan" if math.isnan(chance) else "< 1 %" if 0 < chance < 0.005 else f"{100 * chance:.0f} %"


def list_attention(shown: AttentionMap, sample: int, head: int, token: int, names: MapLabels) -> TokenAttention:
    """List the attention from one token in one head."""
    weights = shown.weights[sample, head, token].detach().double().cpu()
    alike = len(weights) == len(names.tokens)
    heads = shown.weights.shape[1]
    text = f"From token {names.token(token)}, head {head} of {heads} of {shown.label or 'the model'}"
    if bool(shown.blind[sample, head, token]):
        return TokenAttention([], [], f"{text}: its row is fully masked.")
    top = weights.nan_to_num(-1.0).topk(min(_KEYS, len(weights)))
    rows = [
        [names.token(key) if alike else f"key {key}", _percent(weight)]
        for key, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    if not alike:
        return TokenAttention(
            [],
            rows,
            f"{text}: no lines are drawn, because its {len(weights)} keys are not these {len(names.tokens)} tokens.",
        )
    return TokenAttention(weights.nan_to_num(0.0).tolist(), rows, f"{text}.")


def draw_attention(shown: AttentionMap, sample: int, head: int, names: MapLabels, width: int) -> StreamPicture:
    """Draw the map of a head, with a row per query and a column per key."""
    weights = shown.weights[sample, head].detach().float().cpu()
    queries = [names.token(place) for place in range(len(names.tokens))]
    keys = queries if weights.shape[1] == len(queries) else [str(place) for place in range(weights.shape[1])]
    picture = draw_heatmap(weights.numpy(), queries, keys, low=0.0, width=width, height=400, largest=(24, 24))
    known = weights.nan_to_num(0.0)
    chosen = choosing(known)
    query, key = divmod(int(torch.where(chosen, known, -1.0).argmax()), weights.shape[1])
    which = "" if bool(chosen.all()) else " of a query with several keys"
    alt = (
        f"Attention of {shown.label or 'the model'}, head {head}: {len(queries)} queries as rows by {len(keys)} keys "
        f"as columns, brighter for larger weights, from 0 to {picture.ends[1]}. The largest{which} is from "
        f"{queries[query]} to {keys[key]}."
    )
    return StreamPicture(picture, alt, alt)
