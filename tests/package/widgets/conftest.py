"""What tests of more than one widget start from."""

from __future__ import annotations

import pytest

from hookscope import samples
from hookscope.widgets.pre_hook import PreHookPlayground


@pytest.fixture
def digit():
    return PreHookPlayground(samples.digit_cnn(), samples.digit(5))
