"""What the tests of every room of the package share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.shared.captured", "tests.shared.explained")  # failures there say why, too
