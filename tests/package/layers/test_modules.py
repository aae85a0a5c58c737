"""The modules of a model are walked once, are those that torch lists, and are looked up anew where they may change."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import hookscope
from hookscope.layers import Modules, find_fused


def shared():
    relu = nn.ReLU()
    return nn.Sequential(relu, nn.Sequential(nn.Linear(1, 1), relu), nn.ModuleDict({"again": relu}))


def inside_itself():
    model = nn.Sequential(nn.ReLU())
    model[0].owner = model
    return model


def with_none():
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    model.register_module("gone", None)
    return model


def deep():
    model = nn.ReLU()
    for _ in range(200):
        model = nn.Sequential(model)
    return model


MODELS = {
    "alone": nn.ReLU,
    "shared": shared,
    "inside itself": inside_itself,
    "a child that is None": with_none,
    "200 levels": deep,
    "parametrized": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.ReLU()),
    "empty containers": lambda: nn.Sequential(nn.Sequential(), nn.ModuleList(), nn.ModuleDict()),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4), 2, enable_nested_tensor=False),
    "parallel": lambda: nn.DataParallel(shared()),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_names_and_their_order_are_those_of_named_modules(model):
    model = model()
    assert [(name, module) for module, name in Modules(model).names.items()] == list(model.named_modules())


def test_a_module_answers_to_all_its_names_and_is_listed_under_the_first():
    modules = Modules(shared())
    relu = modules.model[0]
    assert modules.find("2.again") is modules.find("1.1") is modules.find("0") is relu
    assert modules.names[relu] == "0"
    assert modules.find("") is modules.model
    assert modules.find("2.nothing") is modules.find("0.deeper") is None


def test_only_modules_in_a_fused_layer_have_one_around_them():
    model = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 4, batch_first=True))
    hooked = [model[0], model[1], model[1].linear1]
    found = find_fused(Modules(model), hooked)
    assert {module: layer.name for module, layer in found.items()} == {model[1]: "1", model[1].linear1: "1"}
    assert find_fused(Modules(model[0]), [model[0]]) == {}


@pytest.fixture
def walks(monkeypatch):
    """What walks through a model: a list that grows."""
    made = []
    init = Modules.__init__

    def noted(self, model):
        made.append("Modules")
        init(self, model)

    monkeypatch.setattr(Modules, "__init__", noted)
    for name in ("modules", "named_modules", "children", "named_children"):
        own = getattr(nn.Module, name)
        monkeypatch.setattr(
            nn.Module, name, lambda self, *a, own=own, name=name, **k: made.append(name) or own(self, *a, **k)
        )
    return made


@pytest.mark.parametrize("which", [(), ("",), ("**.linear1",), (nn.Linear,), (lambda name, module: True,)])
def test_making_a_capture_and_entering_it_walks_once(walks, which):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    model[1].linear1 = nn.Linear(2, 2)
    del walks[:]
    with hookscope.capture(model, *which) as seen:
        assert walks == ["Modules"]
    assert len(seen) == 0


def test_others_walk_once_too(walks):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    seen = hookscope.capture(model)
    for call in (
        lambda: hookscope.census(model),
        lambda: hookscope.find_layers(model, "0", nn.ReLU, leaves_only=True),
        lambda: hookscope.leaves(model),
        lambda: hookscope.record(model),
        lambda: hookscope.record(model, "*"),
    ):
        del walks[:]
        call()
        assert walks == ["Modules"]
    del walks[:]
    hookscope.explain(seen)  # knows what the capture knew
    assert not walks


# --- a model that changes after the capture was made


def test_layers_are_those_of_the_model_when_the_capture_was_made():
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    old = model[1]
    seen = hookscope.capture(model)
    model[1] = nn.Sigmoid()
    model.append(nn.Softplus())
    with seen:
        model(torch.ones(2))
    assert seen.order == ["0"]
    assert list(seen.uncalled) == ["1"]
    with seen:  # and so at the next entry
        model(old(torch.ones(2)))
    assert seen.order == ["1", "0"]
    assert len(hookscope.census(model, old)) == 0
    assert hookscope.capture(model).modules.names.keys() == set(model.modules())


def test_a_legacy_hook_on_a_module_that_came_later_is_noticed_by_a_recording():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    recording = hookscope.record(model)
    model[1] = nn.Tanh()
    model[1].register_backward_hook(lambda *given: None)
    with recording:
        pass
    assert any("legacy backward hook" in note for note in recording.notes)


def test_a_dynamically_quantized_layer_is_the_leaf_and_not_what_holds_its_weight():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, says torch
        net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {nn.Linear})
    assert list(hookscope.leaves(net)) == ["0", "1"]
    with hookscope.capture(net) as seen:
        net(torch.ones(1, 2))
    assert seen.order == ["0", "1"]
