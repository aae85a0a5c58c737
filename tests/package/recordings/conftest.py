"""What every test of recordings ends with: nothing is left behind."""

import warnings
from types import SimpleNamespace

import pytest

from tests.shared.recorded import hooks_on


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    before = hooks_on()
    yield
    assert hooks_on() == before
    assert not any(isinstance(entry[1], SimpleNamespace) for entry in warnings.filters)
