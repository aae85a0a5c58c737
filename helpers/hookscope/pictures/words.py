"""Write numbers of things as words say them, and names so that all of them is seen."""

from __future__ import annotations

from html import escape
from unicodedata import category

__all__ = ["count_text", "html_of", "shorten", "truncate", "visible"]

# Of Unicode: control characters, those that turn the direction of a text, half letters, ends of lines and paragraphs.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def count_text(number: int, noun: str, nouns: str = "") -> str:
    """Write how many there are of something, with the noun in the plural where there is not one.

    Args:
        number: how many.
        noun: what it is, in the singular.
        nouns: its plural, where that is not the singular with an s.

    Example:
        >>> count_text(1, "layer"), count_text(0, "layer"), count_text(2, "batch", "batches")
        ('1 layer', '0 layers', '2 batches')

    """
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def visible(text: str) -> str:
    r"""Write characters that cannot be seen as Python writes them in quotes; line feeds and tabs stay.

    A name may come from anybody, and one with such a character could change how the rest of its line reads.

    Example:
        >>> print(visible("fc\u202e1"))
        fc\u202e1

    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or category(c) not in _HIDDEN else repr(c)[1:-1] for c in text)


def truncate(text: str, most: int) -> str:
    """Write a text as `visible` does, and say how much of it there is beyond so many characters.

    Example:
        >>> truncate("abcdefgh", 3)
        'abc… and 5 more characters'

    """
    more = len(text) - most
    return visible(text) if more <= 0 else f"{visible(text[:most])}… and {more:,} more characters"


def html_of(text: str) -> str:
    """Write a text as HTML that shows it: escaped, and what cannot be seen as `visible` writes it.

    Example:
        >>> html_of("<b>")
        '&lt;b&gt;'

    """
    return escape(visible(text))


def shorten(text: str, most: int) -> str:
    """Write a label in so many characters at most, without its middle; the end says more than the beginning.

    Example:
        >>> shorten("encoder.layers.10.attention.output", 18)
        'encode…ntion.output'

    """
    text = visible(text)
    return text if len(text) <= most else f"{text[: most // 3]}…{text[-2 * most // 3 :]}"
