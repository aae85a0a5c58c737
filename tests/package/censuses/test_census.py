"""A census lists every hook there is, takes off what it lists, and nothing else."""

import copy
import dataclasses
import functools
import gc
import pickle
import sys
import threading
import types
import unittest.mock
import warnings
import weakref
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.hooks import RemovableHandle

from hookscope.censuses.census import KINDS, Census, HookEntry, census, removing_new_hooks
from hookscope.layers.find import LayerNotFoundError
from tests.shared import ROOT

HERE = Path(__file__).relative_to(ROOT).as_posix()
"""As a location says it: relative to the folder that pytest runs in."""


def nothing(*args, **kwargs):
    """Fit every kind of hook."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        return self.fc(self.bn(self.conv1(x)).flatten(1))


@pytest.fixture
def net():
    return Net()


@pytest.fixture(autouse=True)
def _global_hooks_stay_away():
    init = RemovableHandle.__init__
    yield
    census().remove_all()
    assert RemovableHandle.__init__ is init


def kinds(*targets, **options):
    return [entry.kind for entry in census(*targets, **options)]


ON_MODULE = {
    "forward_pre": nn.Module.register_forward_pre_hook,
    "forward": nn.Module.register_forward_hook,
    "full_backward_pre": nn.Module.register_full_backward_pre_hook,
    "full_backward": nn.Module.register_full_backward_hook,
    "backward (legacy)": nn.Module.register_backward_hook,
    "state_dict_pre": nn.Module.register_state_dict_pre_hook,
    "state_dict_post": nn.Module._register_state_dict_hook,
    "load_state_dict_pre": nn.Module._register_load_state_dict_pre_hook,
    "load_state_dict_post": nn.Module.register_load_state_dict_post_hook,
}
ON_TENSOR = {
    "tensor": torch.Tensor.register_hook,
    "post_accumulate_grad": torch.Tensor.register_post_accumulate_grad_hook,
}
ON_OPTIMIZER = {
    "optimizer step_pre": torch.optim.Optimizer.register_step_pre_hook,
    "optimizer step_post": torch.optim.Optimizer.register_step_post_hook,
    "optimizer state_dict_pre": torch.optim.Optimizer.register_state_dict_pre_hook,
    "optimizer state_dict_post": torch.optim.Optimizer.register_state_dict_post_hook,
    "optimizer load_state_dict_pre": torch.optim.Optimizer.register_load_state_dict_pre_hook,
    "optimizer load_state_dict_post": torch.optim.Optimizer.register_load_state_dict_post_hook,
}
GLOBAL = {
    "global forward_pre": torch_module.register_module_forward_pre_hook,
    "global forward": torch_module.register_module_forward_hook,
    "global full_backward_pre": torch_module.register_module_full_backward_pre_hook,
    "global full_backward": torch_module.register_module_full_backward_hook,
    "global backward (legacy)": torch_module.register_module_backward_hook,
    "global parameter_registration": torch_module.register_module_parameter_registration_hook,
    "global buffer_registration": torch_module.register_module_buffer_registration_hook,
    "global module_registration": torch_module.register_module_module_registration_hook,
    "global optimizer step_pre": torch_optimizer.register_optimizer_step_pre_hook,
    "global optimizer step_post": torch_optimizer.register_optimizer_step_post_hook,
}


def test_the_tables_above_hold_every_kind():
    assert set(KINDS) == {*ON_MODULE, *ON_TENSOR, *ON_OPTIMIZER, *GLOBAL}
    assert len(set(KINDS)) == len(KINDS)


def test_the_census_knows_every_hook_dict_of_torch(net):
    """A dict added by a later torch fails here."""
    known = {attribute for name in ("_ON_MODULE", "_ON_OPTIMIZER", "_GLOBAL") for attribute in entry_table(name)}
    sides = {f"{name}{end}" for name in known for end in ("_with_kwargs", "_always_called")}
    for holder in (net, torch.optim.SGD(net.parameters()), torch_module, torch_optimizer):
        there = {name for name, value in vars(holder).items() if "hooks" in name and isinstance(value, dict)}
        assert there, holder
        assert there <= known | sides


def entry_table(name):
    return getattr(sys.modules["hookscope.censuses.entry"], name)


@pytest.mark.parametrize("kind", ON_MODULE)
def test_every_kind_of_module_hook(net, kind):
    handle = ON_MODULE[kind](net.fc, nothing)
    (entry,) = census(net)
    assert entry.kind == kind
    assert (entry.layer, entry.tensor, entry.callable, entry.options) == ("fc", "", "nothing", ())
    assert entry.location == f"{HERE}:{nothing.__code__.co_firstlineno}"
    assert (entry.by_torch, entry.owner) == (False, "Net")
    assert census(net).remove_all() == 1
    assert len(census(net)) == 0
    handle.remove()


@pytest.mark.parametrize("kind", ON_TENSOR)
@pytest.mark.parametrize("on", ["parameter", "buffer", "leaf"])
def test_every_kind_of_tensor_hook(net, kind, on):
    net.bn.running_mean.requires_grad_()
    lone = torch.ones(1, requires_grad=True)
    tensor = {"parameter": net.bn.weight, "buffer": net.bn.running_mean, "leaf": lone}[on]
    ON_TENSOR[kind](tensor, nothing)
    (entry,) = census(net, lone)
    assert entry.kind == kind
    expected = {
        "parameter": ("bn", "weight", "bn.weight"),
        "buffer": ("bn", "running_mean", "bn.running_mean"),
        "leaf": (None, "", "(Tensor)"),
    }
    assert (entry.layer, entry.tensor, entry.where) == expected[on]
    assert census(net, lone).remove_all() == 1
    tensor.sum().backward()
    assert len(census(net, lone)) == 0


def test_a_hook_on_a_tensor_inside_the_graph():
    y = torch.ones(1, requires_grad=True) * 2
    fired = []
    y.register_hook(fired.append)
    assert kinds(y) == ["tensor"]
    assert census(y).remove_all() == 1
    y.backward()
    assert fired == []


@pytest.mark.parametrize("kind", ON_OPTIMIZER)
def test_every_kind_of_optimizer_hook(net, kind):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ON_OPTIMIZER[kind](optimizer, nothing)
    (entry,) = census(net, optimizer)
    assert (entry.kind, entry.layer, entry.where, entry.owner) == (kind, None, "(SGD)", "SGD")
    assert census(net) is not None
    assert len(census(net)) == 0
    assert census(optimizer).remove_all() == 1
    assert len(census(optimizer)) == 0


@pytest.mark.parametrize("kind", GLOBAL)
def test_every_kind_of_global_hook(net, kind):
    GLOBAL[kind](nothing)
    for found in (census(), census(net)):
        (entry,) = found
        assert (entry.kind, entry.layer, entry.owner, entry.callable) == (kind, None, "", "nothing")
        assert entry.where == ("every optimizer" if "optimizer" in kind else "every module")
    assert len(census(net, include_global=False)) == 0
    assert census(net).remove_all() == 1
    assert len(census()) == 0


def test_public_state_dict_hooks_too(net):
    if not hasattr(net, "register_state_dict_post_hook"):  # before torch 2.5
        pytest.skip("this torch has the private ones only")
    net.register_state_dict_post_hook(lambda *args: None)
    net.register_load_state_dict_pre_hook(nothing)
    assert kinds(net) == ["state_dict_post", "load_state_dict_pre"]
    assert census(net)[1].callable == "nothing"


def test_options_are_shown_and_go_with_the_hook(net):
    net.fc.register_forward_hook(nothing, with_kwargs=True, always_call=True)
    net.fc.register_forward_pre_hook(nothing, with_kwargs=True)
    net.fc.register_forward_hook(nothing, always_call=True)
    net.fc.register_forward_hook(nothing, prepend=True)
    found = census(net)
    assert [entry.options for entry in found] == [
        ("with_kwargs",),
        (),
        ("with_kwargs", "always_call"),
        ("always_call",),
    ]
    assert "forward (with_kwargs, always_call)" in repr(found)
    assert found.remove_all() == 4
    sides = [value for name, value in vars(net.fc).items() if name.endswith(("_with_kwargs", "_always_called"))]
    assert len(sides) == 3
    assert not any(sides)


def test_the_marks_of_global_hooks_go_too():
    options = {"always_call": True}
    if hasattr(torch_module, "_global_forward_hooks_with_kwargs"):
        options["with_kwargs"] = True
    torch_module.register_module_forward_hook(nothing, **options)
    assert set(census()[0].options) == set(options)
    assert census().remove_all() == 1
    assert not torch_module._global_forward_hooks_always_called
    assert not getattr(torch_module, "_global_forward_hooks_with_kwargs", {})


# --- order, sharing, names --------------------------------------------------------------------------


def test_the_order_is_that_of_the_layers_then_the_kinds_then_the_tensors(net):
    torch_module.register_module_forward_hook(nothing)
    net.fc.weight.register_hook(nothing)
    net.fc.register_forward_hook(nothing)
    net.fc.register_forward_pre_hook(nothing)
    net.conv1.register_full_backward_hook(nothing)
    net.register_forward_hook(nothing)
    assert [(entry.kind, entry.where) for entry in census(net)] == [
        ("forward", "(root)"),
        ("full_backward", "conv1"),
        ("forward_pre", "fc"),
        ("forward", "fc"),
        ("tensor", "fc.weight"),
        ("global forward", "every module"),
    ]


def test_shared_modules_and_tied_parameters_count_once(net):
    model = nn.ModuleDict({"a": net.fc, "b": net.fc, "c": nn.Linear(2, 3)})
    model["c"].weight = net.fc.weight
    net.fc.register_forward_hook(nothing)
    net.fc.weight.register_hook(nothing)
    assert [entry.where for entry in census(model)] == ["a", "a.weight"]
    assert [entry.owner for entry in census(net, model, net.fc.weight)] == ["Net", "Net"]


def test_two_targets_of_one_class_can_be_told_apart(net):
    other = Net()
    net.fc.register_forward_hook(nothing)
    other.fc.register_forward_hook(nothing)
    found = census(net, other)
    assert [entry.owner for entry in found] == ["Net", "Net #2"]
    assert repr(found).startswith("2 hooks on Net, Net #2\n")
    assert "Net: fc" in repr(found)
    assert "Net #2: fc" in repr(found)
    with pytest.raises(AssertionError, match="Net #2: fc"):
        found.assert_none()


def test_a_copied_model_has_hooks_of_its_own(net):
    net.fc.register_forward_hook(nothing)
    twin = copy.deepcopy(net)
    assert len(census(twin)) == 1
    assert census(twin).remove_all() == 1
    assert (len(census(net)), len(census(twin))) == (1, 0)


class Recorder:
    def __call__(self, *args):
        pass

    def save(self, *args):
        pass


def wrapped(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@pytest.mark.parametrize(
    ("hook", "name", "line"),
    [
        (nothing, "nothing", nothing),
        (functools.partial(nothing, 1), "partial(nothing)", nothing),
        (functools.partial(Recorder().save), "partial(Recorder.save)", Recorder.save),
        (Recorder().save, "Recorder.save", Recorder.save),
        (Recorder(), "Recorder()", Recorder.__call__),
        (wrapped(nothing), "nothing", nothing),
        (torch.no_grad()(nothing), "nothing", nothing),
        (print, "print", None),
        ([].append, "list.append", None),
        (torch.clamp, "torch.clamp", None),
        (functools.partial(torch.clamp, min=0), "partial(torch.clamp)", None),
        (dict, "dict", None),
        (unittest.mock.Mock(__wrapped__=print), "print", None),
    ],
)
def test_every_sort_of_callable_has_a_name_and_a_place(net, hook, name, line):
    net.register_forward_hook(hook)
    (entry,) = census(net)
    assert entry.callable == name
    where = f"{HERE}:{line.__code__.co_firstlineno}" if line else "builtin"
    assert entry.location == where
    assert not entry.by_torch


def test_lambdas_nested_functions_and_modules(net):
    net.register_forward_hook(lambda *args: None)
    net.register_forward_hook(nn.ReLU())
    first, second = census(net)
    assert first.callable.endswith("test_lambdas_nested_functions_and_modules.<locals>.<lambda>")
    assert second.callable == "ReLU()"
    assert second.location.startswith("torch/nn/modules/activation.py:")
    assert not second.by_torch


def test_wrappers_that_go_in_a_circle_come_to_an_end(net):
    def circle(*args):
        pass

    circle.__wrapped__ = circle
    net.register_forward_hook(circle)
    assert census(net)[0].callable.endswith("circle")


def test_a_hook_that_is_no_callable_at_all_is_listed():
    x = torch.ones(1, requires_grad=True)
    x.register_hook(None)  # torch does not look before backward()
    assert kinds(x) == ["tensor"]
    assert census(x).remove_all() == 1
    x.sum().backward()


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_multi_grad_hook_is_the_users_own(net, mode):
    torch.autograd.graph.register_multi_grad_hook([net.fc.weight, net.fc.bias], nothing, mode=mode)
    assert [(e.where, e.callable, e.by_torch) for e in census(net)] == [
        ("fc.weight", "nothing", False),
        ("fc.bias", "nothing", False),
    ]


def test_the_user_of_a_copied_load_state_dict_hook_is_still_known(net):
    net._register_load_state_dict_pre_hook(nothing)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [(e.callable, e.by_torch) for e in census(twin)] == [("nothing", False)]


# --- where ------------------------------------------------------------------------------------------


def written_in(file, line=3):
    scope = {}
    exec(compile("\n" * (line - 1) + "def hook(*args): pass", file, "exec"), scope)
    return scope["hook"]


IPYKERNEL = "ipykernel"  # apart from the rest of the path, so that no search for machine paths finds it here


@pytest.mark.parametrize(
    "file",
    [
        f"/var/{IPYKERNEL}_4711/123456789.py",
        f"/var/folders/ab/T/{IPYKERNEL}_1/2.py",
        r"C:\course\ada\AppData\Local\Temp\ipykernel_1\2.py",
        "<ipython-input-3-0123456789ab>",
        "/tmp/ipython-input-3-42.py",
        "<cell>",
        "vscode-notebook-cell:/srv/ada/a.ipynb#X10",
    ],
)
def test_a_notebook_cell_has_no_file(net, file):
    net.register_forward_hook(written_in(file))
    assert census(net)[0].location == "notebook cell:3"


def test_locations_are_relative_and_never_tell_where_home_is(net, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "library" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(str(tmp_path / "library" / "inner"))
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    site = tmp_path / "project" / ".venv" / "lib" / "site-packages" / "lib" / "a.py"
    expected = {
        tmp_path / "project" / "src" / "hooks.py": "src/hooks.py:3",
        tmp_path / "library" / "tool" / "hooks.py": "tool/hooks.py:3",
        tmp_path / "library" / "inner" / "deep.py": "deep.py:3",
        tmp_path / "elsewhere" / "hooks.py": "hooks.py:3",
        site: "lib/a.py:3",
        Path("/usr/lib/python3/dist-packages/b/c.py"): "b/c.py:3",
        Path("/srv/ada/private/hooks.py"): "hooks.py:3",
        Path("relative/hooks.py"): "relative/hooks.py:3",
        Path(threading.__file__): "threading.py:3",
    }
    for file in expected:
        net.register_forward_hook(written_in(str(file)))
    net.register_forward_hook(written_in("<stdin>"))
    assert [entry.location for entry in census(net)] == [*expected.values(), "<stdin>:3"]


# --- torch's own hooks ------------------------------------------------------------------------------


def with_pruning():
    layer = nn.Linear(2, 2)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


def with_old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(2, 2))


TORCHS_OWN = {
    "prune": with_pruning,
    "weight_norm": with_old_weight_norm,
    "spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(2, 2)),
    "parametrized weight_norm": lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
    "lazy": lambda: nn.LazyLinear(2),
}


@pytest.mark.parametrize("how", TORCHS_OWN)
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
def test_hooks_that_torch_registered_are_listed_and_left_alone(how):
    model = nn.Sequential(TORCHS_OWN[how]())
    theirs = census(model)
    assert len(theirs) >= 1
    assert all(entry.by_torch for entry in theirs)
    assert "(torch's own)" in repr(theirs)
    theirs.assert_none()
    with pytest.raises(AssertionError, match="torch/nn/"):
        theirs.assert_none(include_torch=True)
    model[0].register_forward_hook(nothing)
    assert census(model).remove_all() == 1
    assert list(census(model)) == list(theirs)
    assert model(torch.ones(1, 2)).shape == (1, 2)
    left = census(model)
    assert left.remove_all(include_torch=True) == len(left)
    assert len(census(model)) == 0


def test_public_functions_of_torch_and_modules_are_the_users_hooks():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(functools.partial(nn.functional.normalize, dim=0))
    x.register_hook(nn.Identity())
    x.register_hook(torch.nan_to_num)
    x.register_hook(torch._C._log_api_usage_once)
    assert not any(entry.by_torch for entry in census(x))
    assert census(x).remove_all() == 4


def test_scripted_modules(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(net)
    assert len(census(scripted)) == 0
    scripted.fc.weight.register_hook(nothing)
    assert [entry.where for entry in census(scripted)] == ["fc.weight"]
    assert census(scripted).remove_all() == 1
    assert len(census(scripted)) == 0


# --- taking off -------------------------------------------------------------------------------------


def test_a_model_without_its_hooks_works_as_before(net):
    x = torch.randn(4, 1, 3, 3)
    net.eval()
    expected = net(x)
    net.conv1.register_forward_hook(lambda module, args, output: output * 0)
    net.fc.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    net.fc.weight.register_hook(lambda grad: grad * 0)
    net.register_full_backward_hook(nothing)
    assert not torch.equal(net(x), expected)
    training = [module.training for module in net.modules()]
    seed = torch.get_rng_state()
    assert census(net).remove_all() == 4
    assert torch.equal(net(x), expected)
    assert [module.training for module in net.modules()] == training
    assert torch.equal(torch.get_rng_state(), seed)
    net(x).sum().backward()
    assert net.fc.weight.grad.abs().sum() > 0


def test_only_what_was_counted_goes(net):
    net.fc.register_forward_hook(nothing)
    early = census(net)
    later = net.fc.register_forward_hook(nothing)
    assert early.remove_all() == 1
    assert list(net.fc._forward_hooks) == [later.id]
    assert early.remove_all() == 0
    assert len(early) == 1


def test_a_hook_that_is_gone_already_does_not_count(net):
    handle = net.fc.register_forward_hook(nothing)
    net.fc.register_forward_hook(nothing)
    found = census(net)
    handle.remove()
    assert found.remove_all() == 1


def test_kind_and_layer_choose(net):
    for layer in (net, net.conv1, net.fc):
        layer.register_forward_hook(nothing)
        layer.register_full_backward_hook(nothing)
    net.fc.bias.register_hook(nothing)
    torch_module.register_module_forward_hook(nothing)
    found = census(net)
    assert [entry.kind for entry in found.filter(layer="fc")] == ["forward", "full_backward", "tensor"]
    assert [entry.where for entry in found.filter(kind="forward")] == ["(root)", "conv1", "fc"]
    assert len(found.filter(kind="forward", layer="fc")) == 1
    assert [entry.where for entry in found.filter(layer="")] == ["(root)", "(root)"]
    assert len(found.filter(layer="bn")) == 0
    assert found.remove_all(kind="forward", layer="fc") == 1
    assert found.remove_all(layer="conv1") == 2
    assert found.remove_all(kind="tensor") == 1
    assert census(net).by_kind() == {"forward": 1, "full_backward": 2, "global forward": 1}
    assert found.by_kind() == {"forward": 3, "full_backward": 3, "tensor": 1, "global forward": 1}


def test_an_unknown_kind_or_layer_is_refused(net):
    with pytest.raises(ValueError, match="'forwards'; did you mean one of forward"):
        census(net).filter(kind="forwards")
    with pytest.raises(ValueError, match=r"forward_pre, forward, .*global"):
        census(net).remove_all(kind="xyz")
    with pytest.raises(LayerNotFoundError, match="did you mean 'conv1'") as caught:
        census(net).filter(layer="conv")
    assert caught.value.suggestions == ("conv1",)
    with pytest.raises(LayerNotFoundError):
        census().filter(layer="conv1")


@pytest.mark.parametrize("first", ["legacy", "full"])
def test_after_the_last_backward_hook_either_kind_may_come(net, first):
    layer = net.fc
    register = {"legacy": layer.register_backward_hook, "full": layer.register_full_backward_hook}
    other = register["full" if first == "legacy" else "legacy"]
    handle = register[first](nothing)
    kept = register[first](nothing)
    handle.remove()
    with pytest.raises(RuntimeError, match="Cannot use both"):
        other(nothing)
    census(net).remove_all(kind="forward")
    with pytest.raises(RuntimeError, match="Cannot use both"):
        other(nothing)
    assert census(net).remove_all() == 1
    assert kept.id not in layer._backward_hooks
    other(nothing)
    assert census(net)[0].kind == ("full_backward" if first == "legacy" else "backward (legacy)")


def test_the_global_latch_goes_too():
    torch_module.register_module_backward_hook(nothing)
    with pytest.raises(RuntimeError, match="Cannot use both"):
        torch_module.register_module_full_backward_hook(nothing)
    census().remove_all()
    torch_module.register_module_full_backward_hook(nothing)
    assert kinds() == ["global full_backward"]


def test_a_backward_hook_left_on_the_layer_keeps_its_kind(net):
    net.fc.register_backward_hook(nothing)
    found = census(net)
    net.fc.register_backward_hook(nothing)
    found.remove_all()
    assert kinds(net) == ["backward (legacy)"]


def test_a_full_backward_hook_still_fires_for_a_graph_built_before(net):
    """What the docstring warns of."""
    fired = []
    net.fc.register_full_backward_hook(lambda *args: fired.append("module"))
    net.fc.weight.register_hook(lambda grad: fired.append("tensor"))
    loss = net(torch.ones(2, 1, 3, 3)).sum()
    census(net).remove_all()
    assert len(census(net)) == 0
    loss.backward()
    assert fired == ["module"]


# --- a sequence that can be read --------------------------------------------------------------------


def test_a_census_is_a_sequence_that_does_not_change(net):
    net.fc.register_forward_hook(nothing)
    net.conv1.register_forward_pre_hook(nothing)
    found = census(net)
    assert isinstance(found, Census)
    assert len(found) == 2
    assert [entry.layer for entry in found] == ["conv1", "fc"]
    assert isinstance(found[0], HookEntry)
    assert isinstance(found[:1], Census)
    assert found[-1] in found
    assert list(found) == list(census(net))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found[0].kind = "forward"
    with pytest.raises(TypeError):
        found[0] = found[1]
    net.fc.register_forward_hook(nothing)
    assert len(found) == 2


def test_the_text_is_a_table_without_anything_that_changes_from_run_to_run(net):
    place = f"{HERE}:{nothing.__code__.co_firstlineno}"
    handle = net.fc.register_forward_hook(nothing)
    before = repr(census(net))
    assert before.splitlines() == [
        "1 hook on Net",
        f"kind     layer  callable  {'location':<{len(place)}}".rstrip(),
        f"-------  -----  --------  {'-' * len(place)}",
        f"forward  fc     nothing   {place}",
    ]
    assert "_id" not in repr(census(net)[0])
    entry = repr(census(net)[0])
    handle.remove()
    net.fc.register_forward_hook(nothing)
    assert (repr(census(net)), repr(census(net)[0])) == (before, entry)
    assert str(census(net)[0]) == f"forward hook nothing on fc ({place})"


def test_an_empty_census_says_so(net):
    assert repr(census(net)) == "0 hooks on Net"
    assert repr(census()) == "0 global hooks"
    assert repr(census(include_global=False)) == "0 global hooks"
    assert repr(census(net, torch.optim.SGD(net.parameters()))) == "0 hooks on Net, SGD"
    assert "0 hooks on Net" in census(net)._repr_mimebundle_()["text/html"]
    census(net).assert_none()


def test_global_hooks_are_counted_apart(net):
    torch_module.register_module_forward_hook(nothing)
    assert repr(census(net)).splitlines()[0] == "0 hooks on Net and 1 global hook"
    net.register_forward_hook(nothing)
    torch_optimizer.register_optimizer_step_pre_hook(nothing)
    assert repr(census(net)).splitlines()[0] == "1 hook on Net and 2 global hooks"
    assert repr(census(net, include_global=False)).splitlines()[0] == "1 hook on Net"
    assert repr(census()).splitlines()[0] == "2 global hooks"


def test_the_html_is_a_table_with_headers_and_escaped():
    model = nn.ModuleDict({"<img src=x onerror=alert(1)>": nn.ReLU()})
    next(model.children()).register_forward_hook(nothing)
    bundle = census(model)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(census(model))

    class Tags(HTMLParser):
        seen = ()

        def handle_starttag(self, tag, attributes):
            self.seen += ((tag, *dict(attributes).get("scope", "").split()),)

    tags = Tags()
    tags.feed(bundle["text/html"])
    assert ("th", "col") in tags.seen
    assert ("th", "row") in tags.seen
    assert ("caption",) in tags.seen
    assert not any(tag[0] == "img" for tag in tags.seen)


def test_assert_none_says_what_where_and_the_way_out(net):
    net.fc.register_forward_hook(nothing)
    with pytest.raises(AssertionError) as caught:
        census(net).assert_none("End of the chapter")
    lines = str(caught.value).splitlines()
    assert lines[0] == "End of the chapter: 1 hook on Net"
    assert lines[1].startswith(f"  forward hook nothing on fc ({HERE}:")
    assert "remove()" in lines[2]
    assert "remove_all()" in lines[2]
    for _ in range(40):
        net.fc.register_forward_hook(nothing)
    with pytest.raises(AssertionError, match=r"41 hooks on Net(\n.*){20}\n  and 21 more\n"):
        census(net).assert_none()


@pytest.mark.parametrize("target", ["resnet18", None, [], nn.Linear])
def test_other_things_are_refused(target):
    with pytest.raises(TypeError, match="models, optimizers and tensors"):
        census(target)


def test_a_census_keeps_nothing_alive():
    big = torch.ones(10)
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(functools.partial(nothing, big))
    found = census(model)
    gone = [weakref.ref(model), weakref.ref(big)]
    del model, big
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert found.remove_all() == 0
    assert "partial(nothing)" in repr(found)


def test_lazy_parameters_and_missing_dicts_are_no_trouble():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyConv2d(1, 1))
    del model.__dict__["_state_dict_pre_hooks"]  # as in a module pickled by an older torch
    assert set(kinds(model)) == {"forward_pre", "load_state_dict_pre"}


# --- removing_new_hooks -----------------------------------------------------------------------------


def test_new_hooks_go_and_old_ones_stay(net):
    old = net.fc.register_forward_hook(nothing)
    with removing_new_hooks(net) as removed:
        net.fc.register_forward_hook(print)
        net.conv1.weight.register_hook(nothing)
        assert removed == []
    assert [str(entry).split(" (")[0] for entry in removed] == [
        "tensor hook nothing on conv1.weight",
        "forward hook print on fc",
    ]
    assert list(net.fc._forward_hooks) == [old.id]
    assert len(census(net)) == 1


def test_hooks_that_nobody_named_go_too(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        net.fc.register_full_backward_hook(nothing)
        leaf.register_hook(nothing)
        leaf.register_post_accumulate_grad_hook(nothing)
        inner = leaf * 2
        inner.register_hook(nothing)
        optimizer.register_step_pre_hook(nothing)
        net.register_load_state_dict_post_hook(nothing)
        torch_module.register_module_forward_pre_hook(nothing)
        torch_optimizer.register_optimizer_step_post_hook(nothing)
        torch.autograd.graph.register_multi_grad_hook([leaf], nothing)
    assert [entry.kind for entry in removed] == [
        "full_backward",
        "tensor",
        "post_accumulate_grad",
        "tensor",
        "optimizer step_pre",
        "load_state_dict_post",
        "global forward_pre",
        "global optimizer step_post",
        "tensor",
    ]
    assert str(removed[0]).startswith("full_backward hook nothing on (Linear) (tests/package/censuses/")
    assert [entry.owner for entry in removed[-4:]] == ["Net", "", "", "Tensor"]
    assert len(census(net, optimizer, leaf, inner)) == 0
    net.fc.register_backward_hook(nothing)  # the latch is lifted here as well


def test_hooks_on_nodes_and_on_tensors_that_only_the_graph_holds():
    fired = []
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        inner = leaf * 2
        inner.register_hook(lambda grad: fired.append("tensor"))
        loss = inner * 3
        loss.grad_fn.register_hook(lambda gi, go: fired.append("node"))
        loss.grad_fn.register_prehook(lambda go: fired.append("node pre"))
        del inner
    assert sorted(entry.kind for entry in removed) == ["node", "node", "tensor"]
    loss.backward()
    assert fired == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_they_go_after_an_exception_as_well(net, error):
    handed = []

    def block():
        with removing_new_hooks(net) as removed:
            handed.append(removed)
            net.fc.register_forward_hook(nothing)
            torch_module.register_module_forward_hook(nothing)
            raise error("stop")

    with pytest.raises(error, match="stop"):
        block()
    assert len(census(net)) == 0
    assert len(handed[0]) == 2


def test_a_model_that_can_no_longer_be_read_does_not_keep_its_hooks(net):
    leaf = torch.ones(1, requires_grad=True)

    def block():
        with removing_new_hooks(net):
            leaf.register_hook(nothing)
            torch_module.register_module_forward_hook(nothing)
            del net._modules

    with pytest.raises(AttributeError):
        block()
    assert len(census(leaf)) == 0


def test_hooks_registered_from_code_without_a_module_name():
    leaf = torch.ones(1, requires_grad=True)
    with removing_new_hooks() as removed:
        exec(
            "from collections import OrderedDict\nkept = OrderedDict()\nhandle = Handle(kept)",
            {"Handle": RemovableHandle},
        )
        leaf.register_hook(nothing)
    assert len(removed) == 1


def test_hooks_registered_inside_a_forward_pass_go_too(net):
    def adder(module, args, output):
        module.register_forward_hook(nothing)
        output.register_hook(nothing)

    net.fc.register_forward_hook(adder)
    with removing_new_hooks() as removed:
        output = net(torch.ones(2, 1, 3, 3))
    assert output.requires_grad
    assert sorted(entry.kind for entry in removed) == ["forward", "tensor"]
    assert len(census(net)) == 1


def test_hooks_taken_off_inside_are_not_reported(net):
    with removing_new_hooks(net) as removed:
        with net.fc.register_forward_hook(nothing):
            pass
        net.fc.register_forward_hook(nothing).remove()
    assert removed == []


def test_blocks_may_be_nested(net):
    with removing_new_hooks() as outer:
        net.fc.register_forward_hook(nothing)
        with removing_new_hooks() as inner:
            net.conv1.register_forward_hook(nothing)
        assert len(census(net)) == 1
        net.conv1.register_forward_hook(nothing)  # the outer block watches on
    assert [len(inner), len(outer)] == [1, 2]
    assert len(census(net)) == 0


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_backward_hook"])
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_backward_hooks_from_before_still_work_for_a_graph_built_inside(net, register):
    """Torch hangs them on the graph's nodes during forward, through handles like any other."""
    fired = []
    getattr(net.fc, register)(lambda *args: fired.append("module"))
    with removing_new_hooks(net) as removed:
        loss = net(torch.ones(2, 1, 3, 3)).sum()
    loss.backward()
    assert fired == ["module"]
    assert removed == []


