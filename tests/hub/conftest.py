"""A real hub for the tests of a module, which say in HUB what it shall be like; and two of its learners at work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.client import Learner
from tests.hub.running import RunningHub, running_hub


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A hub: with what the module's HUB says, as in {"learners": 3, "MEMORY": "700M"}, or what HUB(folder) returns."""
    folder, wanted = tmp_path_factory.mktemp("hub"), getattr(request.module, "HUB", {})
    with running_hub(folder, **(wanted(folder) if callable(wanted) else wanted)) as running:
        yield running


@pytest.fixture(scope="module")
def anna(hub: RunningHub) -> Learner:
    """The first learner."""
    return hub.learner(0)


@pytest.fixture(scope="module")
def ben(hub: RunningHub) -> Learner:
    """The second one."""
    return hub.learner(1)
