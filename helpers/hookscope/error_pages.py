"""Link a message to its page on the site."""

from __future__ import annotations

__all__ = ["SITE", "append_page"]

SITE = "https://hookscope.github.io/hookscope"
"""The address of the site. Docstrings and pyproject.toml repeat it, and a test compares them."""


def append_page(message: str, page: str) -> str:
    """Return a message with the address of its page at the end.

    Args:
        message: the message.
        page: the name of a page in docs/errors, without `.md`.

    Example:
        >>> append_page("no layer 'fc1'; did you mean 'fc'?", "no_layer")
        "no layer 'fc1'; did you mean 'fc'? See https://hookscope.github.io/hookscope/errors/no_layer.html"

    """
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See {SITE}/errors/{page}.html"
