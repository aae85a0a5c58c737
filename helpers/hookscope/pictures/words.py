"""Write counts with their nouns, sizes with their units, and texts with hidden characters escaped."""

from __future__ import annotations

from html import escape
from unicodedata import category

__all__ = ["count_text", "format_bytes", "html_of", "shorten", "truncate", "visible"]

# Unicode categories: control and format characters (such as text direction), surrogates, line and paragraph separators.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def count_text(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, in the singular or the plural.

    Args:
        number: the number.
        noun: the noun in the singular.
        nouns: its plural, if that is not the singular with an s.

    Example:
        >>> count_text(1, "layer"), count_text(0, "layer"), count_text(2, "batch", "batches")
        ('1 layer', '0 layers', '2 batches')

    """
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def format_bytes(number: float) -> str:
    """Format a number of bytes for people.

    Example:
        >>> format_bytes(6400), format_bytes(3 << 30)
        ('6.2 KiB', '3.0 GiB')

    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while number >= 1024 and unit < len(units) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {units[unit]}" if unit else f"{number:,.0f} bytes"


def visible(text: str) -> str:
    r"""Escape invisible characters as Python does, except line feeds and tabs.

    A name can come from an untrusted source, and a direction character could change how its line reads.

    Example:
        >>> print(visible("fc\u202e1"))
        fc\u202e1

    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or category(c) not in _HIDDEN else repr(c)[1:-1] for c in text)


def truncate(text: str, most: int) -> str:
    """Return `visible` text of at most `most` characters, followed by the number of characters that were cut.

    Example:
        >>> truncate("abcdefgh", 3)
        'abc… and 5 more characters'

    """
    more = len(text) - most
    return visible(text) if more <= 0 else f"{visible(text[:most])}… and {more:,} more characters"


def html_of(text: str) -> str:
    """Escape a text for HTML, and escape its invisible characters as `visible` does.

    Example:
        >>> html_of("<b>")
        '&lt;b&gt;'

    """
    return escape(visible(text))


def shorten(text: str, most: int) -> str:
    """Shorten a label in the middle, to about `most` characters. The end keeps more, because it is more informative.

    Example:
        >>> shorten("encoder.layers.10.attention.output", 18)
        'encode…ntion.output'

    """
    text = visible(text)
    return text if len(text) <= most else f"{text[: most // 3]}…{text[-2 * most // 3 :]}"
