"""The layer picker on models of others: heads without a gradient, masks, slots, quantized and nested tensors."""

from __future__ import annotations

import dataclasses
from collections import deque
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture
from hookscope.widgets import LayerPicker
from tests.shared.awkward_models import Do, Net
from tests.shared.awkward_models.calls import catching
from tests.shared.language_models import IDS, llama


class Two(nn.Module):
    """Returns the scores of two heads for each position; only those of one are what a gradient is of."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seg, self.aux = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).relu()
        return {"out": self.seg(h), "aux": self.aux(h)}


def test_a_call_that_no_gradient_reaches_hides_no_other() -> None:
    picker = LayerPicker(Two(), torch.randn(1, 3, 8, 8), layer="body", show="gradient")
    assert picker.problem == ""
    assert picker.gradient.shape == (1, 4, 6, 6)
    picker = LayerPicker(llama(), IDS, layer="model.layers.0.mlp", show="gradient")  # rotary embeddings get none
    assert picker.problem == ""
    assert picker.gradient.abs().max() > 0


class Policy(nn.Module):
    """Returns what it was given, a mask, and what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        action = self.layer(obs)
        return {"obs": obs, "mask": (obs > 0).float(), "action": action, "value": action.sum(1)}


def test_a_layer_that_raised_hides_no_other() -> None:
    model, args, _ = catching()
    picker = LayerPicker(model, *args, layer="inner.0", call=2, show="gradient", gradient_of=torch.sum)
    with capture(model, "inner.0", gradients=True) as seen:
        model(*args).sum().backward()
    assert torch.equal(picker.gradient, seen["inner.0"].calls[1].grad)
    raised = [name for name, why in ((row["name"], row["why"]) for row in picker.tree) if "raised" in why]
    assert raised == ["inner", "inner.1"]
    assert all(any(f"'{name}' raised an exception" in notice for notice in picker.notices) for name in raised)


def test_the_gradient_of_a_single_number() -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), Do(torch.mean), nn.ELU()), torch.randn(2, 4)
    picker = LayerPicker(net, x, layer="1", show="gradient")
    assert (picker.problem, picker.gradient.shape) == ("", ())


def test_what_can_have_no_gradient_is_no_goal() -> None:
    net, x = Policy(), torch.randn(3, 4)
    picker = LayerPicker(net, x, layer="layer", show="gradient")
    assert picker.problem == ""
    assert picker.goal == "Gradient of the highest of the 2 scores of each sample in output['action']."
    assert picker.targets == ["0", "1"]
    picker.target = 1
    assert picker.gradient.tolist() == [[0, 1]] * 3
    assert LayerPicker(net, x, classes=["left", "right"]).targets == ["left", "right"]


def test_the_user_chooses_what_the_gradient_is_of() -> None:
    net, x = Policy(), torch.randn(3, 4)
    picker = LayerPicker(net, x, layer="layer", show="gradient", gradient_of="['value']")
    assert picker.goal.startswith("Gradient of the sum of output['value'], because ")
    assert picker.gradient.tolist() == [[1, 1]] * 3
    picker = LayerPicker(net, x, layer="layer", show="gradient", gradient_of=lambda output: 3 * output["action"][0, 0])
    assert picker.goal == "Gradient of what gradient_of returns."
    assert picker.gradient.tolist() == [[3, 0], [0, 0], [0, 0]]
    with pytest.raises(
        ValueError, match=r"gradient_of=\"\['values'\]\" is not in the output, which has .*\['action'\]"
    ):
        LayerPicker(net, x, gradient_of="['values']")
    picker = LayerPicker(net, x, layer="layer", show="gradient", gradient_of="['mask']")
    assert "does not require grad. Pass one that does: \"['action']\", \"['value']\"" in picker.problem
    picker = LayerPicker(net, x, layer="layer", show="gradient", gradient_of=lambda output: output["action"])
    assert "gradient_of returned a tensor of shape (3, 2). Return one number" in picker.problem


def test_features_are_not_called_scores() -> None:
    net = Net(lambda self, x: {"pooler_output": self.layer(x)}, layer=nn.Linear(4, 5))
    picker = LayerPicker(net, torch.randn(2, 4), layer="layer", show="gradient")
    assert picker.goal == ("Gradient of the sum of output['pooler_output'], because its 5 values are not class scores.")


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any


