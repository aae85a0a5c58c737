"""The order in which torch fires hooks through a pass, as recordings show it."""

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookscope.recordings.record import record
from tests.shared.awkward_models import Net
from tests.shared.networks import make_calls_twice, make_two_heads
from tests.shared.recording_helpers import NESTED_FORWARD, list_hooks, make_nested, make_ones


def test_several_hooks_of_a_kind_global_first_then_prepended_then_in_order():
    layer = nn.Linear(4, 2)
    handles = []

    def named(name):
        def hook(*args):
            return None

        hook.__qualname__ = name
        return hook

    for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        add = getattr(layer, f"register_{kind}_hook")
        add(named("1"))
        add(named("2"))
        add(named("P1"), prepend=True)
        add(named("P2"), prepend=True)
        for name in ("G1", "G2"):
            handles.append(getattr(torch_module, f"register_module_{kind}_hook")(named(name)))
    before = list_hooks(layer)
    with record(layer) as recording:
        layer(make_ones(3, 4)).sum().backward()
    assert list_hooks(layer) == before
    for handle in handles:
        handle.remove()
    for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        fired = [event.hook for event in recording.events if event.kind == kind]
        assert fired == ["G1", "G2", "P2", "P1", "1", "2", ""], kind
    torch_module._global_is_full_backward_hook = None


def test_nested_with_an_input_that_requires_grad():
    model = make_nested()
    with record(model) as recording:
        model(make_ones(2, 4)).sum().backward()
    assert recording.order("forward_pre", "forward") == NESTED_FORWARD
    assert recording.order()[10:] == [
        "full_backward_pre (root)",
        "full_backward_pre 1",
        "full_backward 1",
        "full_backward_pre 0",
        "full_backward_pre 0.1",
        "full_backward 0.1",
        "full_backward_pre 0.0",
        "full_backward 0.0",
        "full_backward 0",
        "full_backward (root)",
    ]
    assert recording.notes == ()


def test_nested_with_a_plain_input():
    model = make_nested()
    with record(model) as recording:
        model(make_ones(2, 4, grad=False)).sum().backward()
    assert recording.order()[:10] == NESTED_FORWARD
    assert recording.order()[10:] == [
        "full_backward_pre (root)",
        "full_backward (root)",
        "full_backward_pre 1",
        "full_backward 1",
        "full_backward_pre 0",
        "full_backward 0",
        "full_backward_pre 0.1",
        "full_backward 0.1",
        "full_backward_pre 0.0",
        "full_backward 0.0",
    ]
    early = [note for note in recording.notes if "requires grad" in note]
    assert [note.split(" requires")[0] for note in early] == [
        "No input of layer (root)",
        "No input of layer 0",
        "No input of layer 0.0",
    ]
    shapes = {(e.kind, e.name): e.shapes for e in recording.events}
    assert shapes["full_backward", "0"] == (None,)
    assert shapes["full_backward", "1"] == ((2, 3),)


def test_a_module_called_twice_goes_backward_from_its_second_call():
    model = make_calls_twice()
    seen = []
    model.fc.register_full_backward_hook(lambda m, gi, go: seen.append("back"))
    global_hook = torch_module.register_module_full_backward_pre_hook(lambda m, go: seen.append("pre"))
    with record(model, "fc", parameters=True) as recording:
        model(make_ones(2, 4)).sum().backward()
    global_hook.remove()
    assert recording.order("forward_pre", "forward") == [
        "forward_pre fc",
        "forward fc",
        "forward_pre fc #2",
        "forward fc #2",
    ]
    backward = [e for e in recording.events if e.phase == "backward"]
    lambdas = "<lambda>"
    assert [e.label for e in backward if "bias" not in e.name] == [
        f"full_backward_pre fc #2: {lambdas}",
        "full_backward_pre fc #2",
        f"full_backward fc #2: {lambdas}",
        "full_backward fc #2",
        f"full_backward_pre fc: {lambdas}",
        "full_backward_pre fc",
        "tensor fc.weight",
        "post_accumulate_grad fc.weight",
        f"full_backward fc: {lambdas}",
        "full_backward fc",
    ]
    assert seen == ["pre", "pre", "back", "pre", "back"]  # the root's pre-hook first


def test_a_module_that_calls_itself():
    model = Net(lambda self, x, n: self(x * 2, n - 1) if n else x * 3)
    with record(model) as recording:
        model(make_ones(1), 2).sum().backward()
    calls = [(e.kind, e.call, e.depth) for e in recording.events]
    assert calls[:6] == [
        ("forward_pre", 1, 0),
        ("forward_pre", 2, 1),
        ("forward_pre", 3, 2),
        ("forward", 3, 2),
        ("forward", 2, 1),
        ("forward", 1, 0),
    ]
    assert [c[:2] for c in calls[6:]] == [
        ("full_backward_pre", 1),
        ("full_backward_pre", 2),
        ("full_backward_pre", 3),
        ("full_backward", 3),
        ("full_backward", 2),
        ("full_backward", 1),
    ]


def test_with_a_hooked_container_backward_walks_an_unused_output_too():
    model = make_two_heads()
    with record(model, parameters=True) as recording:
        a, _ = model(make_ones(1, 4))
        a.sum().backward()
    shapes = {(e.kind, e.name): e.shapes for e in recording.events}
    assert shapes["full_backward_pre", ""] == ((1, 4), None)
    assert shapes["full_backward_pre", "trunk.b"] == (None,)
    assert shapes["tensor", "trunk.b.weight"] is None
    assert model.trunk["b"].weight.grad is None


def test_double_backward_fires_in_both_passes():
    layer = nn.Linear(4, 2)
    x = make_ones(1, 4)
    with record(layer) as recording:
        (grad,) = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        assert recording.order()[2:] == ["full_backward_pre (root)", "full_backward (root)"]
        grad.sum().backward()
    assert recording.order()[4:] == ["full_backward_pre (root)", "full_backward (root)"]
    assert {event.call for event in recording.events} == {1}
