"""The text that a model was given: numbers of tokens, strings for them, and words for the numbers of a lens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text

__all__ = ["Vocabulary", "WordTable", "find_token_ids", "label_tokens"]

Vocabulary = Sequence[str] | Callable[[int], str] | None
_NAMES = ("decoder_input_ids", "input_ids")  # of transformers; the first is what a decoder reads


def find_token_ids(
    args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, tokens: int, swapped: bool
) -> Tensor | None:
    """Find the numbers of the tokens among the inputs of a model: integers, [batch, tokens].

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments; those of transformers are known by name, and another is taken if it is the only
            one of that shape.
        batch: how many samples there are.
        tokens: how many positions.
        swapped: the model takes (tokens, batch).

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
    """Words for the numbers of a lens.

    Args:
        vocabulary: a word for each number, or a function from a number to its word; None for the numbers themselves.
        count: how many numbers there are; None if that is not known.

    Raises:
        TypeError: it is neither.
        ValueError: it has not as many words.

    Example:
        >>> WordTable(["a", "b"], 2)[1], WordTable(None, 2)[1], WordTable(lambda number: f"<{number}>", 2)[1]
        ('b', '1', '<1>')

    """

    def __init__(self, vocabulary: Vocabulary, count: int | None) -> None:
        if isinstance(vocabulary, str | Mapping) or not (
            vocabulary is None or callable(vocabulary) or isinstance(vocabulary, Sequence)
        ):
            raise TypeError(
                f"vocabulary of type {type(vocabulary).__name__}: give a list with a word for each number, or a "
                "function from a number to its word, as tokenizer.convert_ids_to_tokens"
            )
        if isinstance(vocabulary, Sequence) and count is not None and len(vocabulary) < count:
            raise ValueError(f"vocabulary has {len(vocabulary)} words, but the lens makes logits for {count}")
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
    """Return strings for the positions of each sample: those given, or the words of the numbers, or the numbers.

    Args:
        tokens: a string for each position, or such a list for each sample.
        ids: the numbers of the tokens, [batch, tokens].
        words: what to call them.
        batch: how many samples there are.
        count: how many positions.

    Raises:
        TypeError: tokens are no strings.
        ValueError: there are not as many as there are positions.

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
        raise ValueError(f"tokens has {len(found)} lists for {batch} samples: give one for each, or one for all")
    for number, each in enumerate(found):
        if len(each) != count:
            of = f" of sample {number}" if several else ""
            raise ValueError(f"tokens{of} has {count_text(len(each), 'string')}, but there are {count} positions")
    return found
