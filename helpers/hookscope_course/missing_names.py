"""Explain a NameError in a notebook of the course: usually, Python was restarted."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

__all__ = ["explain_missing_names", "write_startup"]

RESTARTED = "Python was restarted: choose Run → Run All Above Selected Cell, then run this cell."
_START = """from hookscope_course.missing_names import explain_missing_names

explain_missing_names()
del explain_missing_names
"""


def explain_missing_names() -> None:
    """Let this kernel add a sentence to every `NameError`; IPython shows its traceback as before."""
    from IPython import get_ipython

    def explain(shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, **how: Any) -> None:
        shell.showtraceback((kind, error, trace), **how)
        name = getattr(error, "name", None) or ""
        if function := _find_function(name, shell.user_ns):
            print(
                f"`{name}` exists only inside `{function}`, while it runs. Create a list before `{function}`, as in "
                f"kept = [], and write kept.append({name}) in the function. Then use kept[0] here."
            )
        else:
            # The first code cell of each page imports something of the course.
            print(hint(name, _is_in_guess(trace)) if _has_imports(shell.user_ns) else RESTARTED)

    get_ipython().set_custom_exc((NameError,), explain)


def hint(name: str, is_guess: bool = False) -> str:
    """Return what to do about a name that is not there.

    Args:
        name: which one.
        is_guess: it stands in `Guess(…)`, so text is more likely meant than a variable.

    Example:
        >>> print(hint("true"))
        Python writes True, with a capital letter.
        >>> print(hint("C", is_guess=True))
        `C` is not defined. If you mean text, put it in quotes: 'C'.

    """
    if name.capitalize() in ("True", "False", "None"):
        return f"Python writes {name.capitalize()}, with a capital letter."
    if is_guess:
        return f"`{name}` is not defined. If you mean text, put it in quotes: {name!r}."
    return f"`{name}` is not defined. Run the cells above this one: Run → Run All Above Selected Cell."


def _find_function(name: str, names: dict[str, Any]) -> str:
    """Return the function of a cell that has a local variable of this name, as a hook that keeps its output; or ""."""
    for label, each in names.items():
        if isinstance(each, FunctionType) and each.__module__ == "__main__":
            code = each.__code__
            if name in code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]:
                return label
    return ""


def _has_imports(names: dict[str, Any]) -> bool:
    """Whether a cell of this kernel has imported something of the course."""
    return any(str(getattr(each, "__module__", "")).startswith("hookscope") for each in names.values())


def _is_in_guess(trace: TracebackType | None) -> bool:
    """Whether the line of the cell that raised is part of a call of `Guess`."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(trace.tb_frame.f_code.co_filename)))
    except SyntaxError:  # a magic
        return False
    return any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("Guess")
        and call.lineno <= trace.tb_lineno <= (call.end_lineno or call.lineno)
        for call in ast.walk(tree)
    )


def write_startup(folder: Path) -> Path:
    """Make a folder for IPython whose kernels start with `explain_missing_names`.

    Args:
        folder: where it goes.

    Returns:
        What the environment variable `IPYTHONDIR` has to be.

    """
    start = folder / "profile_default" / "startup"
    for path in (folder, folder / "profile_default", start):
        if path.is_symlink():  # somebody else put it there: never write where it leads
            path.unlink()
        path.mkdir(parents=True, exist_ok=True)
    file = start / "hookscope.py"
    file.unlink(missing_ok=True)
    with file.open("x", encoding="utf-8") as written:
        written.write(_START)
    return folder
