"""A pytest plugin and a runner that check notebooks more strictly than nbval.

    python -m hookscope_course.strict my_notebook.ipynb              # runs it from top to bottom, and saves it
    pytest -p hookscope_course.strict --nbval my_notebook.ipynb      # runs it again, and compares

nbval runs every code cell and compares its text outputs. Here a cell fails, too, when a figure looks different (PNG,
JPEG, WebP), when it writes to stderr, when the saved cells were not run from top to bottom, and at once when the kernel
dies. All markers and tags of nbval hold for figures and stderr as well: `NBVAL_IGNORE_OUTPUT` accepts any figure.

Nothing is milder than nbval unless you ask for it. `--last-digits` accepts a number of four digits or more that differs
by one in its last digit, since processors round differently. `--steady` starts kernels, here and in the runner, with
PYTHONHASHSEED=0, one thread and one file name for all cells, so that sets print in one order. Here, OMP_NUM_THREADS
can ask for more threads. docs/strict.md shows how to test a notebook as on another processor.
A cell with `"holds_for": "torch>=2.15"` in its metadata is compared only where such a torch is installed.
"""

from hookscope_course.strict.figures import describe_difference
from hookscope_course.strict.plugin import (
    are_same_text,
    pytest_addoption,
    pytest_configure,
    pytest_make_collect_report,
    pytest_runtest_call,
    pytest_runtest_makereport,
)

__all__ = [
    "are_same_text",
    "describe_difference",
    "pytest_addoption",
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
]
