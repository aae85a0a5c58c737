"""Write numbers of things as words say them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Write how many there are of something, with the noun in the plural where there is not one.

    Args:
        number: how many.
        noun: what it is, in the singular.
        nouns: its plural, where that is not the singular with an s.

    Example:
        >>> counted(1, "layer"), counted(0, "layer"), counted(2, "batch", "batches")
        ('1 layer', '0 layers', '2 batches')

    """
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
