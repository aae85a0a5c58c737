"""A recording leaves no hook and no memory behind, however its block ends."""

import warnings

import pytest
from torch import nn

from hookscope.recordings.record import KINDS, record
from tests.shared.networks import make_calls_twice
from tests.shared.recording_helpers import list_hooks, make_nested, make_ones


def test_a_start_that_fails_takes_off_what_is_on():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
    before = list_hooks(model[0])
    with pytest.raises(ValueError, match=r"parameter '1\.weight' has no shape yet"), record(model, parameters=True):
        pass
    assert list_hooks(model[0]) == before
    with record(model) as recording:  # torch's own hook removes itself and changes the layer's class
        model(make_ones(1, 4))
    lazy = [event for event in recording.events if event.name == "1"]
    assert [e.hook for e in lazy] == ["LazyModuleMixin._infer_parameters", "", ""]
    assert [e.type for e in lazy] == ["LazyLinear", "Linear", "Linear"]
    assert not model[1]._forward_pre_hooks


def test_a_removed_hook_stays_removed_and_a_replaced_one_stays_replaced():
    model = make_nested()

    def hook(*args):
        pass

    def other(*args):
        pass

    gone = model[0].register_forward_hook(hook, always_call=True)
    kept = model[0].register_forward_hook(hook)
    replaced = model[1].register_full_backward_hook(hook)
    with record(model):
        model(make_ones(1, 4))
        gone.remove()
        model[1]._backward_hooks[replaced.id] = other
        model(make_ones(1, 4)).sum().backward()
    assert list(model[0]._forward_hooks.items()) == [(kept.id, hook)]
    assert not model[0]._forward_hooks_always_called
    assert list(model[1]._backward_hooks.values()) == [other]
    kept.remove()
    assert not model[0]._forward_hooks


def test_legacy_hooks_can_be_registered_afterwards():
    model = make_nested()
    with record(model):
        model(make_ones(1, 4))
    model[0].register_backward_hook(lambda *args: None)
    with record(model[1]) as recording:
        model[1](make_ones(1, 3))
        model[1].register_full_backward_hook(lambda *args: None)
    assert model[1]._is_full_backward_hook is True
    assert len(recording.notes) == 1


def test_a_legacy_hook_is_logged_and_receives_what_it_did():
    got = {}

    def legacy(module, grad_input, grad_output):
        got[len(got)] = [None if g is None else tuple(g.shape) for g in grad_input]

    model = make_nested()
    model.register_backward_hook(legacy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model(make_ones(2, 4)).sum().backward()
        with record(model) as recording:
            model(make_ones(2, 4)).sum().backward()
    assert got[0] == got[1]
    assert recording.order("backward", "full_backward", "full_backward_pre") == ["backward (root): legacy"]
    (note,) = recording.notes
    assert note.startswith("Layer (root) (Sequential) has a legacy backward hook.")
    assert "none are recorded" in note


def test_a_layer_that_once_had_a_legacy_hook_keeps_its_pre_hook():
    model = make_nested()
    model[1].register_backward_hook(lambda *args: None).remove()
    before = list_hooks(model)
    with record(model) as recording:
        model(make_ones(2, 4)).sum().backward()
    assert list_hooks(model) == before
    assert "full_backward_pre 1" in recording.order()
    assert "full_backward 1" not in recording.order()
    assert "full_backward 0" in recording.order()
    (note,) = recording.notes
    assert note.startswith("Layer 1 (Linear) once had a legacy backward hook")
    assert "census(model).remove_all()" in note


def test_recordings_nest():
    model = make_calls_twice()

    def mine(module, grad_input, grad_output):
        pass

    model.fc.register_full_backward_hook(mine)
    before = list_hooks(model)
    with record(model) as outer:
        model(make_ones(1, 4))
        with record(model, "fc") as inner:
            model(make_ones(1, 4)).sum().backward()
        model(make_ones(1, 4)).sum().backward()
    assert list_hooks(model) == before
    assert inner.order("full_backward") == [
        "full_backward fc #2: mine",
        "full_backward fc #2",
        "full_backward fc: mine",
        "full_backward fc",
    ]
    assert [e.call for e in outer.events if e.kind == "full_backward" and e.hook] == [4, 3, 6, 5]
    assert [e.call for e in outer.events if e.kind == "full_backward" and e.name and not e.hook] == [4, 3, 6, 5]


def test_a_graph_run_backward_after_the_block_logs_nothing_and_adds_a_note(recwarn):
    model = make_nested()
    ran = []
    model[0].register_full_backward_hook(lambda *args: ran.append(1))
    with record(model) as recording:
        loss = model(make_ones(1, 4)).sum()
        early = nn.Sequential(nn.Linear(4, 1))
        with record(early) as other:
            late = early(make_ones(1, 4, grad=False)).sum()
    count = len(recording.events)
    loss.backward()
    late.backward()
    assert len(recording.events) == count
    assert ran == [1]
    (note,) = recording.notes
    assert note.startswith("A graph built inside the block was run backward after the block")
    assert other.notes == (note,)
    assert not recwarn.list


def test_a_graph_built_before_has_no_hooks_of_layers_in_it():
    layer = nn.Linear(4, 2)
    loss = layer(make_ones(1, 4)).sum()
    with record(layer, parameters=True) as recording:
        loss.backward()
    assert set(recording.order()) == {f"{k} {p}" for k in KINDS[4:] for p in ("weight", "bias")}
