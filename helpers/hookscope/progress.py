"""Show a progress bar for a long task, if tqdm is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

__all__ = ["check_progress", "progress_bar"]


def check_progress(progress: object) -> None:
    """Check that `progress` is a bool.

    Raises:
        TypeError: it is not.

    """
    if not isinstance(progress, bool):
        raise TypeError(f"progress={progress!r} is not a bool. Pass progress=True or progress=False")


@contextmanager
def progress_bar(
    what: str, total: int | None, unit: str, wanted: bool, beside: Callable[[int, float], str] | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while the block runs, if tqdm is installed and the block takes more than a second.

    Args:
        what: the task; shown in front of the bar.
        total: the number of steps, if it is known.
        unit: the name of a step.
        wanted: whether to show the bar.
        beside: returns a text to show behind the bar, from the number of steps done and the seconds.

    Yields:
        A function to call with the number of new steps; a negative number restarts the bar.

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
    # In a notebook, output to stderr leaves a red strip even after the bar is gone.
    where = sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else sys.stderr
    with tqdm(total=total, unit=unit, unit_scale=large, desc=what, delay=1.0, leave=False, file=where) as bar:

        def advance(done: int) -> None:
            if beside is not None:
                bar.set_postfix_str(beside(int(bar.n) + done, perf_counter() - began), refresh=False)
            bar.update(done if done >= 0 else -bar.n)

        yield advance
