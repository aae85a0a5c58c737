"""A pytest plugin for notebooks that must not drift: what nbval does not check in a cell.

    pytest -p hookscope_course.strict --nbval my_notebooks/

nbval runs every code cell and compares its text outputs exactly; it ignores images, accepts a cell that was never
executed, accepts a warning that is also in the saved output, and notices a dead kernel only at the cell timeout. Here a
cell fails, too, when a picture looks otherwise, when anything is written to stderr, when the saved cells were not run
from the first to the last, and at once when the kernel dies.

It is milder in two things. A number of four digits or more may differ by one in its last digit, since processors round
differently. And a cell with `"holds_for": "torch>=2.15"` in its metadata is held to what was saved only where such a
torch is installed; elsewhere it runs and counts as skipped, whatever it prints or raises.

Kernels get the settings of `hookscope_course.kernels.settings`;
`python -m hookscope_course.strict NOTEBOOK` runs and saves a notebook with them.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Empty
from types import MethodType
from typing import Any

import nbval.kernel
import numpy as np
import pytest
from jupyter_client.manager import KernelManager
from nbval.plugin import IPyNbCell, NbCellError
from packaging.requirements import Requirement
from PIL import Image

from hookscope_course.kernels import preloaded
from hookscope_course.kernels.settings import KERNEL_ENV, over_files

# Two builds of torch or matplotlib may differ by a shade at a few pixels; a figure that shows something else differs
# by more than this. (Values from figures made by two torch builds.)
SHADES = 24  # of 255
SHARE_OF_PIXELS = 0.01

DATA_URI = r"data:image/png;base64,([A-Za-z0-9+/=]+)"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:e[-+]?\d+)?(?![\w]|\.\d)")
SIGNIFICANT = (
    4  # digits from which on the last one may differ: 0.03028 is 0.03027 on another processor, 0.51 is not 0.5
)


def pytest_configure(config: pytest.Config) -> None:
    """Run the kernels with the settings the notebooks were built with; where several processes test, as forks of one.

    A kernel of its own would import torch first, some 60 times in a whole run.
    """
    os.environ.update(KERNEL_ENV)
    sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    config.add_cleanup(sockets.cleanup)
    nbval.kernel.KernelManager = lambda **settings: KernelManager(config=over_files(sockets.name), **settings)
    forks = hasattr(os, "pidfd_open")  # Linux
    if forks and getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        folder = kept.enter_context(tempfile.TemporaryDirectory())
        os.environ.update(kept.enter_context(preloaded(Path(folder))))
        config.add_cleanup(kept.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check a cell before nbval runs it (was it executed in order?) and after (figures, stderr)."""
    if not isinstance(item, IPyNbCell):
        return (yield)
    if item.cell.execution_count != item.cell_num + 1:
        raise AssertionError(
            f"saved execution count is {item.cell.execution_count}, expected {item.cell_num + 1}: "
            "the notebook was not run from top to bottom; restart its kernel, run all cells, and save it"
        )
    # An image in HTML is compared as an image below, not letter by letter.
    item.parent.sanitize_patterns[DATA_URI] = "data:image/png"
    item.compare_outputs = MethodType(_compare, item)
    item.parent.kernel.await_reply = MethodType(await_reply_or_death, item.parent.kernel)
    if elsewhere := holds_elsewhere(item.cell.metadata.get("holds_for", "")):
        item.compare_outputs = lambda *_, **__: True
        with suppress(NbCellError):
            yield
        pytest.skip(elsewhere)
    result = yield
    fresh = item.test_outputs or []
    for output in fresh:
        if output.get("name") == "stderr":
            raise AssertionError(f"the cell wrote to stderr:\n{output.text}")
    saved_figures, fresh_figures = figures(item.cell.outputs), figures(fresh)
    if len(saved_figures) != len(fresh_figures):
        raise AssertionError(f"{len(saved_figures)} figures are saved, the cell now draws {len(fresh_figures)}")
    for number, (saved, now) in enumerate(zip(saved_figures, fresh_figures, strict=True), start=1):
        if problem := difference(saved, now):
            raise AssertionError(f"figure {number} of this cell is another picture: {problem}")
    return result


def holds_elsewhere(requirement: str) -> str:
    """Why what a cell printed does not hold here; empty if it does.

    Args:
        requirement: such as "torch>=2.15"; empty for what holds everywhere.

    Raises:
        packaging.requirements.InvalidRequirement: it cannot be read.

    Example:
        >>> holds_elsewhere("torch>=1.0"), holds_elsewhere("")
        ('', '')
        >>> holds_elsewhere("pytest<1")  # doctest: +ELLIPSIS
        'what this cell printed holds for pytest<1; here is pytest ...'

    """
    if not requirement:
        return ""
    wanted = Requirement(requirement)
    try:
        here = version(wanted.name)
    except PackageNotFoundError:
        here = "not installed"
    else:
        if wanted.specifier.contains(here, prereleases=True):
            return ""
    return f"what this cell printed holds for {requirement}; here is {wanted.name} {here}"


