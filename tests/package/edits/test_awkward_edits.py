"""Thirty-two awkward edits, each right or refused in words: those that public tools leave undone or get wrong.

What they are follows ../shared/facts of the project and issue 17; tools such as nnsight, pyvene, tdhook, torchlens and
baukit get 17 to 26 of such cases right.
"""

from __future__ import annotations

import pytest

from tests.shared.edits import CASES


@pytest.mark.parametrize("name", CASES)
def test_an_awkward_edit_is_right_or_refused(name: str) -> None:
    CASES[name].check()


def test_there_are_thirty_two() -> None:
    assert len(CASES) == 32
