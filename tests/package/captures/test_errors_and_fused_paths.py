"""What an open capture says to errors of full backward hooks, and where its hooks switch a fused path off."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hookscope
from hookscope import capture
from hookscope.layers import Modules, find_fused
from tests.shared.capture_runs import Between

# --- what an error says


def test_of_several_hooked_layers_all_are_named_when_it_is_not_clear_which() -> None:
    model = nn.Sequential(Between(F.relu_), nn.Identity())
    model[0].first.register_full_backward_hook(lambda *given: None)
    model[0].second.register_full_backward_hook(lambda *given: None)
    with pytest.raises(RuntimeError, match="BackwardHookFunction") as caught, capture(model, "1"):
        model(torch.ones(2, 4, requires_grad=True))
    assert "one of the layers '0.first', '0.second'" in caught.value.__notes__[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("text",), "Sequential got a str and no tensor. Pass the tensors that its forward takes"),
        ((None,), "Sequential got None and no tensor"),
        (
            (np.ones((1, 4), np.float32),),
            "is a NumPy array of shape (1, 4), but Sequential takes tensors. Pass torch.from",
        ),
        (({"x": torch.ones(1, 4)},), "a dict with the keys 'x'. Pass it with two stars, model(**inputs)"),
        ((torch.ones(1, 4).long(),), "but its input has dtype torch.int64. Pass x.float()"),
        ((torch.ones(1, 3),), "0 (Linear) expects 4 features in the last axis, but its input has shape (1, 3)"),
    ],
)
def test_a_wrong_input_is_explained_below_what_torch_says(given: tuple[Any, ...], said: str) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    with pytest.raises((TypeError, RuntimeError, AttributeError)) as caught, capture(model):
        model(*given)
    assert said in caught.value.__notes__[1]


@pytest.mark.parametrize("given", [(np.ones(1),), ("text",), ()])
def test_an_error_that_is_not_about_the_input_gets_no_reason(given: tuple[Any, ...]) -> None:
    class Model(nn.Module):
        def forward(self, *given: object) -> None:
            raise ValueError("no file")

    model = Model()
    with pytest.raises(ValueError, match="no file") as caught, capture(model, ""):
        model(*given)
    assert len(caught.value.__notes__) == 1


def test_of_several_hooked_layers_the_last_one_that_returned_is_named() -> None:
    model = Between(nn.ReLU(inplace=True))
    model.first.register_full_backward_hook(lambda *given: None)
    model.second.register_full_backward_hook(lambda *given: None)
    with pytest.raises(RuntimeError, match="BackwardHookFunction") as caught, capture(model):
        model(torch.ones(2, 4, requires_grad=True))
    assert "hook on layer 'first'." in caught.value.__notes__[1]


def test_a_global_hook_is_not_blamed_on_a_layer() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda *given: None)
    try:
        with pytest.raises(RuntimeError, match="BackwardHookFunction") as caught, capture(Between(F.relu_)) as seen:
            seen._model(torch.ones(2, 4, requires_grad=True))
    finally:
        handle.remove()
    assert "a global hook" in caught.value.__notes__[1]


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


# --- the fused path


def test_switching_the_fused_path_off_is_a_warning() -> None:
    model, x = encoder(), torch.ones(1, 3, 8)
    expected = pytest.warns(UserWarning, match="switch off the fused path of layer 'layers.1'")
    with expected as caught, torch.no_grad(), capture(model, "layers.1.linear2") as seen:
        model(x)
    assert caught[0].filename == __file__
    assert seen.order == ["layers.1.linear2"]
    assert seen.notes == ("hooks switch off the fused path of layer 'layers.1'",)


@pytest.mark.parametrize(
    ("options", "context", "which"),
    [
        ({}, torch.enable_grad, ["layers.1.linear2"]),
        ({"activation": torch.tanh}, torch.no_grad, ["layers.1.linear2"]),
        ({}, torch.no_grad, [""]),
    ],
)
def test_where_nothing_is_switched_off_there_is_no_warning(options: Any, context: Any, which: list[str]) -> None:
    model = encoder(**options)
    with warnings.catch_warnings(action="error"), context(), capture(model, *which) as seen:
        model(torch.ones(1, 3, 8))
    assert not seen.notes


@pytest.mark.parametrize(
    "options", [{}, {"activation": "gelu"}, {"norm_first": True}, {"activation": torch.tanh}, {"bias": False}]
)
def test_what_counts_as_fused_is_what_torch_runs_fused(options: dict[str, Any]) -> None:
    model = encoder(**options)
    ran: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *given: ran.append(type(module).__name__))
    try:
        with torch.no_grad():
            model(torch.ones(1, 3, 8))  # global hooks leave the fused path on
            fused = find_fused(Modules(model), [model.layers[0].linear1])[model.layers[0].linear1].would_run()
    finally:
        handle.remove()
    assert fused == ("Linear" not in ran)
    assert len(hookscope.census(model)) == 0
