"""The layers that the code for a capture hooks: by a rule where there is one, under any names, in their order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, record
from tests.shared.awkward import MODELS, Net, tensors_in
from tests.shared.explained import assert_same, checked, run, total, watched

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like


@pytest.mark.parametrize(
    ("which", "rule"),
    [
        ((), "if not list(module.children())"),
        (("", "**"), ""),
        ((nn.Conv2d,), "if isinstance(module, nn.Conv2d)"),
        ((nn.Conv2d, nn.BatchNorm2d), "if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))"),
        (("layer2.**",), "if name.startswith('layer2.')"),
        (("layer2.*.conv*", "layer2.*.bn*", "layer2.0.downsample.*", "layer2.*.relu", "layer3.0.conv1"), None),
        (("layer1.*.*", "layer2.*.conv*", "layer2.*.bn*"), None),
    ],
)
def test_many_layers_are_chosen_by_a_rule_where_there_is_one(which: tuple[Any, ...], rule: str | None) -> None:
    model, args, _ = MODELS["resnet18"]()
    seen = capture(model, *which)
    code = checked(seen)
    assert ("named_modules()" in code) == (rule is not None)
    assert (rule or "") in code
    model.eval()
    with seen:
        model(*args)
    names = run(checked(seen), model, args)
    assert set(names["layers"].values()) == set(seen._layers.values())
    assert_same(names, seen, gradients=False, inputs=False)


def test_layers_inside_layers_are_in_the_order_in_which_they_begin() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), nn.Linear(4, 2))
    args = (torch.randn(2, 4),)
    for gradients in (False, True):
        with capture(model, "**", "", gradients=gradients) as seen:
            total(model(*args)).backward()
        names = run(checked(seen), model, args)
        assert names["order"] == ["", "0", "0.0", "0.1", "1"]
        assert_same(names, seen, gradients=gradients, inputs=False)


@pytest.mark.parametrize(
    "name",
    ["it's", 'a "quoted" name', "back\\slash", "новый", "line\nbreak", "<img src=x>", "x" * 300, "#2", "{x}", "%s"],
)
def test_names_of_any_kind(name: str) -> None:
    model, args = nn.Sequential(), (torch.randn(2, 4),)
    model.add_module(name, nn.Linear(4, 3))
    with capture(model, name) as seen:
        model(*args)
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=False)
    with record(model) as recording:
        total(model(*args)).backward()
    assert run(checked(recording), model, args)["events"] == [(e.kind, e.name) for e in recording.events]


def test_what_a_name_holds_is_no_import() -> None:
    model = nn.Sequential()
    model.add_module("my torch", nn.Sequential(nn.Linear(4, 3)))
    model.add_module("x = nn", nn.Sequential(nn.Linear(4, 3)))
    assert "import" not in checked(capture(model, "my torch.0", "x = nn.0"))


def test_a_layer_under_the_name_it_was_asked_for_by() -> None:
    relu = nn.ReLU()
    model, args = nn.Sequential(nn.Linear(4, 4), relu, relu), (torch.randn(2, 4),)
    with capture(model, "2") as seen:
        model(*args)
    names = run(checked(seen), model, args)
    assert names["order"] == ["2", "2"]
    assert_same(names, seen, gradients=False, inputs=False)


def test_many_layers_one_of_them_under_its_second_name() -> None:
    relu = nn.ReLU()
    model, args = nn.Sequential(*(nn.Linear(4, 4) for _ in range(14)), relu, relu), (torch.randn(2, 4),)
    with capture(model, "?", "1[0-3]", "15") as seen:
        model(*args)
    assert seen.order[-2:] == ["15", "15"]
    assert_same(run(checked(seen), model, args), seen, gradients=False, inputs=False)


def test_a_model_that_returns_another_structure_than_its_layers() -> None:
    def forward(self: nn.Module, x: Tensor) -> Any:
        y, (h, _) = self.lstm(x)
        return {"all": [self.fc(y)], "last": h}

    model, args = Net(forward, lstm=nn.LSTM(4, 5), fc=nn.Linear(5, 3)), (torch.randn(2, 3, 4),)
    for which in ((), ("lstm",), ("fc",), ("", "**")):
        seen = watched((model, args, {}), lambda m, which=which: capture(m, *which, gradients=True))
        assert any(grad is not None for call in seen.calls for grad in tensors_in(call.grad))
        assert_same(run(checked(seen), model, args), seen, gradients=True, inputs=False)
