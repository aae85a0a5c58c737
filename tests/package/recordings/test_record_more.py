"""Optimizer steps, watched tensors and their nodes, and the numbers in events."""

import copy
import gc
import json
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim import optimizer as torch_optimizer

from hookscope.recordings.record import record
from tests.shared.recorded import hooks_on, nested, nothing_left_behind, ones  # noqa: F401


def hooks_of(optimizer):
    return [list(optimizer._optimizer_step_pre_hooks.items()), list(optimizer._optimizer_step_post_hooks.items())]


# Optimizers.


def test_a_training_step_is_forward_backward_step():
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.1)
    before = hooks_of(optimizer)
    with record(layer, optimizers=optimizer, kinds=["forward_pre", "forward", "full_backward"]) as recording:
        for _ in range(2):
            layer(ones(1, 2)).sum().backward()
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
        loss = layer(ones(1, 2)).sum()
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
        layer(ones(1, 2)).sum().backward()
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
    before = hooks_of(optimizer), hooks_on()
    with record(layer, optimizers=optimizer) as recording:
        optimizer.step()
        other.step()
        handle = optimizer.register_step_post_hook(late)
        optimizer.step()
        handle.remove()
        optimizer.register_step_post_hook(late)
    optimizer._optimizer_step_post_hooks.popitem()
    assert (hooks_of(optimizer), hooks_on()) == before
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
    assert recording.notes == ("late was registered on SGD inside the block: not logged",)
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
    model, x = nested(), ones(1, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = hooks_on(model), hooks_of(optimizer)
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
    assert (hooks_on(model), hooks_of(optimizer)) == before
    assert not x._backward_hooks
    assert not x._post_accumulate_grad_hooks
    assert not y._backward_hooks
    count = len(recording.events)
    y.sum().backward()
    optimizer.step()
    assert len(recording.events) == count
    assert y.grad is not None  # torch cannot switch retain_grad off


# Watched tensors.


def test_retain_grad_logs_every_filling_also_where_the_node_does_not_run():
    with record(nn.Identity(), kinds="forward", values=True) as recording:
        y = recording.watch(ones(2) * 2, "y", retain_grad=True)
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
        a, b = torch.split(ones(2) * 1, 1)
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

    x = ones(2)
    with record(nn.Identity(), tensors={"x": x}) as recording:
        x.register_hook(late)
        x.sum().backward()
    assert recording.order() == ["tensor x"]
    assert recording.notes == ("late was registered on tensor 'x' inside the block: not logged",)


def test_a_leaf_is_watched_under_no_grad_too():
    x = ones(2)
    with record(nn.Identity()) as recording:
        with torch.no_grad():
            recording.watch(x, "x", nodes=True)
        gc.collect()  # the node lives until the block ends, though no graph uses it yet
        x.sum().backward()
    assert recording.order() == ["tensor x", "node_pre x", "node_post x"]


def test_what_was_not_retained_is_not_logged():
    with record(nn.Identity(), kinds="forward") as recording:
        y = recording.watch(ones(2) * 2, "y", retain_grad=True)
        z = y * 1
        del y  # nobody can read its .grad any more
        z.sum().backward()
    assert recording.order() == ["tensor y"]


def test_an_in_place_operation_after_watching_is_noted():
    with record(nn.Identity(), kinds="forward") as recording:
        y = recording.watch(ones(2) * 2, "y", retain_grad=True, nodes=True)
        y.mul_(3)
        (y * 5).sum().backward()
    assert y.grad.tolist() == [5, 5]
    assert recording.order() == ["tensor y", "node_pre y", "node_post y"]
    assert recording.notes == ("tensor 'y' was changed in place while watched: .grad is filled earlier, not logged",)


def test_watch_all_any_and_all():
    with record(nn.Identity(), kinds="forward") as recording:
        x = ones(2)
        a, b, apart = x * 2, x * 3, ones(3) * 1
        recording.watch_all({"a": a, "b": b, "apart": apart})
        recording.watch_all({"b": b, "a": a}, mode="any")
        a.sum().backward(retain_graph=True)
        (a.sum() + b.sum()).backward()
    assert recording.order() == [
        "multi_grad a, b, apart",
        "multi_grad b, a",
        "multi_grad b, a #2",
        "multi_grad a, b, apart #2",
    ]
    assert [event.type for event in recording.events] == ["all", "any", "any", "all"]
    assert [event.shapes for event in recording.events] == [((2,), None, None), (2,), (2,), ((2,), (2,), None)]


def test_multi_grad_hooks_of_a_recording_are_not_taken_for_the_learners():
    x = ones(2)
    with record(nn.Identity(), kinds="forward") as recording:
        recording.watch_all({"x": x})
        recording.watch_all({"x": x}, "any")
        with record(nn.Identity(), tensors={"x": x}) as inner:
            recording.watch(x, "x", retain_grad=True)
            x.sum().backward()
    assert inner.order() == ["tensor x"]
    assert not any(event.hook for event in recording.events)


def test_tensors_nodes_and_optimizers_are_not_kept():
    model, x = nested(), ones(1, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model, optimizers=optimizer, values=True, parameters=True) as recording:
        y = recording.watch(model(x), "y", retain_grad=True, nodes=True)
        recording.watch(x, "x", retain_grad=True, nodes=True)
        for mode in ("all", "any"):
            recording.watch_all({"x": x, "y": y}, mode)
        z = y.sum()
        z.backward(retain_graph=True)
        optimizer.step()
    refs = [weakref.ref(thing) for thing in (model, x, y, optimizer)]
    del model, x, y, z, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    assert recording.events


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r: r.watch_all({}), ValueError, "no tensors to watch"),
        (lambda r: r.watch_all({"x": ones(1)}, "some"), ValueError, "mode must be 'all' or 'any', not 'some'"),
        (lambda r: r.watch_all({"x": ones(1, grad=False)}), ValueError, "'x' does not require grad"),
        (lambda r: r.watch_all({"x": 3}), TypeError, "'x' must be a Tensor, not int"),
        (lambda r: r.watch(torch.ones(1), "y", retain_grad=True, nodes=True), ValueError, "'y' does not require grad"),
    ],
)
def test_bad_input_is_named(call, error, text):
    with record(nn.Identity()) as recording, pytest.raises(error, match=text):
        call(recording)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"optimizers": "SGD"}, TypeError, r"must be torch\.optim\.Optimizer, not str"),
        ({"optimizers": [nn.Linear(1, 1)]}, TypeError, "not Linear"),
        ({"kinds": "step_pre"}, ValueError, "'step_pre' is not chosen with kinds: .* optimizers="),
        ({"kinds": ["node_post"]}, ValueError, r"'node_post' is not chosen with kinds: .* Recording\.watch"),
    ],
)
def test_bad_options_are_named_before_anything_is_registered(options, error, text):
    with pytest.raises(error, match=text):
        record(nested(), **options)


