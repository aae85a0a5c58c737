"""What the tests of the figures of the digits start from."""

from __future__ import annotations

import comm
import pytest
from torch import Tensor, nn

from hookscope import samples


@pytest.fixture(autouse=True)
def _without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send messages nowhere; where another test has imported ipykernel, they would not even be made."""
    monkeypatch.setattr(comm, "create_comm", comm.DummyComm)


class DigitReader(nn.Module):
    """The colleague's program of chapter 00."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: Tensor) -> Tensor:
        return self.network(1 - scan)


@pytest.fixture
def reader() -> DigitReader:
    return DigitReader()
