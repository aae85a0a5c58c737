"""Explain how to install an optional package that a function needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["optional_import"]

_PACKAGES = {"PIL": "pillow"}  # import name -> package name, if they differ
_IN_CHECKOUT = (Path(__file__).parents[2] / "pyproject.toml").is_file()
_ALONE = ("pandas",)  # packages that are in no extra


@contextmanager
def optional_import(what: str) -> Iterator[None]:
    """Explain how to install the package if an import inside the block fails.

    Args:
        what: the feature that needs the import; the first words of the message.

    Raises:
        ModuleNotFoundError: a module is missing. The message names its package and the command to install it.

    Example:
        >>> with optional_import("this example"):
        ...     import PIL.nothing_of_this_name
        Traceback (most recent call last):
        ModuleNotFoundError: this example needs pillow: pip install pillow, or all packages: pip install -e '.[all]'

    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name:
            raise
        top = error.name.partition(".")[0]
        package = _PACKAGES.get(top, top)
        text = f"{what} needs {package}: pip install {package}"
        if package not in _ALONE and _IN_CHECKOUT:  # a package hookscope[all] on an index could be somebody else's
            text += ", or all packages: pip install -e '.[all]'"
        raise ModuleNotFoundError(text, name=error.name) from error
