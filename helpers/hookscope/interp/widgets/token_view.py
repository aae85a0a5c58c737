"""What a token picker shows of the numbers it has: maps, captions and rows, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.interp.attentions import AttentionMap
from hookscope.interp.attentions.drawing import choosing
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
]

SHOWS = {
    "final word": "probability of the word chosen in the end",
    "next word": "probability of the next word of the text",
    "norm": "norm of the stream",
    "change": "how much the layer changed it",
}
_BY_LOG = ("norm", "change")
_TOKENS, _LAYERS, _KEYS = 64, 16, 5  # in a table
_LETTERS = 24


class StreamPicture(NamedTuple):
    """A picture with what is said about it."""

    heat: Heatmap
    alt: str
    caption: str


class TokenAttention(NamedTuple):
    """What one token looks at: its weights on all tokens, the greatest of them, and which head it is."""

    weights: list[float]
    rows: list[list[str]]
    text: str


class MapLabels:
    """What layers and tokens are called.

    Attributes:
        layers: the labels.
        short: without what all of them begin with.
        tokens: strings, `""` where there is none.

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
            same -= 1  # h.0 says more than 0
        self.short = [".".join(each[same:]) for each in parts]

    def token(self, place: int) -> str:
        """Name a token: its place, and what it is."""
        token = self.tokens[place]
        text = shorten_token(token if token.strip() else repr(token), _LETTERS) if token else ""
        return f"{place} {text}".strip()


def select_values(reading: Reading, show: str) -> Tensor | None:
    """Return the numbers that are shown, [layers, tokens]; None if there are none."""
    found = {
        "norm": reading.norm,
        "change": reading.change,
        "final word": reading.final_probability,
        "next word": reading.next_probability,
    }[show]
    return None if found is None or (show != "norm" and bool(found.isnan().all())) else found


def draw_map(values: Tensor, show: str, names: MapLabels, title: str, width: int) -> StreamPicture:
    """Draw a row for each layer and a column for each token."""
    log = show in _BY_LOG
    columns = [names.token(place) for place in range(len(names.tokens))]
    picture = draw_heatmap(values.numpy(), names.short, columns, log=log, low=None if log else 0.0, width=width)
    by = ", by its logarithm" if log else ""
    alike = picture.ends[0] == picture.ends[1]
    scale = f"from {picture.ends[0]} (dark) to {picture.ends[1]} (bright){by}"
    scale = f"{picture.ends[0]} everywhere" if alike else scale
    caption = f"{SHOWS[show].capitalize()}: {scale}; a row is a layer, a column is a token."
    if bool(values.isnan().any()):
        caption += " Black has no number."
    known = values.nan_to_num(-math.inf)  # NaN is not the greatest
    layer, token = divmod(int(known.argmax()), values.shape[1])
    where = f"{names.layers[layer]}, token {names.token(token)}"
    greatest = f"brighter for more. The greatest, {as_text(float(values[layer, token]))}, is at {where}."
    alt = (
        f"Token map of {title}: {SHOWS[show]}, {values.shape[0]} layers as rows, from {names.layers[0]} to "
        f"{names.layers[-1]}, by {values.shape[1]} tokens as columns, {f'{scale}.' if alike else greatest}"
    )
    return StreamPicture(picture, alt, caption)


def list_values(values: Tensor | None, names: MapLabels, token: int) -> list[dict[str, object]]:
    """List the numbers of a map, a row for each token; of many, those around the chosen one."""
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
    """List for each layer the words with the highest probabilities at a token."""
    if reading.words is None or reading.probabilities is None:
        return []
    rows = []
    for layer, label in enumerate(names.layers):
        row: dict[str, object] = {"layer": label}
        found = zip(reading.words[layer, token].tolist(), reading.probabilities[layer, token].tolist(), strict=True)
        for rank, (number, chance) in enumerate(found, start=1):
            row |= {f"{rank}": shorten_token(words[number], _LETTERS), f"{rank} probability": chance}
        rows.append(row)
    return rows


def describe_token(reading: Reading, layer: int, token: int, names: MapLabels, words: WordTable) -> str:
    """Say in a line what is known of a token at a layer."""
    said = [f"norm {as_text(float(reading.norm[layer, token]))}"]
    if not math.isnan(change := float(reading.change[layer, token])):
        said.append(f"changed by {as_text(change)} × the norm before")
    if reading.final is not None and reading.final_probability is not None:
        word = shorten_token(words[int(reading.final[token])], _LETTERS)
        said.append(f"{word!r}, chosen in the end, has {as_text(float(reading.final_probability[layer, token]))}")
    if reading.next_probability is not None and token + 1 < len(names.tokens):
        chance = as_text(float(reading.next_probability[layer, token]))
        said.append(f"{names.token(token + 1)!r}, which comes next, has {chance}")
    return f"{names.layers[layer]}, token {names.token(token)}: {'; '.join(said)}"


def list_attention(shown: AttentionMap, sample: int, head: int, token: int, names: MapLabels) -> TokenAttention:
    """Say what one token looks at in a head."""
    weights = shown.weights[sample, head, token].detach().double().cpu()
    alike = len(weights) == len(names.tokens)
    heads = shown.weights.shape[1]
    text = f"From token {names.token(token)}, head {head} of {heads} of {shown.label or 'the model'}"
    if bool(shown.blind[sample, head, token]):
        return TokenAttention([], [], f"{text}: no key, fully masked.")
    top = weights.nan_to_num(-1.0).topk(min(_KEYS, len(weights)))
    rows = [
        [names.token(key) if alike else f"key {key}", as_text(weight)]
        for key, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    if not alike:
        return TokenAttention(
            [], rows, f"{text}: its {len(weights)} keys are not these {len(names.tokens)} tokens, so no lines."
        )
    return TokenAttention(weights.nan_to_num(0.0).tolist(), rows, f"{text}.")


def draw_attention(shown: AttentionMap, sample: int, head: int, names: MapLabels, width: int) -> StreamPicture:
    """Draw the map of a head: a row for each query, a column for each key, from 0."""
    weights = shown.weights[sample, head].detach().float().cpu()
    queries = [names.token(place) for place in range(len(names.tokens))]
    keys = queries if weights.shape[1] == len(queries) else [str(place) for place in range(weights.shape[1])]
    picture = draw_heatmap(weights.numpy(), queries, keys, low=0.0, width=width, height=400, largest=(24, 24))
    known = weights.nan_to_num(0.0)
    chosen = choosing(known)
    query, key = divmod(int(torch.where(chosen, known, -1.0).argmax()), weights.shape[1])
    which = "" if bool(chosen.all()) else " of a query that sees several keys"
    alt = (
        f"Attention of {shown.label or 'the model'}, head {head}: {len(queries)} queries as rows by {len(keys)} keys "
        f"as columns, brighter for more weight, from 0 to {picture.ends[1]}. The greatest{which} is from "
        f"{queries[query]} to {keys[key]}."
    )
    return StreamPicture(picture, alt, alt)
