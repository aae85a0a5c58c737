"""Say which package is missing, and how to get it, where a function needs more than `import hookscope` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["optional_import"]

_PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}  # called otherwise than what is imported
_ALONE = ("pandas",)  # in no extra: one function needs it


@contextmanager
def optional_import(what: str) -> Iterator[None]:
    """Name the package if an import inside the block does not find it.

    Args:
        what: what needs the import; it begins the message.

    Raises:
        ModuleNotFoundError: a module is missing; says which package has it, and how to install that.

    Example:
        >>> with optional_import("this example"):
        ...     import sklearn.nothing_of_this_name
        Traceback (most recent call last):
        ModuleNotFoundError: this example needs scikit-learn: pip install scikit-learn, or, in a checkout of \
hookscope, pip install -e '.[all]'

    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not error.name:
            raise
        top = error.name.partition(".")[0]
        package = _PACKAGES.get(top, top)
        # Not 'hookscope[all]': a package of that name on an index would be somebody else's.
        text = f"{what} needs {package}: pip install {package}"
        if package not in _ALONE:
            text += ", or, in a checkout of hookscope, pip install -e '.[all]'"
        raise ModuleNotFoundError(text, name=error.name) from error
