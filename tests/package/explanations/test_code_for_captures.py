"""The code that `explain` writes for a capture, run on its own, finds what the capture found: for awkward models."""

from __future__ import annotations

from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, census, explain
from hookscope.captures.result import Capture
from hookscope.explanations import Explanation
from tests.shared.awkward_models import MODELS, Do, Net, Own, difference
from tests.shared.explanation_runs import assert_same, explain_and_check, run_code, run_watched
from tests.shared.language_models import IDS, bert, gpt2, t5

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, backward hooks and the like

LEFT_OUT = {"transformer with kwargs", "vgg16", "densenet121", "vit_b_16", "mobilenet_v3_small"}
EACH = [
    name
    for name in MODELS
    if name not in LEFT_OUT
    and name not in ("a module made during forward", "a module replaced during forward", "a leaf that calls itself")
    and (not name.startswith("a view over") or "mul_" in name)
]
REFUSED = {"faster r-cnn", "dataclass", "frozen dataclass", "a dataclass that is changed later"}


HASHED = "a layer whose hash changes in each call"
OTHERS = [name for name in EACH if name not in {*REFUSED, HASHED}]


def seen_of(name: str, backward: bool, **options: Any) -> Capture:
    seen: Capture = run_watched(MODELS[name](), lambda model: capture(model, **options), backward=backward)
    return seen


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "checkpoint"])
def test_a_capture_that_has_run(name: str) -> None:
    seen = seen_of(name, True, gradients=True)
    model, args, _ = MODELS[name]()
    assert_same(run_code(explain_and_check(seen), model, args), seen, gradients=True)


@pytest.mark.parametrize("name", OTHERS[::2])
def test_a_capture_of_inputs(name: str) -> None:
    seen = seen_of(name, False, inputs=True)
    model, args, _ = MODELS[name]()
    assert_same(run_code(explain_and_check(seen), model, args), seen, inputs=True)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_objects_that_the_lines_do_not_follow_are_named(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"code for call \w+, because its inputs or outputs contain a (ImageList|Result|Frozen)"
    ):
        explain(seen_of(name, False))


@pytest.mark.parametrize("name", ["LSTM tuple", "dict output", "nested outputs", "torch.return_types", "resnet18"])
@pytest.mark.parametrize("inputs", [False, True])
def test_a_capture_that_has_not_run_is_ready_for_structures(name: str, inputs: bool) -> None:
    model, args, _ = MODELS[name]()
    code = explain_and_check(capture(model, gradients=True, inputs=inputs))
    seen = run_watched(MODELS[name](), lambda model: capture(model, gradients=True, inputs=inputs))
    assert_same(run_code(code, model, args), seen, gradients=True, inputs=inputs)


def test_a_capture_that_has_not_run_says_what_it_cannot_copy() -> None:
    model, args, _ = MODELS["dataclass"]()
    with pytest.raises(TypeError, match="write here how to copy a Result"):
        run_code(explain_and_check(capture(model)), model, args)


def test_a_layer_with_a_hash_of_its_own_is_named() -> None:
    with pytest.raises(ValueError, match=r"for layer 'meter': its class Meter defines __hash__.*Capture the other"):
        explain(seen_of(HASHED, False))


def test_two_layers_take_about_fifteen_lines() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    for seen in (capture(model), run_watched((model, (torch.ones(2, 4),), {}), capture)):
        code = explain_and_check(seen)
        assert len([line for line in code.splitlines() if line]) <= 15
        assert "output.detach().clone()" in code
        assert "register_forward_hook(" in code
        assert "handle.remove()" in code
        assert "def map_tensors" not in code


def test_what_is_kept_is_safe_from_in_place_operations() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (torch.randn(8, 4),)
    outputs = run_code(explain_and_check(capture(model)), model, args)["outputs"]
    assert (outputs["0"][0] < 0).any()
    assert not outputs["0"][0].requires_grad


