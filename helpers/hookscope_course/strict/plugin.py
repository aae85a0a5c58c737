"""What is checked of a cell beside what nbval checks."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from queue import Empty
from types import MethodType
from typing import Any

import nbval.kernel
import pytest
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import KernelManager
from nbval.plugin import IPyNbCell, IPyNbFile, NbCellError
from packaging.requirements import InvalidRequirement, Requirement

from hookscope_course.kernel_settings import KERNEL_ENV, open_over_files
from hookscope_course.notebook_pictures import split_pictures
from hookscope_course.strict.figures import DATA_URI, describe_difference, find_figures, replace_random_ids

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:e[-+]?\d+)?(?![\w]|\.\d)")
SIGNIFICANT = 4  # digits; with fewer, the last one says something: 0.51 is not 0.5, and 0.03028 may be 0.03027


class KernelDiedError(Exception):
    """The kernel died while it ran a cell."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what is milder than nbval, as options."""
    group = parser.getgroup("strict", "strict checks of notebooks")
    group.addoption(
        "--last-digits",
        action="store_true",
        help="accept numbers with four or more digits that differ by one in the last digit",
    )
    group.addoption(
        "--steady",
        action="store_true",
        help="start kernels with "
        + ", ".join(f"{name}={value}" for name, value in KERNEL_ENV.items())
        + ", and with more threads if OMP_NUM_THREADS is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let kernels talk through files, not through ports that another process may take; with --steady, set them up."""
    if config.option.steady:
        threads = os.environ.get("OMP_NUM_THREADS")  # set by those who test that outputs do not depend on it
        os.environ.update(KERNEL_ENV | ({"OMP_NUM_THREADS": threads} if threads else {}))
    config.option.continue_on_collection_errors = True  # a notebook that cannot be read stops no other
    sockets = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    config.add_cleanup(sockets.cleanup)
    nbval.kernel.KernelManager = lambda **settings: KernelManager(config=open_over_files(sockets.name), **settings)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Say in one line that a notebook cannot be read."""
    report = yield
    if isinstance(collector, IPyNbFile) and report.failed:
        why = str(report.longrepr).strip().splitlines()[-1].removeprefix("E").strip()
        report.longrepr = f"{collector.path.name} is not a valid notebook: {why[:300]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Say in one line that a notebook asks for a kernel that is not here."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(item, IPyNbCell) and call.when == "setup" and isinstance(error, NoSuchKernel):
        report.longrepr = (
            f"{item.path.name} needs the kernel {error.name!r}, which is not installed here. "
            "Add --nbval-current-env to run it with the Python of pytest"
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Check a cell before nbval runs it (were the cells executed in order?) and after (figures, stderr)."""
    if not isinstance(item, IPyNbCell) or item.options["skip"]:
        return (yield)
    count, expected = item.cell.execution_count, _count_expected(item)
    if expected is not None and count != expected:
        item.raise_cell_error(
            f"saved execution count is {count}, expected {expected}: the notebook was not run from top to bottom; "
            "restart its kernel, run all cells, and save it"
        )
    # An image in HTML is compared as an image below, not letter by letter.
    item.parent.sanitize_patterns[DATA_URI] = "data:image"
    item.parent.skip_compare = (*dict.fromkeys((*item.parent.skip_compare, "image/webp")),)
    item.compare_outputs = MethodType(_compare, item)
    item.parent.kernel.await_reply = MethodType(await_reply_or_death, item.parent.kernel)
    try:
        reason = explain_other_version(item.cell.metadata.get("holds_for", ""))
    except InvalidRequirement as error:
        item.raise_cell_error(f"holds_for in the cell's metadata cannot be read: {error}")
    try:
        if reason:
            item.compare_outputs = lambda *_, **__: True
            with suppress(NbCellError):
                yield
            pytest.skip(reason)
        result = yield
    except KernelDiedError as error:
        item.raise_cell_error(str(error))
    if item.options["check"]:
        _check_figures_and_stderr(item)
    return result


def _count_expected(item: IPyNbCell) -> int | None:
    """Return the count that a cell has after a run from top to bottom; None for an empty cell, which gets none.

    A cell that is marked to be skipped counts where it was run.
    """
    count = -1
    expected = 0
    for cell in item.parent.nb.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        skipped = cell is not item.cell and cell.execution_count is None and _is_skipped(cell)
        if cell.source.strip() and not skipped:
            expected += 1
        if count == item.cell_num:
            return expected if cell.source.strip() else None
    return None


def _is_skipped(cell: Any) -> bool:
    from nbval.plugin import find_comment_markers, find_metadata_tags

    return bool({**dict(find_metadata_tags(cell.metadata)), **dict(find_comment_markers(cell.source))}.get("skip"))


def _check_figures_and_stderr(item: IPyNbCell) -> None:
    fresh = item.test_outputs or []
    for output in fresh:
        if output.get("name") == "stderr":
            item.raise_cell_error(f"the cell wrote to stderr:\n{output.text}")
    saved_figures, fresh_figures = find_figures(item.cell.outputs), find_figures(fresh)
    if len(saved_figures) != len(fresh_figures):
        item.raise_cell_error(f"{len(saved_figures)} figures were saved, but the cell now draws {len(fresh_figures)}")
    for number, (saved, now) in enumerate(zip(saved_figures, fresh_figures, strict=True), start=1):
        if problem := describe_difference(saved, now):
            item.raise_cell_error(f"figure {number} of this cell looks different: {problem}")


def explain_other_version(requirement: str) -> str:
    """Say why what a cell printed does not hold here; empty if it does.

    Args:
        requirement: such as "torch>=2.15"; empty for what holds everywhere.

    Raises:
        packaging.requirements.InvalidRequirement: it cannot be read.

    Example:
        >>> explain_other_version("torch>=1.0"), explain_other_version("")
        ('', '')
        >>> explain_other_version("pytest<1")  # doctest: +ELLIPSIS
        'the saved output of this cell is for pytest<1, but pytest ... is installed'

    """
    if not requirement:
        return ""
    wanted = Requirement(requirement)
    try:
        installed = version(wanted.name)
    except PackageNotFoundError:
        installed = "not installed"
    else:
        if wanted.specifier.contains(installed, prereleases=True):
            return ""
    return f"the saved output of this cell is for {requirement}, but {wanted.name} {installed} is installed"


def _compare(item: IPyNbCell, now: list[Any], saved: list[Any], skip: Iterable[str] | None = None) -> bool:
    """Compare as nbval does, but for random ids in an SVG, pictures stored apart and, if asked, last digits."""
    if len(now) != len(saved):
        now = split_pictures(now)
    if len(now) == len(saved):
        digits = bool(item.config.option.last_digits)
        now = [_accept_equal_texts(*pair, digits) for pair in zip(now, saved, strict=True)]
    equal: bool = type(item).compare_outputs(item, now, saved, skip)
    return equal


def _accept_equal_texts(now: Any, saved: Any, digits: bool) -> Any:
    """Return an output, or a part of one, with the texts that were saved where they say the same."""
    if isinstance(now, str) and isinstance(saved, str):
        if "<svg" in now and replace_random_ids(now) == replace_random_ids(saved):
            return saved
        return saved if digits and are_same_text(now, saved) else now
    if isinstance(now, dict) and isinstance(saved, dict):
        return type(now)({key: _accept_equal_texts(value, saved.get(key), digits) for key, value in now.items()})
    return now


def are_same_text(now: str, saved: str) -> bool:
    """Whether two texts differ in nothing but the last digits of long numbers; images in them are not looked at.

    Example:
        >>> are_same_text("loss 0.03028", "loss 0.03027"), are_same_text("loss 0.03028", "loss 0.03026")
        (True, False)
        >>> are_same_text("right: 0.51", "right: 0.5"), are_same_text("6 of 10000", "6 of 10001")
        (False, False)
        >>> are_same_text("| 0.197  |", "| 0.1969 |")
        True

    """
    texts = [re.sub(DATA_URI, "", text) for text in (now, saved)]
    # A table pads a number that has lost its last zero.
    rows = [re.sub(r" +", " ", re.sub(r"--+", "--", NUMBER.sub("#", text))) for text in texts]
    if rows[0] != rows[1]:
        return False
    return all(map(_are_near, *(map(Decimal, NUMBER.findall(text)) for text in texts)))


def _are_near(one: Decimal, other: Decimal) -> bool:
    if one == other:
        return True
    long = max(len(number.as_tuple().digits) for number in (one, other)) >= SIGNIFICANT
    unit = min(Decimal(1).scaleb(int(number.as_tuple().exponent)) for number in (one, other))
    return long and abs(one - other) <= unit


def await_reply_or_death(kernel: Any, msg_id: str, timeout: float | None = None) -> None:
    """Wait like RunningKernel.await_reply, and report within a second that the kernel died."""
    deadline = time.monotonic() + (timeout or 0)
    while True:
        try:
            type(kernel).await_reply(kernel, msg_id, timeout=1)
            return
        except Empty:
            if not kernel.is_alive():
                raise KernelDiedError("the kernel died while it ran this cell") from None
            if timeout is not None and time.monotonic() > deadline:
                raise
