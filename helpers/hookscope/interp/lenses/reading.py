"""What is read of the streams of one sample: their norms, how much each layer changed them, and the words in them."""

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
    """The numbers of one sample, all on the CPU; layers are those of `Streams.labels`.

    Attributes:
        norm: [layers, tokens], the length of the stream.
        change: [layers, tokens], the length of what the stream differs by from the layer before, divided by the length
            that it had there; for the first layer, from what that was given. NaN where that is not known.
        words: [layers, tokens, up to 5], the numbers of the words with the highest logits, highest first; None without
            a lens.
        probabilities: their probabilities by a softmax over all words.
        final: [tokens], the word that the model chose in the end: that of its own highest logit. Where the model
            returns no logits for a token, that of the lens on the last layer.
        final_probability: [layers, tokens], its probability.
        next_probability: [layers, tokens], that of the token that comes next in the text, NaN for the last one; None
            without token numbers.
        error: the largest difference between the lens on the last layer and the logits that the model returned; None
            if it returned none to compare with.
        bound: what rounding may make of that.
        largest: the largest absolute value of those logits.

    """

    norm: Tensor
    change: Tensor
    words: Tensor | None = None
    probabilities: Tensor | None = None
    final: Tensor | None = None
    final_probability: Tensor | None = None
    next_probability: Tensor | None = None
    error: float | None = None
    bound: float = 0.0
    largest: float = 0.0

    @property
    def verified(self) -> bool:
        """Whether the lens on the last layer gives what the model returned, but for rounding."""
        return self.error is not None and self.error <= self.bound


def read_streams(
    streams: Sequence[Tensor], before: Tensor | None, lens: Lens | None, logits: Tensor | None, ids: Tensor | None
) -> Reading:
    """Read the streams of one sample.

    Args:
        streams: one for each layer, (tokens, width).
        before: what the first layer was given, of the same shape.
        lens: makes logits of them.
        logits: what the model returned for this sample, (tokens, words), or (words,) if it reads one position.
        ids: the numbers of the tokens in the text, (tokens,); left out where a number is no word.

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
    if lens is None:
        return Reading(norm, change)

    last = _compute_logits(lens, streams[-1])
    words = last.shape[-1]
    error, bound, largest = None, 0.0, 0.0
    final = last.argmax(-1)
    if logits is not None and logits.shape[-1] == words:
        mine = last[lens.position] if logits.dim() == 1 and lens.position is not None else last
        mine = mine[-len(logits) :] if logits.dim() == 2 else mine  # a model may return the last ones only
        if mine.shape == logits.shape:
            error, bound, largest = compare_logits(mine, logits)
        if logits.dim() == 2 and len(logits) == len(final):
            final = logits.argmax(-1)
    goes_on = None
    if ids is not None and bool((ids >= 0).all()) and int(ids.max()) < words:
        goes_on = torch.cat([ids[1:], ids[:1]])  # the last is blanked below
    kept: list[list[Tensor]] = [[], [], [], []]
    for number, stream in enumerate(streams):
        pieces = (
            [last] if number == len(streams) - 1 else [piece[0] for piece in lens.split_logits(stream[None], words)]
        )
        at = 0
        rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for piece in pieces:
            wide = piece.float() if piece.dtype in (torch.float16, torch.bfloat16) else piece
            total = wide.logsumexp(-1, keepdim=True)
            top = wide.topk(min(MOST_WORDS, words), dim=-1)
            here = slice(at, at + len(piece))
            chosen = (wide.gather(-1, final[here, None]) - total).exp()[:, 0]
            going = chosen if goes_on is None else (wide.gather(-1, goes_on[here, None]) - total).exp()[:, 0]
            rows.append((top.indices, (top.values - total).exp(), chosen, going))
            at += len(piece)
        for into, parts in zip(kept, zip(*rows, strict=True), strict=True):
            into.append(torch.cat(parts).cpu())
    tops, chances, finals, nexts = map(torch.stack, kept)
    if goes_on is not None:
        nexts[:, -1] = math.nan
    going_on = nexts if goes_on is not None else None
    return Reading(norm, change, tops, chances, final.cpu(), finals, going_on, error, bound, largest)


def _compute_logits(lens: Lens, stream: Tensor) -> Tensor:
    """All logits of the last layer: as many as the model itself has made."""
    return torch.cat([piece[0] for piece in lens.split_logits(stream[None], 1)])
