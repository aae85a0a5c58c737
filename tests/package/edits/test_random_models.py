"""Random edits of random trees and of awkward models do what hooks written by hand do, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from hookscope import at, census, edit
from tests.package.captures.test_random_models import always_the_same, build, trees
from tests.shared.awkward import MODELS, seed
from tests.shared.edited_by_hand import MAKES, Seen, Spec, by_hand, calls_of, outcome

INDICES = {2: [..., at[:, 1], at[..., -1], at[0], at[1, ::2], at[:, [0, 2]]], 1: [..., at[0]], 0: [...]}


def spec_of(calls: list[Seen], which: int, verb: str, index: int, rows: bool, this_call: bool) -> Spec | None:
    """Make an edit that fits one of the calls."""
    call = calls[which % len(calls)]
    if not call.tensors:
        return None
    place = index % len(call.tensors)
    path, shape = call.tensors[place]
    if shape is None:
        return None
    indices = INDICES.get(len(shape), [...])
    aim = indices[index % len(indices)]
    chosen = [shape[0] - 1] if rows and shape and (aim is ... or aim in indices[1:3]) and len(shape) == 2 else None
    return Spec(call.layer, verb, call.to, place, path, aim, chosen, call.number if this_call else None)


def check(make: Any, specs: list[Spec], grad: bool, close: float = 0.0) -> str:
    """Compare edits with hooks written by hand; the type of the error that both raise, if they do."""
    (model, args), (other, same_args) = make(), make()
    e = edit(model)
    for spec in specs:
        spec.give(e)
    with torch.set_grad_enabled(grad):
        error, found = outcome(model, args, e)
        expected_error, expected = outcome(other, same_args, by_hand(other, specs))
    assert error == expected_error, specs
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=close, atol=close, equal_nan=True, msg=lambda text: f"{specs}: {text}"
        )
    assert not len(census(model)) - len(census(other))
    return error


one_edit = st.tuples(
    st.integers(0, 30), st.sampled_from(sorted(MAKES)), st.integers(0, 5), st.booleans(), st.booleans()
)
drawn = given(trees, st.lists(one_edit, min_size=1, max_size=3), st.booleans(), st.booleans())


def is_edited(tree: Any, edits: list[Any], grad: bool, requires_grad: bool) -> None:
    def make() -> Any:
        seed(0)
        model = build(tree, [])
        return model, (torch.randn(2, 4).requires_grad_(requires_grad),)

    model, args = make()
    try:
        with torch.no_grad():
            calls = calls_of(model, args)
    except RuntimeError:
        assume(False)
    specs = [spec for each in edits if (spec := spec_of(calls, *each)) is not None]
    assume(specs)
    event(check(make, specs, grad) or "fine")


@settings(always_the_same, max_examples=100)
@drawn
def test_random_models(tree: Any, edits: list[Any], grad: bool, requires_grad: bool) -> None:
    is_edited(tree, edits, grad, requires_grad)


@pytest.mark.slow
@settings(always_the_same, max_examples=1000)
@drawn
def test_more_random_models(tree: Any, edits: list[Any], grad: bool, requires_grad: bool) -> None:
    is_edited(tree, edits, grad, requires_grad)


LEFT_OUT = {
    "checkpoint": "calls run again, which hooks written by hand count",
    "reentrant checkpoint": "likewise",
    "a module replaced during forward": "runs once only",
    "transformer encoder in eval": "the fused path rounds differently",
    "transformer with kwargs": "the hooks written by hand take args only",
}


HEAVY = {"faster r-cnn": pytest.mark.slow, "densenet121": pytest.mark.slow}  # the others have what is in them


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=HEAVY.get(name, ())) for name in sorted(MODELS.keys() - LEFT_OUT)]
)
def test_awkward_models(name: str) -> None:
    def make() -> Any:
        model, args, kwargs = MODELS[name]()
        assert not kwargs
        return model, args

    model, args = make()
    with torch.no_grad():
        calls = calls_of(copy.deepcopy(model), args)
    floats = [each for each in calls if each.layer and len({path for path, _ in each.tensors}) >= 1]
    for number, (verb, to) in enumerate([("scale", "output"), ("add", "output"), ("map", "input")]):
        mine = [each for each in floats if each.to == to]
        if not mine:
            continue
        spec = spec_of(mine, len(mine) // 2 + number, verb, number, False, True)
        if spec is not None:
            check(make, [spec], grad=True, close=1e-5)
