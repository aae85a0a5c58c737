"""Check the tokens that label an axis, and shorten them to fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

__all__ = ["check_tokens", "shorten_token"]


def check_tokens(tokens: object) -> tuple[str, ...]:
    """Return tokens as a tuple of strings.

    Raises:
        TypeError: they are not strings, or have no order.
        ValueError: the list is empty.

    """
    # A set has no order, and iterating over a mapping or a string gives the wrong items.
    if isinstance(tokens, (str, bytes, Mapping, Set)) or not isinstance(tokens, Iterable):
        raise TypeError(f"tokens={tokens!r} is not a list of strings. Pass a list with one string for each token")
    try:
        listed = tuple(tokens)
    except TypeError:  # a tensor without axes
        raise TypeError(
            f"tokens={tokens!r} is not a list of strings. Pass a list with one string for each token"
        ) from None
    if not listed:
        raise ValueError(f"tokens={tokens!r} is empty. Pass a string for each token, or leave it out")
    if wrong := [each for each in listed if not isinstance(each, str)]:
        raise TypeError(
            f"tokens contains {wrong[0]!r}, which is not a string. Pass the strings of one sample, for example "
            "tokenizer.convert_ids_to_tokens(ids[0])"
        )
    return listed


def shorten_token(text: str, most: int) -> str:
    """Return a token with at most `most` characters; whitespace and control characters become escapes.

    Example:
        >>> shorten_token("unbelievable", 8)
        'unbelie…'

    """
    text = text if text.isprintable() and text.strip() else repr(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 1]}…"
