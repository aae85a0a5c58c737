"""Random edits of random trees do what hooks written by hand do, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.package.captures.test_random_models import always_the_same, build, trees
from tests.shared.awkward_models import Case, seed
from tests.shared.edit_formulas import KINDS
from tests.shared.hand_written_edits import Spec, check_edits, choose_spec, list_editable_calls

where = (st.integers(0, 50), st.integers(0, 5), st.booleans(), st.booleans())
more = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), *where), max_size=2)
drawn = given(trees, st.tuples(*where), more, st.booleans(), st.booleans())
every_edit = [(kind, to) for kind in KINDS for to in ("output", "input", "grad")]


def is_edited(kind: str, to: str, tree: Any, first: Any, others: list[Any], grad: bool, requires_grad: bool) -> None:
    refused, grad, requires_grad = grad, grad or to == "grad", requires_grad or to == "grad"

    def make() -> Case:
        seed(0)
        model = build(tree, [])
        return model, (torch.randn(2, 4).requires_grad_(requires_grad),), {}

    try:
        with torch.set_grad_enabled(grad):
            calls = list_editable_calls(make())
    except RuntimeError:
        assume(False)
    # The layer that is called last comes first, which is what is drawn most.
    those = [call for call in calls[::-1] if call.to == to and any(shape is not None for _, shape in call.tensors)]
    specs: list[Spec] = []
    for each, (which, *rest), among in [(kind, first, those), *((each, rest, calls) for each, *rest in others)]:
        spec = choose_spec(make, among, which, each, *rest) if among else None
        assume(specs or spec)
        specs += [spec] if spec else []
    error = check_edits(make, specs, grad)
    assume(refused or error != "NotEditedError")  # as most of gradients are: overwritten in place, or cut off
    event(error or "fine")


@pytest.mark.parametrize(("kind", "to"), every_edit)
@settings(always_the_same, max_examples=7)
@drawn
def test_random_models(
    kind: str, to: str, tree: Any, first: Any, others: list[Any], grad: bool, requires_grad: bool
) -> None:
    is_edited(kind, to, tree, first, others, grad, requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "to"), every_edit)
@settings(always_the_same, max_examples=80)
@drawn
def test_more_random_models(
    kind: str, to: str, tree: Any, first: Any, others: list[Any], grad: bool, requires_grad: bool
) -> None:
    is_edited(kind, to, tree, first, others, grad, requires_grad)
