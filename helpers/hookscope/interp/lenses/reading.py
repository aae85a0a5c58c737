"""Compute the norms of the streams of one sample, their changes, and the words that the lens reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.interp.lenses.lens import Lens, compare_logits

__all__ = ["MOST_WORDS", "Reading", "read_streams"]

MOST_WORDS = 5


@dataclass(frozen=True, eq=False)
class Reading:
    """The values of one sample, on the CPU. The layers are those of `Streams.labels`.

    Attributes:
        norm: [layers, tokens], the L2 norm of the stream.
        change: [layers, tokens], the norm of the change since the layer before, divided by the norm there. NaN if the
            input of the first layer is unknown.
        attention, mlp: [layers, tokens], the norms of the vectors that the layer's attention and the rest of the layer
            add; None if the layer does not add these two.
        words: [layers, tokens, up to 5], the IDs of the words with the highest logits, highest first; None without a
            lens.
        probabilities: the softmax probabilities of these words.
        middle_words, middle_probabilities: the same between attention and the rest of the layer.
        final: [tokens], the word with the highest logit that the model returned. If it returned no logits for a token,
            the word that the lens reads after the last layer.
        final_probability: [layers, tokens], the probability of this word.
        next_probability: [layers, tokens], the probability of the next token in the text, NaN for the last token; None
            without token IDs.
        error: the largest difference between the lens after the last layer and the logits that the model returned; None
            if there are no logits to compare with.
        bound: the largest difference that rounding can cause.
        largest: the largest absolute value of these logits.

    """

    norm: Tensor
    change: Tensor
    attention: Tensor | None = None
    mlp: Tensor | None = None
    words: Tensor | None = None
    probabilities: Tensor | None = None
    middle_words: Tensor | None = None
    middle_probabilities: Tensor | None = None
    final: Tensor | None = None
    final_probability: Tensor | None = None
    next_probability: Tensor | None = None
    error: float | None = None
    bound: float = 0.0
    largest: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether the lens after the last layer gives the logits of the model, up to rounding."""
        return self.error is not None and self.error <= self.bound


def read_streams(
    streams: Sequence[Tensor],
    before: Tensor | None,
    lens: Lens | None,
    logits: Tensor | None,
    ids: Tensor | None,
    added: Sequence[tuple[Tensor, Tensor]] = (),
) -> Reading:
    """Compute the values of one sample.

    Args:
        streams: one stream per layer, (tokens, width).
        before: the input of the first layer, of the same shape.
        lens: turns a stream into logits.
        logits: the logits of the model for this sample, (tokens, words), or (words,) if it reads one position.
        ids: the token IDs of the text, (tokens,). They are ignored if an ID is not a word of the lens.
        added: for each layer, the summands of its attention and of the rest of it; empty if they are unknown.

    """
    norm = torch.stack([stream.double().norm(dim=-1).cpu() for stream in streams])
    changes = []
    for earlier, stream in zip([before, *streams], streams, strict=False):
        if earlier is None or earlier.shape != stream.shape:
            changes.append(torch.full((len(stream),), math.nan, dtype=torch.float64))
        else:
            length = earlier.double().norm(dim=-1)
            changes.append(((stream.double() - earlier.double()).norm(dim=-1) / length).cpu())
    change = torch.stack(changes)
    attention: Tensor | None = None
    mlp: Tensor | None = None
    if added:
        sizes = [[part.double().norm(dim=-1).cpu() for part in pair] for pair in added]
        attention, mlp = (torch.stack(each) for each in zip(*sizes, strict=True))
    if lens is None:
        return Reading(norm, change, attention, mlp)

    last = _compute_logits(lens, streams[-1])
    words = last.shape[-1]
    error, bound, largest = None, 0.0, 0.0
    final = last.argmax(-1)
    if logits is not None and logits.shape[-1] == words:
        mine = last[lens.position] if logits.dim() == 1 and lens.position is not None else last
        mine = mine[-len(logits) :] if logits.dim() == 2 else mine  # a model can return the last ones only
        if mine.shape == logits.shape:
            error, bound, largest = compare_logits(mine, logits)
        if logits.dim() == 2 and len(logits) == len(final):
            final = logits.argmax(-1)
    next_ids = None
    if ids is not None and bool((ids >= 0).all()) and int(ids.max()) < words:
        next_ids = torch.cat([ids[1:], ids[:1]])  # the last token has no next one, and is set to NaN below
    kept: list[list[Tensor]] = [[], [], [], []]
    for number, stream in enumerate(streams):
        pieces = (
            [last] if number == len(streams) - 1 else [piece[0] for piece in lens.split_logits(stream[None], words)]
        )
        at = 0
        rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for piece in pieces:
            wide = _widen(piece)
            total = wide.logsumexp(-1, keepdim=True)
            top = wide.topk(min(MOST_WORDS, words), dim=-1)
            here = slice(at, at + len(piece))
            chosen = (wide.gather(-1, final[here, None]) - total).exp()[:, 0]
            following = chosen if next_ids is None else (wide.gather(-1, next_ids[here, None]) - total).exp()[:, 0]
            rows.append((top.indices, (top.values - total).exp(), chosen, following))
            at += len(piece)
        for into, found in zip(kept, zip(*rows, strict=True), strict=True):
            into.append(torch.cat(found).cpu())
    tops, chances, finals, nexts = map(torch.stack, kept)
    middles = [_find_top_words(lens, stream - rest, words) for stream, (_, rest) in zip(streams, added, strict=False)]
    middle_words: Tensor | None = None
    middle_chances: Tensor | None = None
    if middles:
        middle_words, middle_chances = (torch.stack(each) for each in zip(*middles, strict=True))
    if next_ids is not None:
        nexts[:, -1] = math.nan
    next_probability = nexts if next_ids is not None else None
    return Reading(
        norm,
        change,
        attention=attention,
        mlp=mlp,
        words=tops,
        probabilities=chances,
        middle_words=middle_words,
        middle_probabilities=middle_chances,
        final=final.cpu(),
        final_probability=finals,
        next_probability=next_probability,
        error=error,
        bound=bound,
        largest=largest,
    )


def _widen(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _find_top_words(lens: Lens, stream: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """Return the words with the highest logits and their probabilities, (tokens, up to 5)."""
    pieces = [_widen(piece[0]).softmax(-1) for piece in lens.split_logits(stream[None], words)]
    top = [piece.topk(min(MOST_WORDS, words), dim=-1) for piece in pieces]
    return torch.cat([each.indices for each in top]).cpu(), torch.cat([each.values for each in top]).cpu()


def _compute_logits(lens: Lens, stream: Tensor) -> Tensor:
    """Return all logits of the last layer. The model itself made as many."""
    return torch.cat([piece[0] for piece in lens.split_logits(stream[None], 1)])
