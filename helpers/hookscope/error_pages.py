"""Link a message to its page in docs/errors."""

from __future__ import annotations

__all__ = ["append_page"]


def append_page(message: str, page: str) -> str:
    """Return a message with the path of its page at the end.

    Args:
        message: the message.
        page: the name of a page in docs/errors, without `.md`.

    Example:
        >>> append_page("no layer 'fc1'; did you mean 'fc'?", "no_layer")
        "no layer 'fc1'; did you mean 'fc'? See docs/errors/no_layer.md"

    """
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See docs/errors/{page}.md"
