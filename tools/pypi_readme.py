"""Give a package index the README with links that lead somewhere: there, a path of the repository is no address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["ReadmeHook", "make_links_absolute"]


class ReadmeHook(MetadataHookInterface):
    """What hatchling calls when it builds a wheel or an sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = make_links_absolute(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def make_links_absolute(text: str, repository: str) -> str:
    """Return Markdown in which each relative link leads to the repository.

    Example:
        >>> make_links_absolute("![A](docs/a.png), [b](docs/b.md#c), [d](https://d.org)", "https://github.com/x/y")
        '![A](https://github.com/x/y/raw/main/docs/a.png), [b](https://github.com/x/y/blob/main/docs/b.md#c), [d](https://d.org)'

    """

    def replace(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/main/{link[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^()\s]+)\)", replace, text)
