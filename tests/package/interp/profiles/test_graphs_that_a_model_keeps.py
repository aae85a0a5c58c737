"""A model that keeps a tensor with its graph from pass to pass is measured, and its owner's backward works after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hookscope import profile
from hookscope.interp.profiles import Profile
from tests.shared.awkward_models import Do


def quick(model: nn.Module, *inputs: Any, **options: Any) -> Profile:
    return profile(model, *inputs, **{"repeats": 2, "warmup": 1} | options)


class Bias(nn.Module):
    """Adds a bias that `eval()` makes once, as attention of timm's LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.biases = nn.Linear(3, 4), nn.Parameter(torch.randn(2, 3))
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.biases[:, [0, 1, 2, 0]].sin()
        return self.linear(x) * self.cache["cpu"]


class Attribute(Bias):
    """Keeps it in an attribute of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            self.made = self.biases[:, [0, 1, 2, 0]].sin()
        return self.linear(x) * self.made


class Buffer(Bias):
    """Keeps it in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("made", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.made is None:
            self.made = self.biases[:, [0, 1, 2, 0]].sin()
        return self.linear(x) * self.made


class State(Bias):
    """Goes on from the state of the pass before."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.state = y.tanh() if self.state is None else (y + self.state).tanh()
        return self.state


X = torch.randn(2, 3)
KINDS = [Bias, Attribute, Buffer, State]


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return found


def same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_model_is_measured_and_is_fresh_again(kind: type[Bias], warmup: int) -> None:
    model = kind().eval()
    model(X).sum().backward()
    expected = gradients(model)
    fresh = kind().eval()
    fresh.load_state_dict(model.state_dict())
    held = dict(vars(fresh))
    costs = quick(fresh, X, warmup=warmup)
    assert costs["linear"].backward_flops == 2 * 2 * 3 * 4
    assert vars(fresh) == held
    assert all(parameter.grad is None for parameter in fresh.parameters())
    fresh(X).sum().backward()
    assert same(gradients(fresh), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_its_owner_has_not_used_yet_stays(kind: type[Bias]) -> None:
    model = kind().eval()
    model(X).sum().backward()
    expected = gradients(model)
    again = kind().eval()
    again.load_state_dict(model.state_dict())
    output = again(X)
    held = dict(vars(again))
    costs = quick(again, X)
    assert "kept tensors with their graph" in repr(costs)
    assert vars(again) == held
    output.sum().backward()
    assert same(gradients(again), expected)


def test_leaves_behind_such_a_graph_keep_their_gradient() -> None:
    model, x = State().eval(), X.clone().requires_grad_()
    output = model(x)
    quick(model, X)
    assert x.grad is None
    output.sum().backward()
    assert x.grad is not None


def test_what_is_kept_outside_of_the_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    parametrize.register_parametrization(model[0], "weight", Do(torch.exp))
    quick(model, X)
    with parametrize.cached(), pytest.raises(ValueError, match=r"keeps a tensor with its graph \(ExpBackward0\) from"):
        quick(model, X)
    with parametrize.cached():
        quick(model, X, backward=False)
    model(X).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_its_owner_has_used_up_is_refused(kind: type[Bias]) -> None:
    model = kind().eval()
    model(X).sum().backward()
    with pytest.raises(ValueError, match="an earlier backward has freed"):
        quick(model, X)
    assert quick(model, X, backward=False)["linear"].flops == 2 * 2 * 3 * 4


def test_levit_of_transformers() -> None:
    import transformers

    sizes = {"hidden_sizes": [16, 16, 16], "num_attention_heads": [1, 1, 1], "key_dim": [8, 8, 8], "depths": [1, 1, 1]}
    model = transformers.LevitModel(transformers.LevitConfig(image_size=64, **sizes)).eval()
    x = torch.randn(1, 3, 64, 64)
    model(x).last_hidden_state.sum().backward()
    expected = gradients(model)
    model.train().eval()  # forgets the biases that it keeps
    assert quick(model, x, repeats=1)[""].backward_flops
    model(x).last_hidden_state.sum().backward()
    assert same(gradients(model), expected)
