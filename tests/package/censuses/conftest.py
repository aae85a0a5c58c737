"""What every test of censuses starts from: a net without hooks, and no global hooks left behind."""

import pytest
from torch.utils.hooks import RemovableHandle

from hookscope.censuses.census import census
from tests.shared.hooked import Net


@pytest.fixture
def net():
    return Net()


@pytest.fixture(autouse=True)
def _global_hooks_stay_away():
    init = RemovableHandle.__init__
    yield
    census().remove_all()
    assert RemovableHandle.__init__ is init
