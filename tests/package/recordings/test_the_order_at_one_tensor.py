"""The order of the hooks of one tensor: torch orders them by kind, whatever the order in which they were registered."""

import pytest
import torch
from torch import nn

from hookscope.recordings.record import record
from tests.shared.recording_helpers import make_ones


def recorded(build, run, kinds="forward"):
    """Record what `run` fires after `build` has watched something."""
    with record(nn.Identity(), kinds=kinds) as recording:
        run(*build(recording))
    return recording


def test_a_leaf_in_line_accumulate_grad_around_the_filling():
    x = make_ones(2)
    filled = {}

    def first(grad):
        filled["tensor"] = x.grad is not None
        return grad * 10

    def second(grad):
        filled["second"] = grad.tolist()

    x.register_hook(first)
    x.register_hook(second)
    x.register_post_accumulate_grad_hook(lambda param: filled.update(post=param.grad.tolist()))
    with record(nn.Identity(), values=True) as recording:
        recording.watch(x, "x", nodes=True, retain_grad=True)
        (x * 3).sum().backward()
    before = ["tensor x: first", "tensor x: second"]
    # Each sees what the one before it made.
    assert filled == {"tensor": False, "second": [30, 30], "post": [30, 30]}
    assert recording.order() == [
        *before,
        "tensor x",
        "node_pre x",
        "post_accumulate_grad x: <lambda>",
        "post_accumulate_grad x",
        "node_post x",
    ]
    last = recording.events[-1]
    assert (last.type, last.shapes) == ("AccumulateGrad", ())
    assert recording.events[-2].values.tolist() == [30, 30]


@pytest.mark.parametrize("early", [False, True], ids=["retain_grad last", "retain_grad first"])
def test_a_tensor_that_is_no_leaf(early):
    x = make_ones(2)
    seen = {}
    with record(nn.Identity(), values=True) as recording:
        y = x * 3
        if early:
            y.retain_grad()
        y.grad_fn.register_prehook(lambda grads: seen.update(grad=y.grad.tolist()) or (grads[0] * 100,))
        y.register_hook(lambda grad: grad * 10)
        recording.watch(y, "y", retain_grad=True, nodes=True)
        recording.watch(x, "x", retain_grad=True, nodes=True)
        y.sum().backward()
    assert recording.order() == [
        "tensor y: <lambda>",
        "tensor y",
        "retain_grad y",
        "node_pre y",
        "node_post y",
        "tensor x",
        "node_pre x",
        "post_accumulate_grad x",
        "node_post x",
    ]
    values = {event.label: event.values for event in recording.events}
    assert values["tensor y: <lambda>"].tolist() == [1, 1]  # what it receives, not what it returns
    assert values["retain_grad y"].tolist() == y.grad.tolist() == seen["grad"] == [10, 10]
    assert values["node_pre y"][0].tolist() == [1000, 1000]
    assert x.grad.tolist() == [3000, 3000]
    assert [event.type for event in recording.events if event.kind == "node_post"] == ["MulBackward0", "AccumulateGrad"]


WATCHED_Y = ["tensor y", "retain_grad y"]

NODE_Y = ["node_pre y", "node_post y"]

WATCHED_X = ["tensor x", "node_pre x", "post_accumulate_grad x", "node_post x"]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x, y, loss: loss.backward(), WATCHED_Y + NODE_Y + WATCHED_X),
        (lambda x, y, loss: torch.autograd.grad(loss, x), [*WATCHED_Y, *NODE_Y, "tensor x"]),
        (lambda x, y, loss: torch.autograd.grad(loss, y), WATCHED_Y),
        (lambda x, y, loss: loss.backward(inputs=[y]), WATCHED_Y + NODE_Y),
        (lambda x, y, loss: loss.backward(inputs=[x]), WATCHED_Y + NODE_Y + WATCHED_X),
    ],
    ids=["backward", "grad of x", "grad of y", "backward to y", "backward to x"],
)
def test_which_hooks_fire_depends_on_what_is_asked_for(run, expected):
    def build(recording):
        x = recording.watch(make_ones(2), "x", retain_grad=True, nodes=True)
        y = recording.watch(x * 2, "y", retain_grad=True, nodes=True)
        return x, y, y.sum()

    recording = recorded(build, run)
    assert recording.order() == expected


def test_the_gradient_of_a_tensor_used_twice_is_summed_before_its_hooks():
    def build(recording):
        y = recording.watch(make_ones(2) * 2, "y", retain_grad=True, nodes=True)
        return recording, y

    def fan_out(recording, y):
        recording.watch(y * 3, "older", nodes=True)
        (y * 5).sum().backward()

    recording = recorded(build, fan_out)
    assert recording.order() == WATCHED_Y + NODE_Y

    def branches(recording, y):
        older, newer = recording.watch(y * 3, "older", nodes=True), recording.watch(y * 5, "newer", nodes=True)
        torch.autograd.backward([older.sum(), newer.sum()])

    recording = recorded(build, branches)
    branch = "tensor {0},node_pre {0},node_post {0}"
    made_later_first = branch.format("newer").split(",") + branch.format("older").split(",")
    assert recording.order() == made_later_first + WATCHED_Y + NODE_Y
    with record(nn.Identity(), values=True) as recording:
        y = recording.watch(make_ones(2) * 2, "y")
        (y * 3 + y * 5).sum().backward()
    assert [event.values.tolist() for event in recording.events] == [[8, 8]]


def test_the_nodes_around_a_linear():
    layer, x = nn.Linear(4, 2), make_ones(3, 4)

    def watch_inner(module, args, output):
        recording.watch(output, "addmm", nodes=True)

    inner = layer.register_forward_hook(watch_inner)
    with record(layer, parameters=True) as recording:
        recording.watch(x, "x", retain_grad=True)
        inside = recording.watch(x * 1, "in", nodes=True)
        recording.watch(layer(inside), "out", nodes=True).sum().backward()
    inner.remove()
    backward = [event for event in recording.events if event.phase == "backward"]
    assert [event.label.removesuffix(" (root)") for event in backward] == [
        "tensor out", "node_pre out", "full_backward_pre", "node_post out",
        "tensor addmm", "node_pre addmm", "node_post addmm",
        "tensor bias", "post_accumulate_grad bias", "tensor weight", "post_accumulate_grad weight",
        "full_backward", "tensor in", "node_pre in", "node_post in", "tensor x", "post_accumulate_grad x",
    ]  # fmt: skip
    nodes = {event.name: event.type for event in backward if event.kind == "node_pre"}
    assert nodes == {"out": "BackwardHookFunctionBackward", "addmm": "AddmmBackward0", "in": "MulBackward0"}