def test_watching_several_outside_the_block():
    with pytest.raises(RuntimeError, match="'x, y' is watched outside the with-block"):
        record(nn.Identity()).watch_all({"x": ones(1), "y": ones(1)})


# Numbers.


class Anything(nn.Module):
    def forward(self, *args):
        return args


def kept(*args):
    model = Anything()
    with record(model, kinds="forward", values=True) as recording:
        model(*args)
    return recording


def test_small_tensors_are_kept_as_they_were():
    x = ones(2, 2)
    model = nn.ReLU(inplace=True)
    with record(model, kinds=("forward_pre", "forward"), values=True) as recording:
        inside = x * -1
        model(inside)
    before, after = recording.events
    assert before.values[0].tolist() == [[-1, -1], [-1, -1]]
    assert after.values.tolist() == [[0, 0], [0, 0]]
    assert not after.values.requires_grad
    assert recording.to_dicts()[0]["values"] == [[[-1.0, -1.0], [-1.0, -1.0]]]
    assert [row["values"] for row in recording._table().rows] == ["([[-1, -1], [-1, -1]],)", "[[0, 0], [0, 0]]"]


def test_numbers_are_kept_on_request_only():
    layer = nn.Linear(4, 2)
    with record(layer) as recording:
        layer(ones(1, 4)).sum().backward()
    assert {event.values for event in recording.events} == {None}
    assert "values" not in repr(recording)
    assert recording.to_dicts()[0]["values"] is None