def test_hooks_come_off_when_the_model_raises() -> None:
    def explode(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model, args = nn.Sequential(nn.Linear(4, 4), Do(explode), nn.Linear(4, 4)), (torch.ones(2, 4),)
    for seen in (capture(model, gradients=True, inputs=True), capture(model, "", "**")):
        with pytest.raises(ZeroDivisionError):
            run_code(explain_and_check(seen), model, args)  # asserts that no hook is left
        assert len(census(model)) == 0


def test_hooks_on_outputs_come_off_too() -> None:
    model = Net(lambda self, x: self.b(x + self.own()), own=Own(lambda self: self.weight), b=nn.Linear(4, 3))
    args = (torch.randn(2, 4),)
    seen = run_watched((model, args, {}), lambda model: capture(model, gradients=True))
    run_code(explain_and_check(seen), model, args)
    assert not model.own.weight._backward_hooks


def test_calls_inside_calls_are_in_the_order_in_which_they_end() -> None:
    model, args, _ = MODELS["a leaf that calls itself"]()
    with capture(model) as seen:
        model(*args)
    found = run_code(explain_and_check(seen), model, args)["outputs"]["0"]
    assert not difference(found[::-1], [call.output for call in seen["0"].calls])


def test_gradients_of_several_backward_passes_add_up() -> None:
    def derive(self: nn.Module, places: Tensor) -> tuple[Tensor, Tensor]:
        places = places.detach().requires_grad_()
        energy = self.energy(places).sum()
        return energy, -torch.autograd.grad(energy, places, create_graph=True)[0]

    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model, args = Net(derive, energy=layers), (torch.randn(5, 3),)
    with capture(model, gradients=True) as seen:
        energy, forces = model(*args)
        (energy + forces.sum()).backward()
    assert_same(run_code(explain_and_check(seen), model, args), seen, gradients=True)


@pytest.mark.parametrize(
    "name",
    [
        "it's",
        'a "quoted" name',
        "back\\slash",
        "новый",
        "line\nbreak",
        "<img src=x>",
        "x" * 300,
        "#2",
        "{x}",
        "my torch",
    ],
)
def test_names_of_any_kind(name: str) -> None:
    model, args = nn.Sequential(), (torch.randn(2, 4),)
    model.add_module(name, nn.Linear(4, 3))
    with capture(model, name) as seen:
        model(*args)
    assert_same(run_code(code := explain_and_check(seen), model, args), seen)
    assert "import" not in code


def test_a_layer_under_the_name_it_was_asked_for_by() -> None:
    relu = nn.ReLU()
    model, args = nn.Sequential(*(nn.Linear(4, 4) for _ in range(14)), relu, relu), (torch.randn(2, 4),)
    for which in (("15",), ("?", "1[0-3]", "15")):
        with capture(model, *which) as seen:
            model(*args)
        assert seen.order[-2:] == ["15", "15"]
        assert_same(run_code(explain_and_check(seen), model, args), seen)


def test_layers_inside_layers_and_a_model_that_returns_another_structure() -> None:
    def forward(self: nn.Module, x: Tensor) -> Any:
        y, (h, _) = self.lstm(x)
        return {"all": [self.fc(y)], "last": h}

    model, args = Net(forward, lstm=nn.LSTM(4, 5), fc=nn.Linear(5, 3)), (torch.randn(2, 3, 4),)
    for which in ((), ("lstm",), ("fc",), ("", "**")):
        seen = run_watched((model, args, {}), lambda m, which=which: capture(m, *which, gradients=True))
        assert any(call.grad is not None for call in seen.calls)
        assert_same(run_code(explain_and_check(seen), model, args), seen, gradients=True)


@dataclass(slots=True)
class Result:
    values: Tensor
    number: int = 3


LAST = {
    "a dataclass": lambda x: Result(x),
    "a dataclass in a list": lambda x: [Result(x), 1],
    "a complex tensor": lambda x: x.to(torch.complex64) * (1 + 1j),
}


@pytest.mark.parametrize("what", LAST)
def test_what_the_model_makes_of_its_layers_outputs_is_the_loss(what: str) -> None:
    net, x = Net(lambda self, x: LAST[what](self.line(x)), line=nn.Linear(2, 2)), torch.ones(1, 2)
    with capture(net, gradients=True) as seen:
        y = net(x)
        y = y[0] if isinstance(y, list) else y
        (y.values if isinstance(y, Result) else y).sum().real.backward()
    assert_same(run_code(explain_and_check(seen), net, (x,)), seen, gradients=True)


@pytest.mark.parametrize("make", [bert, gpt2, t5])
def test_language_models(make: Any) -> None:
    net, given = make(), {"input_ids": IDS, **({"decoder_input_ids": IDS.flip(1)} if make is t5 else {})}
    which = ("encoder.block.*", "encoder", "lm_head") if make is t5 else ()
    with capture(net, *which, gradients=True) as seen:
        sum(t.sum() for t in net(**given).values() if isinstance(t, Tensor)).backward()
    code = explain_and_check(seen)
    assert "# for keyword arguments: model(**inputs)" in code
    assert_same(run_code(code.replace("model(*inputs)", "model(**inputs)"), net, given), seen, gradients=True)
    with torch.no_grad(), capture(net, "") as seen:
        net(**given)
    if make is not bert:
        with pytest.raises(ValueError, match=r"call \(root\), because its inputs or outputs contain a \w+Cache"):
            explain(seen)
        return
    found = run_code(explain_and_check(seen).replace("model(*inputs)", "model(**inputs)"), net, given)["outputs"][""][0]
    assert type(found) is dict
    assert not difference(found, dict(seen[""].output))


def test_an_explanation_shows_its_code() -> None:
    model = nn.Sequential()
    model.add_module("<img src=x onerror=alert(1)>", nn.Linear(4, 3))
    shown = explain(capture(model))
    assert isinstance(shown, Explanation)
    assert str(shown) == shown.code == repr(shown) + "\n"
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    html = bundle["text/html"]
    assert "<img" not in html
    assert shown.code in unescape(html)
    assert "<figcaption>Sequential: what flowed" in html