def _deep(tensor: Tensor, levels: int) -> Any:
    return [_deep(tensor, levels - 1)] if levels else tensor


@pytest.mark.parametrize(
    ("pack", "take"),
    [
        (Slots, lambda packed: packed.x),
        (lambda t: deque([t]), lambda packed: packed[0]),
        (lambda t: {t}, lambda packed: next(iter(packed))),
        (lambda t: _deep(t, 12), lambda packed: torch.stack(list(_leaves(packed)))[0]),
    ],
    ids=["slots", "deque", "set", "12 levels"],
)
def test_a_tensor_is_found_wherever_a_capture_finds_it(pack: Any, take: Any) -> None:
    inner = Net(lambda self, x: pack(self.layer(x)), layer=nn.Linear(2, 2))
    picker = LayerPicker(Net(lambda self, x: take(self.inner(x)), inner=inner), torch.ones(1, 2), layer="inner")
    assert picker.problem == ""
    assert picker.activation.shape == (1, 2)


def _leaves(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    else:
        yield from _leaves(value[0])


@pytest.mark.parametrize("layout", ["coordinates", "rows"])
def test_a_sparse_input_hinders_no_gradient(layout: str) -> None:
    net = Net(lambda self, x, adjacency: torch.sparse.mm(adjacency, self.layer(x)), layer=nn.Linear(4, 3))
    adjacency = torch.eye(5).to_sparse() if layout == "coordinates" else torch.eye(5).to_sparse_csr()
    picker = LayerPicker(net, torch.randn(5, 4), adjacency, layer="layer", show="gradient")
    assert picker.problem == ""
    assert picker.gradient.sum() == 5


@pytest.mark.filterwarnings("ignore:.*quantization.*", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["quantized", "nested", "jagged"])
def test_values_of_other_layouts_are_shown_dense(kind: str) -> None:
    if kind == "quantized":
        quantize = partial(torch.quantize_per_tensor, scale=0.5, zero_point=0, dtype=torch.quint8)
        net = Net(lambda self, x: self.layer(quantize(x)).dequantize(), layer=nn.ReLU())
        picker = LayerPicker(net, torch.tensor([[0.5, 2.0]]), layer="layer")
        assert picker.problem == ""
        assert picker.activation.tolist() == [[0.5, 2.0]]
        return
    layout = torch.jagged if kind == "jagged" else torch.strided
    rows = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)], layout=layout)
    net = Net(lambda self, x: self.layer(x), layer=nn.Linear(2, 4))
    picker = LayerPicker(net, rows, layer="layer")
    assert picker.problem == ""
    assert picker.activation.shape == (2, 3, 4)
    assert picker.activation[0, 1:].isnan().all()
    assert not picker.activation[1].isnan().any()


def test_a_statically_quantized_model_is_shown() -> None:
    from torch.ao import quantization

    net = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), quantization.DeQuantStub()).eval()
    net.qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(net, inplace=True)
    x = torch.randn(2, 3, 8, 8)
    net(x)
    quantization.convert(net, inplace=True)
    picker = LayerPicker(net, x, layer="1")
    assert picker.problem == ""
    assert picker.activation.shape == (2, 4, 6, 6)


class Reversible(torch.autograd.Function):
    """Calls backward() in its backward, as a reversible block does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: nn.Module, *parameters: Tensor) -> Tensor:
        ctx.x, ctx.function = x.detach(), function
        with torch.no_grad():
            return x + function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, grad)
        return grad + x.grad, None, None, None


@pytest.mark.parametrize("had", [False, True])
def test_gradients_of_parameters_are_left_as_they_were(had: bool) -> None:
    net = Net(
        lambda self, x: Reversible.apply(self.first(x), self.block, *self.block.parameters()),
        first=nn.Linear(3, 3),
        block=nn.Linear(3, 3),
    )
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter) if had else None
    before = [parameter.grad for parameter in net.parameters()]
    picker = LayerPicker(net, torch.randn(2, 3), layer="first", show="gradient")
    assert picker.problem == ""
    for parameter, grad in zip(net.parameters(), before, strict=True):
        assert parameter.grad is grad
        assert grad is None or bool((grad == 1).all())


def test_a_gradient_is_there_in_inference_mode_too() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    with torch.inference_mode():
        picker = LayerPicker(net, torch.ones(1, 2), layer="0", show="gradient")
        assert picker.problem == ""
        assert picker.gradient.shape == (1, 3)
