"""Names, globs, types, modules and predicates pick the layers they say, or explain why not."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from hookscope.layers import LayerNotFoundError, find_layers, layer_names, leaves, tree


def names(model, *which, **options):
    return list(find_layers(model, *which, **options))


def refused(model, *which, error=LayerNotFoundError, **options):
    with pytest.raises(error) as caught:
        find_layers(model, *which, **options)
    return caught.value


def test_nothing_asked_for_is_every_leaf(net):
    assert names(net)[:4] == ["conv1", "relu", "layer1.0.conv1", "layer1.0.relu"]
    assert names(net) == list(leaves(net))
    assert "layer1" not in names(net)
    assert "" not in names(net)


def test_the_modules_are_the_models_own(net):
    assert find_layers(net, "layer1.0.conv1") == {"layer1.0.conv1": net.layer1[0].conv1}
    assert find_layers(net, "")[""] is net


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("conv*", ["conv1"]),
        ("layer1.*", ["layer1.0", "layer1.1"]),
        ("layer?", ["layer1", "layer2"]),
        ("layer[!1]", ["layer2"]),
        ("layer*.0.conv1", ["layer1.0.conv1", "layer2.0.conv1"]),
        ("*.0", ["layer1.0", "layer2.0"]),
        ("**.relu", ["relu", "layer1.0.relu", "layer1.1.relu", "layer2.0.relu"]),
        ("layer2.**", ["layer2.0", "layer2.0.conv1", "layer2.0.relu", "layer2.0.conv2"]),
        ("layer2.**.conv1", ["layer2.0.conv1"]),
        ("layer2.**.0", ["layer2.0"]),
        ("**.layer2.**.relu", ["layer2.0.relu"]),
    ],
)
def test_globs_stay_within_a_level_unless_two_stars(net, glob, expected):
    assert names(net, glob) == expected


def test_two_stars_alone_are_everything_but_the_root(net):
    assert names(net, "**") == [name for name, _ in net.named_modules() if name]
    assert "" not in names(net, "**", "*")


def test_types_modules_and_predicates(net):
    assert names(net, type(net.layer1[0])) == ["layer1.0", "layer1.1", "layer2.0"]
    assert names(net, nn.Module) == [name for name, _ in net.named_modules()]
    assert names(net, net.layer1[1].relu) == ["layer1.1.relu"]
    assert names(net, lambda name, module: name.endswith("conv2") and module.bias is not None) == [
        "layer1.0.conv2",
        "layer1.1.conv2",
        "layer2.0.conv2",
    ]


def test_a_predicate_is_asked_once_for_every_module(net):
    asked = []
    find_layers(net, lambda name, module: asked.append((name, module)) or True)
    assert asked == list(net.named_modules())


def test_several_items_join_in_the_models_order_each_module_once(net):
    picked = names(net, "fc", nn.Linear, "layer1", "conv1", net.conv1)
    assert picked == ["conv1", "layer1", "fc"]


def test_leaves_only_narrows_what_was_picked(net):
    assert names(net, "layer2.**", leaves_only=True) == ["layer2.0.conv1", "layer2.0.relu", "layer2.0.conv2"]
    error = refused(net, "layer1", leaves_only=True)
    assert str(error).startswith("'layer1' picks no leaf")
    assert error.name == "layer1"


# --- shared modules ---------------------------------------------------------------------------------


def test_a_shared_module_is_listed_once_by_its_first_name(shared):
    assert names(shared) == ["a", "enc.0"]
    assert names(shared, nn.ReLU) == ["a"]
    assert names(shared, "*") == ["a", "enc"]
    assert layer_names(shared)[shared["b"]] == "a"


def test_another_name_asked_for_is_the_key(shared):
    assert find_layers(shared, "b") == {"b": shared["a"]}
    assert names(shared, "dec.0", nn.Module) == ["", "a", "enc", "dec.0"]
    assert names(shared, "dec.*") == ["dec.0"]
    assert names(shared, "enc.*", "dec.0") == ["dec.0"]  # a name says more than a glob
    assert names(shared, "b", "a") == ["b"]  # the first one asked for


def test_many_paths_to_few_modules_and_a_module_inside_itself_come_to_an_end():
    doubled = nn.ReLU()
    for _ in range(60):
        doubled = nn.Sequential(doubled, doubled)
    assert len(find_layers(doubled, "**.0")) == 60
    assert len(tree(doubled).splitlines()) == 121
    loop = nn.Sequential(nn.ReLU())
    loop.add_module("up", loop)
    assert names(loop, "**.up") == ["up"]
    assert names(loop, "up.up.0") == ["up.up.0"]
    assert tree(loop).splitlines()[-1].endswith("= (root)")


# --- nothing found ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("fcc", "fc"),
        ("Layer1.0.Conv1", "layer1.0.conv1"),
        ("LAYER2", "layer2"),
        ("layer1[0]", "layer1.0"),
        ("layer1[0].conv1", "layer1.0.conv1"),
        ("layer1/0/conv1", "layer1.0.conv1"),
        ("model.layer1", "layer1"),
        ("module.model.layer1.0", "layer1.0"),
        ("avgpool", "avg_pool"),
        ("avg-pool", "avg_pool"),
        ("backbone.stage.fc", "fc"),
        ("fc.weight", "fc"),
        ("model.layer2.*", "layer2.*"),
        ("conv2*", "**.conv2*"),
        ("layer3.*", "layer2.*"),
    ],
)
def test_an_unknown_name_suggests_what_was_meant(net, asked, meant):
    error = refused(net, asked)
    assert error.suggestions[0] == meant
    assert error.name == asked
    assert str(error).startswith(f"no layer {asked!r}; did you mean {meant!r}")
    assert find_layers(net, meant)


def test_the_message_reads_as_a_question(net):
    error = refused(nn.ModuleDict({"layer4": nn.ReLU()}), "layer5")
    assert (
        str(error)
        == "no layer 'layer5'; did you mean 'layer4'? See https://hookscope.github.io/hookscope/errors/no_layer.html"
    )
    error = refused(net, "layer9")
    assert str(error).startswith("no layer 'layer9'; did you mean 'layer2', 'layer1' or 'layer2.0'? See")
    deep = nn.ModuleDict({"transformer": nn.ModuleDict({"h": nn.ModuleList([nn.ReLU() for _ in range(4)])})})
    assert str(refused(deep, "h.3")).startswith("no layer 'h.3'; did you mean 'transformer.h.3'")
    error = refused(nn.Sequential(*map(nn.Linear, [1] * 3, [1] * 3)), "00")
    assert str(error).startswith("no layer '00'; did you mean '0'? See")


def test_of_names_that_differ_in_a_dash_the_first_is_suggested():
    model = nn.ModuleDict({"a_b": nn.ReLU(), "a-b": nn.ReLU()})
    assert refused(model, "ab").suggestions == ("a_b",)


def test_a_number_alone_is_no_likeness():
    error = refused(nn.Sequential(nn.Sequential(nn.ReLU())), "encoder.blocks.0")
    assert error.suggestions == ()


def test_suggestions_stop_at_three(net):
    error = refused(net, "layer3.0.conv1")
    assert len(error.suggestions) == 3
    assert "', '" in str(error)
    assert "' or '" in str(error)


def test_with_nothing_near_it_says_how_to_list_the_layers(net):
    error = refused(net, "xyzzy")
    assert error.suggestions == ()
    assert "none of the 18 layers" in str(error)
    assert "hookscope.tree(model)" in str(error)
    assert refused(net, "xy*zzy").suggestions == ()
    assert "has no submodules" in str(refused(nn.ReLU(), "relu"))


def test_a_trailing_or_doubled_dot_is_not_forgiven_silently(net):
    assert refused(net, "layer1.").suggestions == ("layer1",)
    assert refused(net, "layer1..0").suggestions == ("layer1.0",)


def test_a_type_that_is_not_there_names_those_that_are(net):
    error = refused(net, nn.Conv1d)
    assert str(error).startswith("no layer of type Conv1d; the types in this model are Conv2d, ReLU, ")
    assert error.suggestions[0] == "Conv2d"


def test_a_module_of_another_model_is_not_found(net):
    assert "this Conv2d is not a module of this Net" in str(refused(net, copy.deepcopy(net).conv1))


@pytest.mark.parametrize("item", [3, None, b"conv1", ["conv1"], 1.5, ("conv1", "fc")])
def test_an_item_of_a_wrong_kind_is_named(net, item):
    error = refused(net, item, error=TypeError)
    assert repr(item) in str(error)
    assert type(item).__name__ in str(error)
    assert ("*names" in str(error)) == isinstance(item, (list, tuple))


@pytest.mark.parametrize("call", [find_layers, leaves, layer_names, tree])
def test_something_else_than_a_module_is_refused(net, call):
    with pytest.raises(TypeError, match="not str"):
        call("resnet18")
    with pytest.raises(TypeError, match=r"class Net. Create one: Net\("):
        call(type(net))


def test_a_predicate_that_raises_names_the_layer_and_the_reason(net):
    error = refused(net, lambda name, module: name == "" or module.kernel_size, error=RuntimeError)
    assert "on layer 'relu' (ReLU)" in str(error)
    assert "kernel_size" in str(error)
    assert isinstance(error.__cause__, AttributeError)


def test_control_c_in_a_predicate_is_not_swallowed(net):
    def stop(name, module):
        raise KeyboardInterrupt

    refused(net, stop, error=KeyboardInterrupt)


def test_the_error_survives_pickling(net):
    error = pickle.loads(pickle.dumps(refused(net, "layer9")))
    assert (error.name, error.suggestions) == ("layer9", ("layer2", "layer1", "layer2.0"))
    assert isinstance(error, LookupError)


# --- leaves -----------------------------------------------------------------------------------------


def test_a_model_without_children_is_its_own_leaf():
    relu = nn.ReLU()
    assert leaves(relu) == {"": relu}
    assert find_layers(relu) == {"": relu}


def test_containers_that_are_never_called_are_no_leaves():
    model = nn.ModuleDict(
        {
            "list": nn.ModuleList(),
            "dict": nn.ModuleDict(),
            "params": nn.ParameterList([nn.Parameter(torch.ones(1))]),
            "skip": nn.Sequential(),
            "relu": nn.ReLU(),
        }
    )
    assert list(leaves(model)) == ["skip", "relu"]
    assert leaves(nn.ModuleList()) == {}


def test_a_parametrized_module_stays_a_leaf():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.ReLU())
    assert list(leaves(model)) == ["0", "1"]
    assert names(model, nn.Linear) == ["0"]
    assert names(model, "0.parametrizations.weight.*") == ["0.parametrizations.weight.0"]


def test_names_may_hold_glob_signs_and_a_child_may_be_none():
    model = nn.ModuleDict({"a*b": nn.ReLU(), "axb": nn.Tanh()})
    model.register_module("gone", None)
    assert names(model, "a*b") == ["a*b"]
    assert names(model, "a?b") == ["a*b", "axb"]
    assert names(model, "*") == ["a*b", "axb"]
    refused(model, "gone")
    refused(model, "gone.deeper")


def test_wrapped_and_scripted_models():
    net = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Sequential(nn.ReLU()))
    parallel = nn.DataParallel(net)
    assert refused(parallel, "1.0").suggestions == ("module.1.0",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(net)
        traced = torch.jit.trace(net, torch.ones(1, 1, 3, 3))
    for model in (scripted, traced):
        assert names(model) == ["0", "1.0"]
        assert names(model, "**.0") == ["0", "1.0"]
        assert names(model, "1.0", getattr(model, "1")) == ["1", "1.0"]
        assert "TorchScript" in str(refused(model, nn.Conv2d))
        assert tree(model) == tree(net)
    compiled = nn.ModuleDict({"_orig_mod": net})  # the names of a torch.compile()d model, without its 5 s import
    assert names(compiled, nn.Conv2d) == ["_orig_mod.0"]
    assert refused(compiled, "1.0").suggestions == ("_orig_mod.1.0",)


def test_five_thousand_modules_are_no_trouble():
    model = nn.Sequential(*(nn.Sequential(nn.Identity(), nn.ReLU(), nn.Identity(), nn.Tanh()) for _ in range(1000)))
    assert len(tree(model).splitlines()) == 5001
    assert len(names(model, "**.1")) == 1001
    assert len(names(model, *names(model)[:500])) == 500
    assert refused(model, "999.9").suggestions
