"""Thirty-two awkward edits, each right or refused in words: those that public tools leave undone or get wrong.

What they are follows ../shared/facts of the project and issue 17; tools such as nnsight, pyvene, tdhook, torchlens and
baukit get 17 to 26 of such cases right.
"""

from __future__ import annotations

import re

import pytest

from tests.shared.awkward_edits import CASES

REFUSED = {
    "an exception leaves nothing": "ArithmeticError: in layer '0', on purpose",
    "a function that returns None": r"TypeError: edit 1 \(map\) of layer '0', call 1: the function returned None",
    "a batch that would grow": r"ValueError: .* layer '0', call 1: the value has shape \(5, 1, 1\), .* shape \(3, 4\)",
    "a layer that is never called": r"NotEditedError: .* layer 'unused' was not called: this pass did not reach it",
    "a layer whose forward is called directly": r"NotEditedError: .*'direct' was not called: .*through .forward\(",
    "out_proj of MultiheadAttention": "NotEditedError: .*'out_proj' was not called: nn.MultiheadAttention uses its",
    "a model compiled before": r"NotEditedError: .* '0' was not called, .* if torch.compile compiled it before",
    "a traced model": r"NotEditedError: .* layer '0' was not called, and neither was the model\. .* traced",
    "the fourth call of three": "NotEditedError: .* layer 'act' was called 3 times, so there was no call 4",
    "an unknown layer": "LayerNotFoundError: no layer 'tanh', and none of the 2 layers has a similar name",
}


@pytest.mark.parametrize("name", CASES)
def test_an_awkward_edit_is_right_to_the_bit_or_refused_for_its_reason(name: str) -> None:
    case = CASES[name]
    verdict, said = case.judge(case.edited, atol=0.0)
    assert verdict == ("refused" if name in REFUSED else "right"), said
    assert re.match(REFUSED.get(name, ""), said)


def test_there_are_thirty_two() -> None:
    assert len(CASES) == 32
