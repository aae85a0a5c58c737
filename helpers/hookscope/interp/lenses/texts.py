"""Find the token IDs among the inputs of a model, and turn IDs into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text

__all__ = ["Vocabulary", "WordTable", "find_token_ids", "label_tokens"]

Vocabulary = Sequence[str] | Callable[[int], str] | None
_NAMES = ("decoder_input_ids", "input_ids")  # of transformers; a decoder reads the first one


def find_token_ids(
    args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, tokens: int, swapped: bool
) -> Tensor | None:
    """Find the token IDs among the inputs of a model: integers of shape [batch, tokens].

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments. `input_ids` comes first; otherwise the only tensor of that shape is used.
        batch: the number of samples.
        tokens: the number of positions.
        swapped: True if the model takes (tokens, batch).

    """

    def numbers(value: Any) -> Tensor | None:
        if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
            return None
        found = value.t() if swapped and value.dim() == 2 else value
        return found.detach().cpu().long() if tuple(found.shape) == (batch, tokens) else None

    for value in (*(kwargs.get(name) for name in _NAMES), *args):
        if (found := numbers(value)) is not None:
            return found
    others = [found for value in kwargs.values() if (found := numbers(value)) is not None]
    return others[0] if len(others) == 1 else None


class WordTable:
    """Maps word IDs to words.

    Args:
        vocabulary: a list of words, or a function from an ID to its word; None to show the IDs.
        count: the number of IDs; None if unknown.

    Raises:
        TypeError: the vocabulary is neither a list nor a function.
        ValueError: the list is too short.

    Example:
        >>> WordTable(["a", "b"], 2)[1], WordTable(None, 2)[1], WordTable(lambda number: f"<{number}>", 2)[1]
        ('b', '1', '<1>')

    """

    def __init__(self, vocabulary: Vocabulary, count: int | None) -> None:
        if isinstance(vocabulary, str | Mapping) or not (
            vocabulary is None or callable(vocabulary) or isinstance(vocabulary, Sequence)
        ):
            raise TypeError(
                f"vocabulary is a {type(vocabulary).__name__}. Pass a list with one word for each ID, or a function "
                "from an ID to its word, such as tokenizer.convert_ids_to_tokens"
            )
        if isinstance(vocabulary, Sequence) and count is not None and len(vocabulary) < count:
            raise ValueError(
                f"vocabulary has {len(vocabulary)} words, but the lens makes logits for {count}. Pass a word for each "
                "of them"
            )
        self._vocabulary = vocabulary

    def __getitem__(self, number: int) -> str:
        if self._vocabulary is None:
            return str(number)
        if isinstance(self._vocabulary, Sequence):
            return str(self._vocabulary[number])
        return str(self._vocabulary(number))

    def __bool__(self) -> bool:
        return self._vocabulary is not None


def label_tokens(tokens: Any, ids: Tensor | None, words: WordTable, batch: int, count: int) -> list[tuple[str, ...]]:
    """Return one string for each position of each sample: the given strings, or the words of the token IDs.

    Args:
        tokens: a string for each position, or one such list for each sample.
        ids: the token IDs, [batch, tokens].
        words: maps an ID to its word.
        batch: the number of samples.
        count: the number of positions.

    Raises:
        TypeError: the tokens are not strings.
        ValueError: the number of strings differs from the number of positions.

    Example:
        >>> label_tokens(None, torch.tensor([[1, 0]]), WordTable(["a", "b"], 2), 1, 2)
        [('b', 'a')]

    """
    if tokens is None:
        if ids is None:
            return [("",) * count] * batch
        return [tuple([words[int(number)] for number in row]) for row in ids]
    lists = list(tokens) if isinstance(tokens, list | tuple) else tokens
    several = isinstance(lists, list) and bool(lists) and all(isinstance(each, list | tuple) for each in lists)
    found = [check_tokens(each) for each in lists] if several else [check_tokens(tokens)] * batch
    if len(found) != batch:
        raise ValueError(
            f"tokens has {len(found)} lists for {batch} samples. Pass one list for each sample, or one for all"
        )
    for number, each in enumerate(found):
        if len(each) != count:
            of = f" of sample {number}" if several else ""
            raise ValueError(
                f"tokens{of} has {count_text(len(each), 'string')}, but there are {count} positions. Pass one string "
                "each"
            )
    return found
