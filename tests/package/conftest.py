"""Fixtures for the tests of every room of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.register_assert_rewrite("tests.shared.captured", "tests.shared.explained")  # failures there say why, too


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait for each other when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
