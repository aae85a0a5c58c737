"""The model's arguments come first or in `kwargs=`; all else is an option of the sweep, and a wrong one is named."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import SweepOptions, sweep
from hookscope.interp.sweeps import Cell
from tests.shared.awkward_models import Net
from tests.shared.sweep_helpers import get_outputs, sweep_by_hand

X, Y = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net(lambda self, x, scale=1.0: self.head(self.body(x) * scale), body=nn.Linear(4, 4), head=nn.Linear(4, 3))


GOOD: dict[str, Any] = {"layers": ["body", "head"], "source": Y, "metric": torch.sum}


def test_a_sweep_has_eight_parameters() -> None:
    assert len(inspect.signature(sweep).parameters) == 8


@pytest.mark.parametrize(
    ("args", "kwargs", "source", "other"),
    [
        ((X,), None, Y, ((Y,), {})),
        ((X, 2.0), None, (Y, 3.0), ((Y, 3.0), {})),
        ((), {"x": X, "scale": 2.0}, {"x": Y, "scale": 3.0}, ((), {"x": Y, "scale": 3.0})),
        ((X,), {"scale": 2.0}, Y, ((Y,), {"scale": 2.0})),
        ((X,), {"scale": 2.0}, {"scale": 3.0}, ((X,), {"scale": 3.0})),
        ((), {"x": X, "scale": 2.0}, Y, ((Y,), {})),
    ],
    ids=["a tensor", "a tuple", "keywords", "both, other args", "both, other keywords", "keywords, then a tensor"],
)
def test_each_way_to_give_inputs_is_that_of_plain_hooks(args: Any, kwargs: Any, source: Any, other: Any) -> None:
    model = net()
    found = sweep(model, *args, kwargs=kwargs, **GOOD | {"source": source}, positions=range(5))
    new = get_outputs(model, lambda: model(*other[0], **other[1]), GOOD["layers"])
    places = [(slice(None), position) for position in range(5)]
    known = sweep_by_hand(model, lambda: model(*args, **kwargs or {}), GOOD["layers"], new, places, torch.sum)
    assert torch.allclose(found.values, known, rtol=1e-5)
    cell = Cell(found, "head", 3)
    assert cell.run().value == pytest.approx(cell.value, rel=1e-5)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an argument of the model": (
        {"mask": X}, TypeError,
        r"sweep has no option 'mask'\. Its options are layers,.* channels\. If 'mask' is an argument of the model, "
        r"pass kwargs=\{'mask': \.\.\.\}",
    ),
    "one of the options": ({"progress": False}, TypeError, r"Pass options=SweepOptions\(progress=\.\.\.\)"),
    "options in a dict": ({"options": {"part": 0}}, TypeError, "options is of type dict. Pass a SweepOptions"),
    "no mapping": ({"kwargs": X}, TypeError, r"kwargs is of type Tensor\. Pass a dict"),
    "numbers for names": ({"kwargs": {0: X}}, TypeError, "kwargs has the key 0"),
    "two axes": ({"positions": [0], "heads": [0]}, ValueError, "takes one of positions=, heads= and channels="),
    "a source in a list": ({"source": [Y]}, TypeError, "of type list. Pass .* a tuple of positional.* or a dict"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_option_is_named_before_the_first_pass(what: str) -> None:
    given, error, match = WRONG[what]
    model = net()
    model.register_forward_pre_hook(lambda module, args: pytest.fail("the model was run"))
    with pytest.raises(error, match=match):
        sweep(model, X, **GOOD | given)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("check", [None, 2])
def test_a_metric_returns_one_element_of_any_shape(shape: tuple[int, ...], check: int | None) -> None:
    options = SweepOptions(check=check)
    known = sweep(net(), X, **GOOD | {"metric": lambda y: float(y.sum())}, positions=range(5), options=options)
    found = sweep(net(), X, **GOOD | {"metric": lambda y: y.sum().reshape(shape)}, positions=range(5), options=options)
    assert torch.equal(found.values, known.values)
    assert found.baseline == known.baseline
