"""A census lists every kind of hook there is, in the order of the layers, each once."""

import functools
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer
from torch import nn

from hookscope.censuses.census import KINDS, census
from tests.package.censuses.census_helpers import Net, do_nothing, find_location, list_kinds

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
    known = {attribute for name in ("ON_MODULE", "ON_OPTIMIZER", "ON_ALL") for attribute in entry_table(name)}
    sides = {f"{name}{end}" for name in known for end in ("_with_kwargs", "_always_called")}
    for holder in (net, torch.optim.SGD(net.parameters()), torch_module, torch_optimizer):
        there = {name for name, value in vars(holder).items() if "hooks" in name and isinstance(value, dict)}
        assert there, holder
        assert there <= known | sides


def entry_table(name):
    return getattr(sys.modules["hookscope.censuses.entry"], name)


@pytest.mark.parametrize("kind", ON_MODULE)
def test_every_kind_of_module_hook(net, kind):
    handle = ON_MODULE[kind](net.fc, do_nothing)
    (entry,) = census(net)
    assert entry.kind == kind
    assert (entry.layer, entry.tensor, entry.callable, entry.options) == ("fc", "", "do_nothing", ())
    assert entry.location == find_location(do_nothing)
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
    ON_TENSOR[kind](tensor, do_nothing)
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


@pytest.mark.parametrize("kind", ON_OPTIMIZER)
def test_every_kind_of_optimizer_hook(net, kind):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ON_OPTIMIZER[kind](optimizer, do_nothing)
    (entry,) = census(net, optimizer)
    assert (entry.kind, entry.layer, entry.where, entry.owner) == (kind, None, "(SGD)", "SGD")
    assert census(net) is not None
    assert len(census(net)) == 0
    assert census(optimizer).remove_all() == 1
    assert len(census(optimizer)) == 0


@pytest.mark.parametrize("kind", GLOBAL)
def test_every_kind_of_global_hook(net, kind):
    GLOBAL[kind](do_nothing)
    for found in (census(), census(net)):
        (entry,) = found
        assert (entry.kind, entry.layer, entry.owner, entry.callable) == (kind, None, "", "do_nothing")
        assert entry.where == ("every optimizer" if "optimizer" in kind else "every module")
    assert len(census(net, include_global=False)) == 0
    assert census(net).remove_all() == 1
    assert len(census()) == 0


def test_public_state_dict_hooks_too(net):
    if not hasattr(net, "register_state_dict_post_hook"):  # before torch 2.5
        pytest.skip("this torch has the private ones only")
    net.register_state_dict_post_hook(lambda *args: None)
    net.register_load_state_dict_pre_hook(do_nothing)
    assert list_kinds(net) == ["state_dict_post", "load_state_dict_pre"]
    assert census(net)[1].callable == "do_nothing"


def test_options_are_shown_and_go_with_the_hook(net):
    net.fc.register_forward_hook(do_nothing, with_kwargs=True, always_call=True)
    net.fc.register_forward_pre_hook(do_nothing, with_kwargs=True)
    net.fc.register_forward_hook(do_nothing, always_call=True)
    net.fc.register_forward_hook(do_nothing, prepend=True)
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
    torch_module.register_module_forward_hook(do_nothing, **options)
    assert set(census()[0].options) == set(options)
    assert census().remove_all() == 1
    assert not torch_module._global_forward_hooks_always_called
    assert not getattr(torch_module, "_global_forward_hooks_with_kwargs", {})


# --- order, sharing, names --------------------------------------------------------------------------


def test_the_order_is_that_of_the_layers_then_the_kinds_then_the_tensors(net):
    torch_module.register_module_forward_hook(do_nothing)
    net.fc.weight.register_hook(do_nothing)
    net.fc.register_forward_hook(do_nothing)
    net.fc.register_forward_pre_hook(do_nothing)
    net.conv1.register_full_backward_hook(do_nothing)
    net.register_forward_hook(do_nothing)
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
    net.fc.register_forward_hook(do_nothing)
    net.fc.weight.register_hook(do_nothing)
    assert [entry.where for entry in census(model)] == ["a", "a.weight"]
    assert [entry.owner for entry in census(net, model, net.fc.weight)] == ["Net", "Net"]


def test_two_targets_of_one_class_can_be_told_apart(net):
    other = Net()
    net.fc.register_forward_hook(do_nothing)
    other.fc.register_forward_hook(do_nothing)
    found = census(net, other)
    assert [entry.owner for entry in found] == ["Net", "Net #2"]
    assert repr(found).startswith("2 hooks on Net, Net #2\n")
    assert "Net: fc" in repr(found)
    assert "Net #2: fc" in repr(found)
    with pytest.raises(AssertionError, match="Net #2: fc"):
        found.assert_none()


def test_a_hook_that_is_no_callable_at_all_is_listed():
    x = torch.ones(1, requires_grad=True)
    x.register_hook(None)  # torch does not look before backward()
    assert list_kinds(x) == ["tensor"]
    assert census(x).remove_all() == 1
    x.sum().backward()


# --- torch's own hooks ------------------------------------------------------------------------------


def test_scripted_modules(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(net)
    assert len(census(scripted)) == 0
    scripted.fc.weight.register_hook(do_nothing)
    assert [entry.where for entry in census(scripted)] == ["fc.weight"]
    assert census(scripted).remove_all() == 1
    assert len(census(scripted)) == 0


# --- a sequence that can be read --------------------------------------------------------------------


def test_lazy_parameters_and_missing_dicts_are_no_trouble():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyConv2d(1, 1))
    del model.__dict__["_state_dict_pre_hooks"]  # as in a module pickled by an older torch
    assert set(list_kinds(model)) == {"forward_pre", "load_state_dict_pre"}


def test_a_forward_that_somebody_replaced_is_said_and_is_no_hook():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    plain = net[0].forward

    def patched(*args):
        return plain(*args)

    assert census(net).notes == ()
    net[0].forward = patched
    found = census(net)
    assert len(found) == 0
    assert "The forward of layer 0 (Linear) was replaced by test_a_forward" in found.notes[0]
    assert "patched (" in found.notes[0]
    for text in found._repr_mimebundle_().values():
        assert "note: The forward of layer 0 (Linear) was replaced" in text
    found.assert_none()


@pytest.mark.parametrize("how", ["as accelerate does", "as a method"])
def test_a_replaced_forward_is_named_by_the_function_that_took_its_place(how):
    net = nn.Sequential(nn.Linear(2, 2))

    def new_forward(module, *args):
        return module._old_forward(*args)

    net[0]._old_forward = net[0].forward
    partial = functools.update_wrapper(functools.partial(new_forward, net[0]), net[0].forward)
    net[0].forward = partial if "accelerate" in how else types.MethodType(new_forward, net[0])
    (text,) = census(net).notes
    assert "new_forward" in text
    assert f"{Path(__file__).name}:{new_forward.__code__.co_firstlineno}" in text
