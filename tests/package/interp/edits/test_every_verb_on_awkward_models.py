"""Every verb, on outputs, inputs and gradients of awkward models, does what hooks written by hand do, bit for bit."""

from __future__ import annotations

import pytest

from tests.shared.awkward import MODELS
from tests.shared.editable import Seen, calls_of
from tests.shared.edited_by_hand import Spec, check, spec_of
from tests.shared.edited_formulas import KINDS

ENDS = ("output", "input", "grad")
LARGE = ("densenet121", "faster r-cnn", "mobilenet_v3_small", "resnet18", "vgg16", "vit_b_16")
SLOW = {"faster r-cnn": pytest.mark.slow, "densenet121": pytest.mark.slow}  # the others have what is in them
LEFT_OUT = {("data-dependent while loop", "freeze"): "it would never end"}


def fitting(name: str, calls: list[Seen], to: str, number: int, kind: str) -> Spec | None:
    """Make an edit of one of the layers, another one for each number; None if none fits."""
    first = {(call.layer, call.to): call.tensors for call in reversed(calls)}
    twice = {(call.layer, call.to) for call in calls if call.number > 1}
    twice -= {key for call in calls if call.tensors != first[key := (call.layer, call.to)]}  # of another shape: refused
    mine = [
        call
        for call in calls
        if call.to == to
        and any(shape is not None for _, shape in call.tensors)
        and (kind != "freeze" or (call.layer, to) in twice)
    ]
    tries = (spec_of(MODELS[name], calls, calls.index(mine[(number + more) % len(mine)]), kind, number, False, True)
             for more in range(min(len(mine), 4)))  # fmt: skip
    return next((spec for spec in tries if spec is not None), None)


@pytest.mark.parametrize("every_end", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one end", "every end"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in MODELS])
def test_awkward_models(name: str, every_end: bool) -> None:
    calls = calls_of(MODELS[name]())
    # One end for each verb, another one from model to model. The slow tests take every end of all but the large models
    # and the many that are overwritten.
    one_end = not every_end or "overwritten by" in name or name in LARGE
    errors = []
    for end, to in enumerate(ENDS):
        specs = [
            spec
            for number, kind in enumerate(KINDS)
            if (name, kind) not in LEFT_OUT
            and not (one_end and (number + len(name)) % 3 != end)
            and (spec := fitting(name, calls, to, number, kind)) is not None
        ]
        for some in [specs] if name in LARGE else [[spec] for spec in specs]:
            if some:
                errors.append(check(MODELS[name], some))
    assert "" in errors, "nothing was edited"
