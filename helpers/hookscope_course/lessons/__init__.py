"""The chapters' folders, as modules: `hookscope_course.lessons.02_call_order.checks_02`.

Names that begin with a digit cannot stand in an import statement; `importlib.import_module` takes them, and so does
whatever sends a function to another process by its name.
"""

from pathlib import Path

from hookscope_course.paths import LESSONS

__path__ = [str(LESSONS)]


def folder_of(chapter: int) -> Path:
    """Find a chapter's folder by its number.

    Raises:
        LookupError: there is no such chapter; says which there are.

    Example:
        >>> folder_of(2).name
        '02_call_order'

    """
    folders = {int(path.name[:2]): path for path in sorted(LESSONS.glob("[0-9][0-9]_*")) if path.is_dir()}
    if chapter not in folders:
        raise LookupError(f"there is no chapter {chapter!r}; there are: {', '.join(map(str, folders))}")
    return folders[chapter]
