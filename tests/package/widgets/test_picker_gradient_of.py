"""What the layer picker takes the gradient of, that it says so, and that it tells rounding from a gradient."""

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope.widgets import LayerPicker
from tests.shared.awkward_models import Do

Pair = namedtuple("Pair", "hidden logits")


class Heads(nn.Module):
    """Features and the scores of three classes, put together as is asked."""

    def __init__(self, packed: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.packed = nn.Linear(4, 6), nn.Linear(6, 3), packed

    def forward(self, x: Tensor) -> Any:
        features = self.body(x).tanh()
        return self.packed(features, self.head(features))


@pytest.mark.parametrize(
    ("packed", "where"),
    [
        (lambda f, s: {"features": f, "logits": s}, "output['logits']"),
        (lambda f, s: OrderedDict(loss=s.sum(), logits=s, hidden=f), "output['logits']"),
        (lambda f, s: Pair(f, s), "output.logits"),
        (lambda f, s: {"features": f, "out": s}, "output['out']"),
        (lambda f, s: {"out": f, "logits": s}, "output['logits']"),
        (lambda f, s: (f[:, None], s), "output[1]"),
        (lambda f, s: (f[:, None] > 0, s), "output[1]"),
        (lambda f, s: (s, f), "output[0]"),
        (lambda f, s: s, "the output"),
    ],
    ids=[
        "dict",
        "with a loss",
        "named tuple",
        "torchvision",
        "logits before out",
        "maps first",
        "bool first",
        "first",
        "one",
    ],
)
def test_of_several_tensors_the_gradient_is_that_of_the_scores(
    packed: Callable[[Tensor, Tensor], Any], where: str
) -> None:
    model, x = Heads(packed), torch.randn(2, 4)
    picker = LayerPicker(model, x, layer="body", show="gradient")
    features = model.body(x).detach().requires_grad_()
    model.head(features.tanh()).max(dim=1).values.sum().backward()
    torch.testing.assert_close(picker.gradient, features.grad)
    assert picker.targets == ["0", "1", "2"]
    assert picker.goal == f"Gradient of the highest of the 3 scores of each sample in {where}."
    picker.target = 1
    assert picker.goal == f"Gradient of the score of class 1, one of 3 in {where}."
    picker.show = "activation"
    assert picker.goal == ""


def test_a_class_is_named_in_what_the_gradient_is_of() -> None:
    names = [f"digit {n}" for n in range(10)]
    picker = LayerPicker(samples.digit_cnn(), samples.digit(5), classes=names, show="gradient", target=3)
    assert picker.goal == "Gradient of the score of class digit 3, one of 10 in the output."


def test_without_classes_the_gradient_is_that_of_a_sum_and_says_so() -> None:
    picker = LayerPicker(nn.LSTM(4, 5, batch_first=True), torch.randn(2, 7, 4), show="gradient")
    assert picker.targets == []
    assert "the sum of output[0], because its shape (2, 7, 5) is not that of class scores" in picker.goal
    assert picker.notices == ["Each value here is one term of that sum, so the gradient is 1 everywhere."]
    picker.part = "[1][0]"
    assert "no gradient reaches" in picker.problem
    assert picker.notices == []
    loss = LayerPicker(Do(lambda x: (x**2).sum()), torch.ones(3), show="gradient")
    assert loss.goal == "Gradient of the output, a single number."
    none = LayerPicker(Do(lambda x: x > 0), torch.ones(3))
    none.show = "gradient"
    assert "no floating-point tensor, so there is no gradient" in none.problem


@pytest.mark.parametrize(
    "last", [nn.LayerNorm(8), nn.Softmax(-1), nn.LayerNorm(8).double()], ids=["norm", "softmax", "double"]
)
def test_a_sum_that_is_constant_is_not_a_dead_layer(last: nn.Module) -> None:
    torch.manual_seed(0)
    dtype = torch.float64 if any(p.dtype == torch.float64 for p in last.parameters()) else torch.float32
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), last).to(dtype)
    picker = LayerPicker(model, torch.randn(2, 5, 6, dtype=dtype), layer="0", show="gradient")
    assert picker.gradient.abs().max() < 1e-6
    assert "These gradients are 0" in picker.notices[0]
    assert ("rounding" in picker.notices[0]) is bool(picker.gradient.any())  # some processors compute exactly 0
    uneven = nn.LayerNorm(8)  # trained, it weighs its values differently, and the sum depends on its input
    nn.init.uniform_(uneven.weight)
    trained = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), uneven)
    other = LayerPicker(trained, torch.randn(2, 5, 6), layer="0", show="gradient")
    assert other.gradient.abs().max() > 1e-3
    assert other.notices == []
    picker.layer = "2"
    assert not any("These gradients" in notice for notice in picker.notices)
    picker.layer, picker.show = "0", "activation"
    assert picker.notices == []


def test_small_gradients_are_not_taken_for_rounding() -> None:
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(6, 8), *[Do(lambda x: x * 1e-3) for _ in range(4)])
    picker = LayerPicker(small, torch.randn(2, 5, 6), layer="0", show="gradient")
    assert 0 < picker.gradient.abs().max() < 1e-9
    assert picker.notices == []
    dead = nn.Sequential(nn.Linear(6, 8), Do(lambda x: x * 0))
    assert LayerPicker(dead, torch.randn(2, 5, 6), layer="0", show="gradient").notices == []


def test_what_is_warned_about_in_a_pass_stands_in_the_widget() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def warns(x: Tensor) -> Tensor:
        warnings.warn("mind the gap\nand the rest", stacklevel=1)
        return x

    with warnings.catch_warnings(record=True) as above:
        warnings.simplefilter("always")
        picker = LayerPicker(encoder, torch.randn(2, 5, 8))
        other = LayerPicker(Do(warns), torch.ones(1, 2))
        picker.show = "gradient"
        picker.layer = "layers.0.linear1"
        picker.show = "activation"
    assert above == []
    assert LayerPicker(encoder, torch.randn(2, 5, 8)).notices == [
        "Layer 'layers.0' and 1 more ran without their fused path, because they have hooks. Their values can differ in "
        "the last digits."
    ]
    assert other.notices == ["The model warned: mind the gap"]
    assert LayerPicker(samples.digit_cnn(), samples.digit(5)).notices == []


def test_a_layer_that_no_gradient_reaches_is_said_without_a_with_block() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 3), nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.unused(x)
            return self.used(x)

    picker = LayerPicker(Beside(), torch.ones(1, 2), layer="unused")
    with pytest.raises(ValueError, match=r"no gradient reaches unused .*does not depend on it"):
        _ = picker.gradient


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.jit is deprecated
def test_a_scripted_model_is_refused_in_words() -> None:
    with pytest.raises(
        ValueError, match=r"the model is TorchScript, which does not run all Python hooks\. Pass the module that"
    ):
        LayerPicker(torch.jit.script(nn.ReLU()), torch.ones(1))
