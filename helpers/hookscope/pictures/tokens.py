"""Check the tokens that label axes, and write them so that they fit there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

__all__ = ["check_tokens", "shorten_token"]


def check_tokens(tokens: object) -> tuple[str, ...]:
    """Return tokens as a tuple of strings.

    Raises:
        TypeError: they are none, or in no order.
        ValueError: there are none.

    """
    # Of a set nobody knows which token comes first.
    if isinstance(tokens, (str, bytes, Mapping, Set)) or not isinstance(tokens, Iterable):
        raise TypeError(f"tokens={tokens!r}: give a list of strings, one for each token")
    try:
        listed = tuple(tokens)
    except TypeError:  # a tensor without axes
        raise TypeError(f"tokens={tokens!r}: give a list of strings, one for each token") from None
    if not listed:
        raise ValueError(f"tokens={tokens!r} is empty: give a string for each token, or leave it out")
    if wrong := [each for each in listed if not isinstance(each, str)]:
        raise TypeError(
            f"tokens holds {wrong[0]!r}, not only strings: give those of one sample, for example "
            "tokenizer.convert_ids_to_tokens(ids[0])"
        )
    return listed


def shorten_token(text: str, most: int) -> str:
    """Write a token in so many letters at most, and one that cannot be seen by its code.

    Example:
        >>> shorten_token("unbelievable", 8)
        'unbelie…'

    """
    text = text if text.isprintable() and text.strip() else repr(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 1]}…"