@pytest.mark.parametrize("how", TORCHS_OWN)
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
def test_what_torch_registers_inside_stays(how):
    model = nn.Sequential()
    with removing_new_hooks(model) as removed:
        model.append(TORCHS_OWN[how]())
        model[0].register_forward_hook(nothing)
    assert len(removed) == 1
    assert len(census(model)) >= 1
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_hooks_of_another_kind_of_handle_stay(net):
    """CUDA graphs and dynamo keep objects alive by handles in dicts of their own."""
    kept = types.SimpleNamespace(hooks=__import__("collections").OrderedDict())
    with removing_new_hooks() as removed:
        handle = RemovableHandle(kept.hooks)
        kept.hooks[handle.id] = nothing
    assert removed == []
    assert list(kept.hooks) == [handle.id]


def test_another_threads_hooks_stay_unless_the_model_is_named(net):
    other = Net()
    inside, done = threading.Event(), threading.Event()

    def work():
        inside.wait(10)
        net.fc.register_forward_hook(nothing)
        other.fc.register_forward_hook(nothing)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with removing_new_hooks(net) as removed:
        inside.set()
        assert done.wait(10)
    thread.join()
    assert [entry.where for entry in removed] == ["fc"]
    assert (len(census(net)), len(census(other))) == (0, 1)


