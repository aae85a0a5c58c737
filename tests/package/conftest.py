"""What the tests of every room of the package share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.shared.capture_runs", "tests.shared.explanation_runs"
)  # failures there say why, too
