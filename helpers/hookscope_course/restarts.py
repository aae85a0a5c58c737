"""Say in a kernel of the course what to do when a name is not there: mostly Python was restarted."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["explain_missing_names", "write_startup"]

RUN_ABOVE = "If Python was restarted, it has forgotten everything: Run → Run All Above Selected Cell."
_START = "from hookscope_course.restarts import explain_missing_names\n\nexplain_missing_names()\n"


def explain_missing_names() -> None:
    """Let this kernel add a sentence to every `NameError`; IPython shows its traceback as before."""
    from IPython import get_ipython

    def explain(shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, **how: Any) -> None:
        shell.showtraceback((kind, error, trace), **how)
        print(hint(getattr(error, "name", None) or ""))

    get_ipython().set_custom_exc((NameError,), explain)


def hint(name: str) -> str:
    """Return what to do about a name that is not there.

    Example:
        >>> print(hint("true"))
        Python writes True, with a capital letter.

    """
    if name.capitalize() in ("True", "False", "None"):
        return f"Python writes {name.capitalize()}, with a capital letter."
    return f"`{name}` is not there. {RUN_ABOVE} If you meant text, put it in quotes: {name!r}."


def write_startup(folder: Path) -> Path:
    """Make a folder for IPython whose kernels start with `explain_missing_names`.

    Args:
        folder: where it goes.

    Returns:
        What the environment variable `IPYTHONDIR` has to be.

    """
    start = folder / "profile_default" / "startup"
    start.mkdir(parents=True, exist_ok=True)
    (start / "hookscope.py").write_text(_START, encoding="utf-8")
    return folder