def _compare(item: IPyNbCell, now: list[Any], saved: list[Any], skip: Iterable[str] | None = None) -> bool:
    """Compare as nbval does, but for the last digits of numbers."""
    if len(now) == len(saved):
        now = [_settled(*pair) for pair in zip(now, saved, strict=True)]
    equal: bool = type(item).compare_outputs(item, now, saved, skip)
    return equal


def _settled(now: Any, saved: Any) -> Any:
    """Return an output, or a part of one, with the texts that were saved where they say the same."""
    if isinstance(now, str) and isinstance(saved, str):
        return saved if say_the_same(now, saved) else now
    if isinstance(now, dict) and isinstance(saved, dict):
        return type(now)({key: _settled(value, saved.get(key)) for key, value in now.items()})
    return now


def say_the_same(now: str, saved: str) -> bool:
    """Whether two texts differ in nothing but the last digits of long numbers; images in them are not looked at.

    Example:
        >>> say_the_same("loss 0.03028", "loss 0.03027"), say_the_same("loss 0.03028", "loss 0.03026")
        (True, False)
        >>> say_the_same("right: 0.51", "right: 0.5"), say_the_same("6 of 10000", "6 of 10001")
        (False, False)

    """
    texts = [re.sub(DATA_URI, "", text) for text in (now, saved)]
    if NUMBER.sub("#", texts[0]) != NUMBER.sub("#", texts[1]):
        return False
    return all(map(_are_near, *(map(Decimal, NUMBER.findall(text)) for text in texts)))


def _are_near(one: Decimal, other: Decimal) -> bool:
    if one == other:
        return True
    long = max(len(number.as_tuple().digits) for number in (one, other)) >= SIGNIFICANT
    unit = min(Decimal(1).scaleb(int(number.as_tuple().exponent)) for number in (one, other))
    return long and abs(one - other) <= unit


def await_reply_or_death(kernel: Any, msg_id: str, timeout: float | None = None) -> None:
    """Like RunningKernel.await_reply, but a kernel that died is reported within a second."""
    deadline = time.monotonic() + (timeout or 0)
    while True:
        try:
            type(kernel).await_reply(kernel, msg_id, timeout=1)
            return
        except Empty:
            if not kernel.is_alive():
                raise AssertionError("the kernel died while it ran this cell") from None
            if timeout is not None and time.monotonic() > deadline:
                raise


def figures(outputs: Iterable[Any]) -> list[bytes]:
    """The PNGs in a cell's outputs, in order; one that stands both alone and inside HTML counts once."""
    found: list[bytes] = []
    for output in outputs:
        data = output.get("data", {})
        in_html = re.findall(DATA_URI, data.get("text/html", ""))  # where a built notebook has its only copy
        alone = [data["image/png"]] if "image/png" in data else []
        found += map(base64.b64decode, in_html or alone)
    return found


def difference(saved: bytes, now: bytes) -> str:
    """What makes two PNGs different pictures to the eye; empty when they look the same."""
    if saved == now:
        return ""
    a, b = (np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"), dtype=np.int16) for png in (saved, now))
    if a.shape != b.shape:
        return f"{a.shape[1]}×{a.shape[0]} pixels became {b.shape[1]}×{b.shape[0]}"
    share = float((np.abs(a - b).max(axis=-1) > SHADES).mean())
    return f"{share:.1%} of its pixels changed" if share > SHARE_OF_PIXELS else ""


def main(paths: Sequence[str]) -> int:
    """Run notebooks from the first cell to the last and save them with what came out, to be held from now on.

    Args:
        paths: of the notebooks; each runs in its own folder.

    Returns:
        The exit status: 1 if a cell of one raised, or wrote to stderr. That notebook is left as it was.

    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    status = 0
    for path in map(Path, paths):
        try:
            notebook = nbformat.read(path, as_version=4)
            where = {"metadata": {"path": str(path.resolve().parent)}}
            client = NotebookClient(notebook, timeout=600, resources=where, config=over_files(), record_timing=False)
            client.execute(env=os.environ | KERNEL_ENV)
            for cell in notebook.cells:
                for output in cell.get("outputs", []):
                    if output.get("name") == "stderr":
                        raise RuntimeError(f"a cell wrote to stderr:\n{output['text']}")
        except (OSError, ValueError, RuntimeError, CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"{path} is left as it was: {error}", file=sys.stderr)
            status = 1
        else:
            nbformat.write(notebook, path)
            print(f"{path} was run and saved")
    return status


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m hookscope_course.strict NOTEBOOK ...")
    sys.exit(main(sys.argv[1:]))
