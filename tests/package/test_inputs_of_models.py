"""Where hookscope runs the model, its keyword arguments are in `kwargs=`, and a keyword that is no option is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import attention, compare_backward_hooks, diagnose, profile
from hookscope.widgets import LayerPicker, TokenPicker
from tests.shared.awkward_models import Net
from tests.shared.language_models import IDS, gpt2

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
RUNS: dict[str, Callable[..., object]] = {
    "attention": attention,
    "profile": profile,
    "compare_backward_hooks": compare_backward_hooks,
    "diagnose": lambda model, *args, **given: diagnose(model, "body", *args, **given),
    "LayerPicker": LayerPicker,
    "TokenPicker": TokenPicker,
}


def keen(seen: list[Any]) -> nn.Module:
    """A model with arguments that are called as options of hookscope are."""

    def run(self: Any, x: Tensor, *, tokens: float, repeats: float, kwargs: float) -> Tensor:
        seen.append((tokens, repeats, kwargs))
        out: Tensor = self.body(x) * tokens * repeats * kwargs
        return out

    return Net(run, body=nn.Linear(4, 4))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "TokenPicker"])
def test_the_model_gets_what_is_in_kwargs_and_nothing_else(name: str) -> None:
    seen: list[Any] = []
    RUNS[name](keen(seen), X, kwargs={"tokens": 2.0, "repeats": 3.0, "kwargs": 4.0})
    assert set(seen) == {(2.0, 3.0, 4.0)}


def test_a_token_picker_and_attention_of_a_language_model() -> None:
    found = attention(gpt2(), kwargs={"input_ids": IDS})
    assert all(
        map(torch.equal, *([each.weights for each in maps.values()] for maps in (found, attention(gpt2(), IDS))))
    )
    picker = TokenPicker(gpt2(), kwargs={"input_ids": IDS})
    assert torch.equal(picker.reading.norm, TokenPicker(gpt2(), IDS).reading.norm)


@pytest.mark.parametrize("name", RUNS)
def test_a_keyword_that_is_no_option_is_named(name: str) -> None:
    model = keen([])
    model.register_forward_pre_hook(lambda module, args: pytest.fail("the model was run"))
    says = (
        rf"{name} has no option 'attention_mask'\. Its options are .*kwargs.*\. If 'attention_mask' is an argument of "
        r"the model, pass kwargs=\{'attention_mask': \.\.\.\}"
    )
    with pytest.raises(TypeError, match=says):
        RUNS[name](model, X, attention_mask=X)
    for wrong in (X, [("x", X)], "x", 3):
        with pytest.raises(TypeError, match=rf"kwargs is of type {type(wrong).__name__}\. Pass a dict"):
            RUNS[name](model, X, kwargs=wrong)
    with pytest.raises(TypeError, match="kwargs has the key 1"):
        RUNS[name](model, X, kwargs={1: X})
