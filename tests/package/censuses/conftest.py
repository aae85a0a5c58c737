"""What every test of censuses starts from: a net without hooks, and no global hooks left behind."""

import pytest
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from hookscope.censuses.census import census
from tests.package.censuses.census_helpers import Net


@pytest.fixture
def net():
    return Net()


@pytest.fixture(autouse=True)
def _global_hooks_stay_away():
    init = RemovableHandle.__init__
    torch_module._global_is_full_backward_hook = None  # torch's own latch, which a test of another room may have set
    yield
    census().remove_all()
    assert RemovableHandle.__init__ is init
