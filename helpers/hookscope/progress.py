"""Show how far something long has come, if tqdm is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

__all__ = ["check_progress", "progress_bar"]


def check_progress(progress: object) -> None:
    """Refuse what does not say whether to show a bar.

    Raises:
        TypeError: it is not True or False.

    """
    if not isinstance(progress, bool):
        raise TypeError(f"progress={progress!r}: give True or False")


@contextmanager
def progress_bar(
    what: str, total: int | None, unit: str, wanted: bool, beside: Callable[[int, float], str] | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while the block runs, if there is tqdm and it takes more than a second.

    Args:
        what: is being done; it stands before the bar.
        total: how many there are, if that is known.
        unit: of what.
        wanted: whether to show it.
        beside: says what stands beside the bar, from how many are done and in how many seconds.

    Returns:
        What is to be told how many more are done; of a number below 0 it begins again.

    Example:
        >>> with progress_bar("nothing", 2, "cell", wanted=False) as advance:
        ...     advance(2)

    """
    try:
        if not wanted:
            raise ModuleNotFoundError
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield lambda done: None
        return
    began, large = perf_counter(), total is None or total >= 10_000
    # In a notebook what was written to stderr leaves a red strip, also when the bar has gone.
    where = sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else sys.stderr
    with tqdm(total=total, unit=unit, unit_scale=large, desc=what, delay=1.0, leave=False, file=where) as bar:

        def advance(done: int) -> None:
            if beside is not None:
                bar.set_postfix_str(beside(int(bar.n) + done, perf_counter() - began), refresh=False)
            bar.update(done if done >= 0 else -bar.n)

        yield advance
