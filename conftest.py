"""What all test paths share: how a notebook is checked, what a page says, and what stays in one process."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.kernels import preloaded

pytest_plugins = ["hookscope_course.strict"]


def pytest_configure(config: pytest.Config) -> None:
    """Where several processes test, let kernels be forks of one: else torch is imported some 60 times."""
    forks = hasattr(os, "pidfd_open")  # Linux
    if forks and getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        folder = kept.enter_context(tempfile.TemporaryDirectory())
        os.environ.update(kept.enter_context(preloaded(Path(folder))))
        config.add_cleanup(kept.close)


@pytest.fixture
def says(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Fail if the pages beside a file of facts no longer have one of the sentences that a fact proves."""
    folder = request.path.parent
    pages = [*folder.rglob("*.md"), *folder.glob("*.toml")]
    texts = [" ".join(page.read_text(encoding="utf-8").replace("\\\n", "\n").split()) for page in pages]

    def check(*sentences: str) -> None:
        gone = [sentence for sentence in sentences if not any(sentence in text for text in texts)]
        assert not gone, f"no page in {folder.name} says this any more; is the new sentence true? {gone}"

    return check


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from what stays loaded: the checks of exercises call it hundreds of times."""
    gc.collect()
    gc.freeze()


class _TwoBrowsers(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Files go to the processes whole. Browser tests with a JupyterLab go to one process, and figures to another."""

    def _split_scope(self, nodeid: str) -> str:
        for folder in ("tests/browser/figures/", "tests/browser/"):
            if nodeid.startswith(folder):
                return folder
        return str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Deal out the tests of `--dist loadfile`."""
    return _TwoBrowsers(config, log) if config.getoption("dist") == "loadfile" else None
