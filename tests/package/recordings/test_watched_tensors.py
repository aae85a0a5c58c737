"""Watched tensors, alone and several together, and what `watch` refuses."""

import gc
import weakref

import torch
from torch import nn

from hookscope.recordings.record import record
from tests.shared.recording_helpers import make_nested, make_ones


def test_retain_grad_logs_every_filling_also_where_the_node_does_not_run():
    with record(nn.Identity(), kinds="forward", values=True) as recording:
        y = recording.watch(make_ones(2) * 2, "y", retain_grad=True)
        y.sum().backward(retain_graph=True)
        (y * 3).sum().backward(retain_graph=True)  # added to what is there
        y.grad = None
        torch.autograd.grad(y.sum(), y)
        y.grad.zero_()
    fillings = [event for event in recording.events if event.kind == "retain_grad"]
    assert [event.call for event in fillings] == [1, 2, 3]
    assert [event.values.tolist() for event in fillings] == [[1, 1], [4, 4], [1, 1]]
    assert recording.order() == [f"{kind} y{call}" for call in ("", " #2", " #3") for kind in ("tensor", "retain_grad")]


def test_outputs_of_one_node_run_all_tensor_hooks_before_their_gradients_are_retained():
    with record(nn.Identity(), kinds="forward") as recording:
        a, b = torch.split(make_ones(2) * 1, 1)
        recording.watch(a, "a", retain_grad=True, nodes=True)
        recording.watch(b, "b", retain_grad=True)
        (a + b).sum().backward(retain_graph=True)
        (a + b).sum().backward(retain_graph=True)  # adds to gradients that are there
        a.grad = torch.zeros(1)
        (a + b).sum().backward()
    once = ["tensor a", "tensor b", "retain_grad a", "retain_grad b", "node_pre a", "node_post a"]
    assert recording.order() == [f"{label}{call}" for call in ("", " #2", " #3") for label in once]


def test_hooks_registered_on_a_tensor_inside_the_block_are_noted():
    def late(grad):
        pass

    x = make_ones(2)
    with record(nn.Identity(), tensors={"x": x}) as recording:
        x.register_hook(late)
        x.sum().backward()
    assert recording.order() == ["tensor x"]
    (note,) = recording.notes
    assert note.startswith("The hook late was registered on tensor 'x' inside the block, so it is not logged")


def test_a_leaf_is_watched_under_no_grad_too():
    x = make_ones(2)
    with record(nn.Identity()) as recording:
        with torch.no_grad():
            recording.watch(x, "x", nodes=True)
        gc.collect()  # the node lives until the block ends, though no graph uses it yet
        x.sum().backward()
    assert recording.order() == ["tensor x", "node_pre x", "node_post x"]


def test_what_was_not_retained_is_not_logged():
    with record(nn.Identity(), kinds="forward") as recording:
        y = recording.watch(make_ones(2) * 2, "y", retain_grad=True)
        z = y * 1
        del y  # nobody can read its .grad any more
        z.sum().backward()
    assert recording.order() == ["tensor y"]


def test_an_in_place_operation_after_watching_is_noted():
    with record(nn.Identity(), kinds="forward") as recording:
        y = recording.watch(make_ones(2) * 2, "y", retain_grad=True, nodes=True)
        y.mul_(3)
        (y * 5).sum().backward()
    assert y.grad.tolist() == [5, 5]
    assert recording.order() == ["tensor y", "node_pre y", "node_post y"]
    (note,) = recording.notes
    assert note.startswith("Tensor 'y' was changed in place after watch")
    assert "retain_grad is not logged" in note


def test_tensors_and_nodes_are_not_kept():
    model, x = make_nested(), make_ones(1, 4)
    with record(model, values=True, parameters=True) as recording:
        y = recording.watch(model(x), "y", retain_grad=True, nodes=True)
        recording.watch(x, "x", retain_grad=True, nodes=True)
        z = y.sum()
        z.backward(retain_graph=True)
    refs = [weakref.ref(thing) for thing in (model, x, y)]
    del model, x, y, z
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    assert recording.events
