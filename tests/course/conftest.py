"""What the tests of the course share."""

from __future__ import annotations

import comm
import pytest


@pytest.fixture(autouse=True)
def _without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send messages nowhere; where another test has imported ipykernel, they would not even be made."""
    monkeypatch.setattr(comm, "create_comm", comm.DummyComm)
