"""What nbval does not check in a notebook cell: figures, stderr, unexecuted cells, and a kernel that died.

A pytest plugin (`-p tests.shared.notebook_checks` in pyproject.toml). nbval runs every code cell and compares its text
outputs exactly; it ignores images, accepts a cell that was never executed, accepts a warning that is also in the saved
output, and notices a dead kernel only at the cell timeout.
"""

from __future__ import annotations

import base64
import io
import os
import re
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import Empty
from types import MethodType
from typing import Any

import nbval.kernel
import numpy as np
import pytest
from jupyter_client.manager import KernelManager
from nbval.plugin import IPyNbCell
from PIL import Image

from hookscope_course.kernels import preloaded
from lessons.build.running import KERNEL_ENV, over_files

# Two builds of torch or matplotlib may differ by a shade at a few pixels; a figure that shows something else differs
# by more than this. (Values from figures made by two torch builds.)
SHADES = 24  # of 255
SHARE_OF_PIXELS = 0.01

DATA_URI = r"data:image/png;base64,([A-Za-z0-9+/=]+)"


def pytest_configure(config: pytest.Config) -> None:
    """Run the kernels with the settings the notebooks were built with; where several processes test, as forks of one.

    A kernel of its own would import torch first, some 60 times in a whole run.
    """
    os.environ.update(KERNEL_ENV)
    sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    config.add_cleanup(sockets.cleanup)
    nbval.kernel.KernelManager = lambda **settings: KernelManager(config=over_files(sockets.name), **settings)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
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
            "the notebook was not run from top to bottom; rebuild it: make build"
        )
    # An image in HTML is compared as an image below, not letter by letter.
    item.parent.sanitize_patterns[DATA_URI] = "data:image/png"
    item.parent.kernel.await_reply = MethodType(await_reply_or_death, item.parent.kernel)
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
    found = []
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
