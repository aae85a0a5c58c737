"""The order in which torch fires hooks, as recordings show it."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookscope.recordings.record import record
from tests.shared.recorded import (  # noqa: F401
    GLOBAL_DICTS,
    HOOK_DICTS,
    NESTED_FORWARD,
    Heads,
    Twice,
    hooks_on,
    nested,
    nothing_left_behind,
    ones,
)

# The order of the engine: facts about torch.


def linear_order(grad):
    layer = nn.Linear(4, 2)
    x = ones(3, 4, grad=grad)
    kwargs = {"tensors": {"x": x}} if grad else {}

    def watch_inner(module, args, output):
        recording.watch(output, "inner")

    inner = layer.register_forward_hook(watch_inner)
    with record(layer, parameters=True, **kwargs) as recording:
        inside = recording.watch(x * 1, "in") if grad else x
        recording.watch(layer(inside), "out").sum().backward()
    inner.remove()
    return [text.split(" (root)")[0] for text in recording.order() if "watch_inner" not in text]


def test_linear_with_an_input_that_requires_grad():
    assert linear_order(grad=True) == [
        "forward_pre",
        "forward",
        "tensor out",
        "full_backward_pre",
        "tensor inner",
        "tensor bias",
        "post_accumulate_grad bias",
        "tensor weight",
        "post_accumulate_grad weight",
        "full_backward",
        "tensor in",
        "tensor x",
    ]


def test_linear_with_a_plain_input_fires_full_backward_before_the_layer_runs_backward():
    assert linear_order(grad=False) == [
        "forward_pre",
        "forward",
        "tensor out",
        "full_backward_pre",
        "full_backward",
        "tensor inner",
        "tensor bias",
        "post_accumulate_grad bias",
        "tensor weight",
        "post_accumulate_grad weight",
    ]


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
    before = hooks_on(layer)
    with record(layer) as recording:
        layer(ones(3, 4)).sum().backward()
    assert hooks_on(layer) == before
    for handle in handles:
        handle.remove()
    for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        fired = [event.hook for event in recording.events if event.kind == kind]
        assert fired == ["G1", "G2", "P2", "P1", "1", "2", ""], kind
    torch_module._global_is_full_backward_hook = None


def test_nested_with_an_input_that_requires_grad():
    model = nested()
    with record(model) as recording:
        model(ones(2, 4)).sum().backward()
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
    model = nested()
    with record(model) as recording:
        model(ones(2, 4, grad=False)).sum().backward()
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
        "no input of layer (root)",
        "no input of layer 0",
        "no input of layer 0.0",
    ]
    shapes = {(e.kind, e.name): e.shapes for e in recording.events}
    assert shapes["full_backward", "0"] == (None,)
    assert shapes["full_backward", "1"] == ((2, 3),)


def test_a_module_called_twice_goes_backward_from_its_second_call():
    model = Twice()
    seen = []
    model.fc.register_full_backward_hook(lambda m, gi, go: seen.append("back"))
    global_hook = torch_module.register_module_full_backward_pre_hook(lambda m, go: seen.append("pre"))
    with record(model, "fc", parameters=True) as recording:
        model(ones(2, 4)).sum().backward()
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


def test_calls_are_counted_through_the_whole_recording_also_when_heads_go_backward_separately():
    layer = nn.Linear(4, 4)
    with record(layer, kinds="full_backward") as recording:
        first, second, third = layer(ones(1, 4)), layer(ones(1, 4)), layer(ones(1, 4))
        second.sum().backward()
        first.sum().backward()
        third.sum().backward()
    assert [e.call for e in recording.events] == [2, 1, 3]


def test_a_module_that_calls_itself():
    class Countdown(nn.Module):
        def forward(self, x, n):
            return self(x * 2, n - 1) if n else x * 3

    model = Countdown()
    with record(model) as recording:
        model(ones(1), 2).sum().backward()
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


def test_two_backward_passes_log_twice():
    layer = nn.Linear(4, 2)
    with record(layer) as recording:
        loss = layer(ones(1, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    back = ["full_backward_pre (root)", "full_backward (root)"]
    assert recording.order()[2:] == back + back


def test_two_heads_fire_once_per_backward():
    model = Heads()
    with record(model, "trunk.*", "", kinds="full_backward") as recording:
        a, b = model(ones(1, 4))
        a.sum().backward(retain_graph=True)
        first = recording.order()
        b.sum().backward()
    assert first.count("full_backward (root)") == 1
    assert recording.order().count("full_backward (root)") == 2
    with record(model, "trunk.*", kinds="full_backward") as recording:
        a, b = model(ones(1, 4))
        a.sum().backward()
        b.sum().backward()
    assert recording.order() == ["full_backward trunk.a", "full_backward trunk.b"]


def test_with_a_hooked_container_backward_walks_an_unused_output_too():
    model = Heads()
    with record(model, parameters=True) as recording:
        a, _ = model(ones(1, 4))
        a.sum().backward()
    shapes = {(e.kind, e.name): e.shapes for e in recording.events}
    assert shapes["full_backward_pre", ""] == ((1, 4), None)
    assert shapes["full_backward_pre", "trunk.b"] == (None,)
    assert shapes["tensor", "trunk.b.weight"] is None
    assert model.trunk["b"].weight.grad is None


def test_double_backward_fires_in_both_passes():
    layer = nn.Linear(4, 2)
    x = ones(1, 4)
    with record(layer) as recording:
        (grad,) = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        assert recording.order()[2:] == ["full_backward_pre (root)", "full_backward (root)"]
        grad.sum().backward()
    assert recording.order()[4:] == ["full_backward_pre (root)", "full_backward (root)"]
    assert {event.call for event in recording.events} == {1}


def test_autograd_grad_of_a_weight_fires_the_pre_hook_only():
    layer = nn.Linear(4, 2)
    with record(layer, parameters=True) as recording:
        torch.autograd.grad(layer(ones(1, 4)).sum(), layer.weight)
    assert recording.order()[2:] == ["full_backward_pre (root)", "tensor weight"]


def test_a_hook_removed_while_it_runs_finishes_this_pass():
    layer = nn.Linear(4, 2)
    handles = {}

    def remover(*args):
        handles["self"].remove()
        handles["later"].remove()

    def later(*args):
        pass

    for kind in ("forward_pre", "forward", "full_backward_pre", "full_backward"):
        handles["self"] = getattr(layer, f"register_{kind}_hook")(remover)
        handles["later"] = getattr(layer, f"register_{kind}_hook")(later)
        with record(layer, kinds=[kind]) as recording:
            layer(ones(1, 4)).sum().backward()
            layer(ones(1, 4)).sum().backward()
        assert [e.hook for e in recording.events] == ["remover", "later", "", ""], kind
        assert hooks_on(layer)[len(GLOBAL_DICTS) + 2 :][: len(HOOK_DICTS)] == [[]] * len(HOOK_DICTS)


def test_a_tensor_hook_removed_while_it_runs_finishes_this_pass():
    x = ones(2)
    handles = [x.register_hook(lambda grad: [handle.remove() for handle in handles] and None)]

    def later(grad):
        pass

    handles.append(x.register_hook(later))
    with record(nn.Identity(), tensors={"x": x}) as recording:
        x.sum().backward()
        x.sum().backward()
    assert recording.order("tensor") == ["tensor x: <lambda>", "tensor x: later", "tensor x", "tensor x #2"]
    assert not x._backward_hooks


def test_a_hook_added_inside_runs_from_the_next_call_stays_and_is_noted():
    layer = nn.Linear(4, 2)
    ran = []

    def added(*args):
        ran.append("added")

    def adder(*args):
        ran.append("adder")
        if len(ran) == 1:
            layer.register_forward_hook(added)

    layer.register_forward_hook(adder)
    with record(layer, kinds="forward") as recording:
        layer(ones(1, 4))
        layer(ones(1, 4))
    assert ran == ["adder", "adder", "added"]
    assert recording.order() == [
        "forward (root): adder",
        "forward (root)",
        "forward (root) #2: adder",
        "forward (root) #2",
    ]
    assert recording.notes == ("added was registered on layer (root) (Linear) inside the block: not logged",)
    assert list(layer._forward_hooks.values()) == [adder, added]


def test_an_error_in_a_backward_hook_keeps_its_type_and_the_log_until_then():
    model = nested()

    def stop(*args):
        raise ZeroDivisionError("stop")

    model[0].register_full_backward_hook(stop)
    before = hooks_on(model)
    with pytest.raises(ZeroDivisionError), record(model) as recording:
        model(ones(1, 4)).sum().backward()
    assert hooks_on(model) == before
    assert recording.order()[-1] == "full_backward 0: stop"
    assert model[1].weight.grad is not None
    assert str(recording).endswith("stop")


def test_an_error_in_forward_runs_always_called_hooks_only():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    def always(module, args, output):
        pass

    def never(module, args, output):
        pass

    model = nn.Sequential(Broken())
    model[0].register_forward_hook(never)
    model[0].register_forward_hook(always, always_call=True)
    before = hooks_on(model)
    with pytest.raises(ValueError, match=r"^broken$"), record(model) as recording:
        model(ones(1))
    assert hooks_on(model) == before
    assert recording.order() == ["forward_pre (root)", "forward_pre 0", "forward 0: always"]
    assert recording.events[-1].shapes is None
    assert recording.events[-1].depth == 1


def test_a_layer_that_fails_and_is_caught_does_not_hold_what_comes_after():
    class Fallback(nn.Module):
        def __init__(self):
            super().__init__()
            self.bad, self.good = nn.Linear(9, 9), nn.Linear(4, 2)

        def forward(self, x):
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x)

    model = Fallback()
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(ones(1, 4))
    assert repr(recording.call_tree()).splitlines() == [
        "forward",
        "└── (root): Fallback.__call__()",
        "    ├── [1] forward_pre  args ((1, 4),)",
        "    ├── forward()",
        "    │   ├── bad: Linear.__call__()",
        "    │   │   ├── [2] forward_pre  args ((1, 4),)",
        "    │   │   └── forward() did not return",
        "    │   └── good: Linear.__call__()",
        "    │       ├── [3] forward_pre  args ((1, 4),)",
        "    │       ├── forward()",
        "    │       └── [4] forward  output (1, 2)",
        "    └── [5] forward  output (1, 2)",
    ]


def test_a_pre_hook_that_raises_leaves_the_call_uncounted():
    layer = nn.Linear(4, 2)
    trouble = [True]

    def sometimes(*args):
        if trouble.pop():
            raise ValueError("not yet")

    layer.register_forward_pre_hook(sometimes)
    with record(layer) as recording:
        with pytest.raises(ValueError, match="not yet"):
            layer(ones(1, 4))
        trouble.append(False)
        layer(ones(1, 4)).sum().backward()
    assert {event.call for event in recording.events} == {1}
    assert recording.uncalled == ()


# One tensor: torch orders its hooks by kind, whatever the order in which they were registered.


def recorded(build, run, kinds="forward"):
    """Record what `run` fires after `build` has watched something."""
    with record(nn.Identity(), kinds=kinds) as recording:
        run(*build(recording))
    return recording


@pytest.mark.parametrize("scrambled", [False, True])
def test_a_leaf_multi_grad_in_line_accumulate_grad_around_the_filling(scrambled):
    x = ones(2)
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
        if scrambled:
            recording.watch_all({"x": x}, "any")
            recording.watch(x, "x", retain_grad=True, nodes=True)
            recording.watch_all({"x": x})
        else:
            recording.watch_all({"x": x}, "any")
            recording.watch_all({"x": x})
            recording.watch(x, "x", nodes=True, retain_grad=True)
        (x * 3).sum().backward()
    before = ["tensor x: first", "tensor x: second"]
    own = ["multi_grad x", "tensor x", "multi_grad x"] if scrambled else ["multi_grad x", "multi_grad x", "tensor x"]
    # Each sees what the one before it made.
    assert filled == {"tensor": False, "second": [30, 30], "post": [30, 30]}
    assert recording.order() == [
        *before,
        *own,
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
    x = ones(2)
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
        x = recording.watch(ones(2), "x", retain_grad=True, nodes=True)
        y = recording.watch(x * 2, "y", retain_grad=True, nodes=True)
        return x, y, y.sum()

    recording = recorded(build, run)
    assert recording.order() == expected


def test_the_gradient_of_a_tensor_used_twice_is_summed_before_its_hooks():
    def build(recording):
        y = recording.watch(ones(2) * 2, "y", retain_grad=True, nodes=True)
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
        y = recording.watch(ones(2) * 2, "y")
        (y * 3 + y * 5).sum().backward()
    assert [event.values.tolist() for event in recording.events] == [[8, 8]]


def linear_with_nodes(grad):
    layer = nn.Linear(4, 2)
    x = ones(3, 4, grad=grad)

    def watch_inner(module, args, output):
        recording.watch(output, "addmm", nodes=True)

    inner = layer.register_forward_hook(watch_inner)
    with record(layer, parameters=True) as recording:
        if grad:
            recording.watch(x, "x", retain_grad=True)
            x = recording.watch(x * 1, "in", nodes=True)
        recording.watch(layer(x), "out", nodes=True).sum().backward()
    inner.remove()
    return [event.label.removesuffix(" (root)") for event in recording.events if event.phase == "backward"], recording


LEAVES = ["tensor bias", "post_accumulate_grad bias", "tensor weight", "post_accumulate_grad weight"]


def test_the_nodes_around_a_linear_with_an_input_that_requires_grad():
    order, recording = linear_with_nodes(grad=True)
    assert order == [
        "tensor out",
        "node_pre out",
        "full_backward_pre",
        "node_post out",
        "tensor addmm",
        "node_pre addmm",
        "node_post addmm",
        *LEAVES,
        "full_backward",
        "tensor in",
        "node_pre in",
        "node_post in",
        "tensor x",
        "post_accumulate_grad x",
    ]
    nodes = {event.name: event.type for event in recording.events if event.kind == "node_pre"}
    assert nodes == {"out": "BackwardHookFunctionBackward", "addmm": "AddmmBackward0", "in": "MulBackward0"}


def test_the_nodes_around_a_linear_with_a_plain_input():
    order, _ = linear_with_nodes(grad=False)
    assert order == [
        "tensor out",
        "node_pre out",
        "full_backward_pre",
        "full_backward",
        "node_post out",
        "tensor addmm",
        "node_pre addmm",
        "node_post addmm",
        *LEAVES,
    ]