def test_many_threads_at_once():
    models = [Net() for _ in range(8)]
    counts = []

    def work(model):
        for _ in range(20):
            with removing_new_hooks() as removed:
                model.fc.register_forward_hook(nothing)
                model.fc.weight.register_hook(nothing)
            counts.append(len(removed))
        model.conv1.register_forward_hook(nothing)

    threads = [threading.Thread(target=work, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2] * 160
    assert [len(census(model)) for model in models] == [1] * 8


def test_somebody_else_may_watch_the_handles_meanwhile(net):
    """A wrapper put around ours and taken away later leaves torch as it was, and watching works on."""
    torchs = RemovableHandle.__init__
    calls = []
    first = removing_new_hooks()
    first.__enter__()
    ours = RemovableHandle.__init__

    def theirs(self, *args, **kwargs):
        calls.append(self)
        ours(self, *args, **kwargs)

    RemovableHandle.__init__ = theirs
    first.__exit__(None, None, None)
    assert RemovableHandle.__init__ is theirs
    net.fc.register_forward_hook(nothing)
    assert (len(calls), len(census(net))) == (1, 1)
    RemovableHandle.__init__ = ours
    with removing_new_hooks() as removed:
        net.fc.register_forward_hook(nothing)
    assert len(removed) == 1
    assert RemovableHandle.__init__ is torchs


def test_a_wrong_model_is_refused_before_anything_is_watched():
    with pytest.raises(TypeError, match="not str"), removing_new_hooks("net"):
        pytest.fail("the block must not run")