def test_sixteen_elements_are_kept_and_seventeen_are_summed_up():
    recording = kept(torch.arange(16), torch.arange(17), torch.ones(20, dtype=torch.bool))
    small, large, flags = recording.events[0].values
    assert small.tolist() == list(range(16))
    assert (large.mean, large.min, large.max) == (8, 0, 16)
    assert (flags.mean, flags.min, flags.max) == (1, 1, 1)
    assert recording.to_dicts()[0]["values"][1] == {"mean": 8.0, "min": 0.0, "max": 16.0}
    assert "mean 8 min 0 max 16" in repr(recording)


def test_what_is_no_number_is_named():
    recording = kept(
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(20, dtype=torch.complex64),
        torch.ones(1, dtype=torch.complex64),
        {"a": [None, 2.5, True], "b": nn.ReLU()},
        torch.full((17,), float("nan")),
        torch.zeros(0),
    )
    values = recording.to_dicts()[0]["values"]
    assert values[:5] == [
        "sparse tensor",
        "meta tensor",
        "complex tensor",
        ["(1+0j)"],
        {"a": [None, 2.5, True], "b": "ReLU"},
    ]
    assert str(values[5]["mean"]) == "nan"
    assert values[6] == []
    assert json.dumps(values)


def test_numbers_under_transforms_and_in_inference_mode():
    layer = nn.Linear(2, 1)
    with record(layer, kinds="forward", values=True) as recording:
        torch.vmap(layer)(torch.ones(3, 2))
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(2))
        with torch.inference_mode():
            layer(torch.ones(1, 2))
    batched, inside, inferred = (event.values for event in recording.events)
    assert batched == "unreadable tensor"
    assert inside.tolist() == inferred[0].tolist()
    assert not torch._C._functorch.is_functorch_wrapped_tensor(inside)
    assert not inferred.is_inference()


def test_post_accumulate_grad_keeps_the_gradient():
    layer = nn.Linear(2, 1, bias=False)
    with record(layer, parameters=True, kinds="post_accumulate_grad", values=True) as recording:
        for _ in range(2):
            layer(ones(1, 2, grad=False)).sum().backward()
    assert [event.values.tolist() for event in recording.events] == [[[1, 1]], [[2, 2]]]


def test_numbers_do_not_change_the_run():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    watched = copy.deepcopy(plain)
    data = torch.randn(5, 4)

    def train(model, optimizer):
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).pow(2).sum().backward()
            optimizer.step()

    train(plain, Adam(plain.parameters()))
    optimizer = Adam(watched.parameters())
    with record(watched, optimizers=optimizer, parameters=True, values=True, kinds=("forward", "tensor")) as recording:
        train(watched, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert len(recording.order("step_post")) == 3


def everything():
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.1)
    with record(layer, optimizers=optimizer, parameters=True, values=True) as recording:
        y = recording.watch(layer(ones(1, 2)), "y", retain_grad=True, nodes=True)
        recording.watch_all({"y": y, "weight": layer.weight})
        y.sum().backward()
        optimizer.step()
    return recording


def test_every_kind_has_its_own_marker():
    from hookscope.recordings import timeline
    from hookscope.recordings.event import GIVEN

    assert set(timeline._MARKERS) == set(GIVEN)
    assert len(set(timeline._MARKERS.values())) == len(GIVEN)


def test_every_kind_is_shown():
    recording = everything()
    alt = recording.timeline().alt
    assert "backward: tensor y" in alt
    assert "step: step_pre SGD, step_post SGD" in alt
    tree = repr(recording.call_tree())
    for event in recording.events:
        assert sum(f"[{event.index}] " in line for line in tree.splitlines()) == 1
    assert tree.endswith("step\n├── [14] step_pre SGD  args ()\n└── [15] step_post SGD  args ()")
    assert [row["values"] for row in recording.timeline().rows][-1] == "()"
    assert "retain_grad" in recording._repr_mimebundle_()["text/html"]
    assert recording.order("multi_grad", "retain_grad") == ["retain_grad y", "multi_grad y, weight"]
