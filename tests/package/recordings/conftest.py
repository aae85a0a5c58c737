"""What every test of recordings ends with: nothing is left behind."""

import warnings
from types import SimpleNamespace

import pytest

from tests.shared.recording_helpers import list_hooks


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    before = list_hooks()
    yield
    assert list_hooks() == before
    assert not any(isinstance(entry[1], SimpleNamespace) for entry in warnings.filters)
