"""Optimizer steps in a recording: their hooks, closures, errors and numbers."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim import optimizer as torch_optimizer

from hookscope.recordings.record import record
from tests.shared.recording_helpers import list_hooks, make_nested, make_ones


def hooks_of(optimizer):
    return [list(optimizer._optimizer_step_pre_hooks.items()), list(optimizer._optimizer_step_post_hooks.items())]


def test_a_training_step_is_forward_backward_step():
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.1)
    before = hooks_of(optimizer)
    with record(layer, optimizers=optimizer, kinds=["forward_pre", "forward", "full_backward"]) as recording:
        for _ in range(2):
            layer(make_ones(1, 2)).sum().backward()
            optimizer.step()
    assert hooks_of(optimizer) == before
    assert recording.order()[:5] == [
        "forward_pre (root)",
        "forward (root)",
        "full_backward (root)",
        "step_pre SGD",
        "step_post SGD",
    ]
    assert recording.order("step_pre", "step_post")[2:] == ["step_pre SGD #2", "step_post SGD #2"]
    assert [event.phase for event in recording.events[:5]] == ["forward", "forward", "backward", "step", "step"]
    step = recording.events[3]
    assert (step.name, step.type, step.call, step.shapes, step.depth) == ("SGD", "SGD", 1, (), 0)
    assert repr(recording).startswith("Linear: 10 events (4 forward, 2 backward, 4 step)\n")


def test_a_closure_runs_between_the_two_hooks():
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.1)

    def closure():
        loss = layer(make_ones(1, 2)).sum()
        loss.backward()
        return loss

    with record(layer, optimizers=[optimizer], kinds=["forward_pre", "forward", "full_backward"]) as recording:
        optimizer.step(closure)
    assert recording.order() == [
        "step_pre SGD",
        "forward_pre (root)",
        "forward (root)",
        "full_backward (root)",
        "step_post SGD",
    ]
    assert recording.events[0].shapes == ("function",)
    lines = repr(recording.call_tree()).splitlines()
    assert [line for line in lines if not line.startswith((" ", "├", "└"))] == ["step", "forward", "backward", "step"]
    assert lines[1] == "└── [1] step_pre SGD  args ('function',)"


def test_optimizers_of_one_class_are_numbered_and_only_those_named_are_logged():
    layer = nn.Linear(2, 1)
    first, second = Adam(layer.parameters()), Adam(layer.parameters())
    third, other = SGD(layer.parameters(), lr=0.1), SGD(layer.parameters(), lr=0.1)
    with record(layer, optimizers=[first, second, first, third]) as recording:
        layer(make_ones(1, 2)).sum().backward()
        for optimizer in (second, other, third, first):
            optimizer.step()
    assert recording.order("step_pre") == ["step_pre Adam 2", "step_pre SGD", "step_pre Adam 1"]
    assert [event.type for event in recording.events if event.kind == "step_post"] == ["Adam", "SGD", "Adam"]


def test_step_hooks_that_are_there_are_logged_by_name_global_ones_around_them():
    layer = nn.Linear(2, 1)
    optimizer, other = SGD(layer.parameters(), lr=0.5), SGD(layer.parameters(), lr=0.5)
    ran = []

    def mine(optimizer, args, kwargs):
        ran.append("mine")

    def everywhere(optimizer, args, kwargs):
        ran.append("everywhere")

    def late(optimizer, args, kwargs):
        ran.append("late")

    optimizer.register_step_pre_hook(mine)
    optimizer.register_step_post_hook(mine)
    handles = [
        torch_optimizer.register_optimizer_step_pre_hook(everywhere),
        torch_optimizer.register_optimizer_step_post_hook(everywhere),
    ]
    before = hooks_of(optimizer), list_hooks()
    with record(layer, optimizers=optimizer) as recording:
        optimizer.step()
        other.step()
        handle = optimizer.register_step_post_hook(late)
        optimizer.step()
        handle.remove()
        optimizer.register_step_post_hook(late)
    optimizer._optimizer_step_post_hooks.popitem()
    assert (hooks_of(optimizer), list_hooks()) == before
    for handle in handles:
        handle.remove()
    assert recording.order()[:6] == [
        "step_pre SGD: everywhere",
        "step_pre SGD: mine",
        "step_pre SGD",
        "step_post SGD: mine",
        "step_post SGD",
        "step_post SGD: everywhere",
    ]
    again = [label.split(":")[0] for label in recording.order()[6:]]
    assert again == ["step_pre SGD #2"] * 3 + ["step_post SGD #2"] * 3
    (note,) = recording.notes
    assert note.startswith("The hook late was registered on SGD inside the block")
    first, of_other, again = ran[:4], ran[4:6], ran[6:]
    assert first == ["everywhere", "mine", "mine", "everywhere"]
    assert of_other == ["everywhere", "everywhere"]
    assert again == ["everywhere", "mine", "mine", "late", "everywhere"]


def test_a_pre_hook_may_replace_the_arguments_of_step():
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.5)

    def closure():
        return torch.tensor(3.0)

    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: (args, {"closure": closure}))
    with record(layer, optimizers=optimizer) as recording:
        assert optimizer.step().item() == 3
    assert [event.shapes for event in recording.events] == [(), ({"closure": "function"},), ({"closure": "function"},)]


def test_a_step_that_fails_or_calls_its_base_class_keeps_the_numbers_right():
    class Careful(SGD):
        fail = False

        def step(self, closure=None):
            if self.fail:
                raise ValueError("no")
            return super().step(closure)

    layer = nn.Linear(2, 1)
    optimizer = Careful(layer.parameters(), lr=0.5)
    before = hooks_of(optimizer)
    with record(layer, optimizers=optimizer) as recording:
        optimizer.fail = True
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        optimizer.fail = False
        optimizer.step()
    assert hooks_of(optimizer) == before
    assert recording.order() == [
        "step_pre Careful",
        "step_pre Careful #2",
        "step_pre Careful #3",
        "step_post Careful #3",
        "step_post Careful #2",
    ]


@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt])
def test_everything_is_off_however_the_block_ends(end):
    model, x = make_nested(), make_ones(1, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = list_hooks(model), hooks_of(optimizer)
    try:
        with record(model, optimizers=optimizer, values=True, parameters=True) as recording:
            y = recording.watch(model(x), "y", retain_grad=True, nodes=True)
            recording.watch(x, "x", retain_grad=True, nodes=True)
            recording.watch_all({"x": x, "y": y})
            recording.watch_all({"x": x, "y": y}, "any")
            if end:
                raise end
    except (ValueError, KeyboardInterrupt):
        assert end
    assert (list_hooks(model), hooks_of(optimizer)) == before
    assert not x._backward_hooks
    assert not x._post_accumulate_grad_hooks
    assert not y._backward_hooks
    count = len(recording.events)
    y.sum().backward()
    optimizer.step()
    assert len(recording.events) == count
    assert y.grad is not None  # torch cannot switch retain_grad off
