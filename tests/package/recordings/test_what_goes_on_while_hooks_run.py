"""Hooks that are removed, added or that raise while a pass runs, and layers that raise, as recordings show them."""

import pytest
from torch import nn

from hookscope.recordings.record import record
from tests.shared.awkward_models import Do, Net
from tests.shared.recording_helpers import GLOBAL_DICTS, HOOK_DICTS, list_hooks, make_nested, make_ones


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
            layer(make_ones(1, 4)).sum().backward()
            layer(make_ones(1, 4)).sum().backward()
        assert [e.hook for e in recording.events] == ["remover", "later", "", ""], kind
        assert list_hooks(layer)[len(GLOBAL_DICTS) + 2 :][: len(HOOK_DICTS)] == [[]] * len(HOOK_DICTS)


def test_a_tensor_hook_removed_while_it_runs_finishes_this_pass():
    x = make_ones(2)
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
        layer(make_ones(1, 4))
        layer(make_ones(1, 4))
    assert ran == ["adder", "adder", "added"]
    assert recording.order() == [
        "forward (root): adder",
        "forward (root)",
        "forward (root) #2: adder",
        "forward (root) #2",
    ]
    (note,) = recording.notes
    assert note.startswith("The hook added was registered on layer (root) (Linear) inside the block")
    assert list(layer._forward_hooks.values()) == [adder, added]


def test_an_error_in_a_backward_hook_keeps_its_type_and_the_log_until_then():
    model = make_nested()

    def stop(*args):
        raise ZeroDivisionError("stop")

    model[0].register_full_backward_hook(stop)
    before = list_hooks(model)
    with pytest.raises(ZeroDivisionError), record(model) as recording:
        model(make_ones(1, 4)).sum().backward()
    assert list_hooks(model) == before
    assert recording.order()[-1] == "full_backward 0: stop"
    assert model[1].weight.grad is not None
    assert str(recording).endswith("stop")


def test_an_error_in_forward_runs_always_called_hooks_only():
    def always(module, args, output):
        pass

    def never(module, args, output):
        pass

    def fail(x):
        raise ValueError("broken")

    model = nn.Sequential(Do(fail))
    model[0].register_forward_hook(never)
    model[0].register_forward_hook(always, always_call=True)
    before = list_hooks(model)
    with pytest.raises(ValueError, match=r"^broken$"), record(model) as recording:
        model(make_ones(1))
    assert list_hooks(model) == before
    assert recording.order() == ["forward_pre (root)", "forward_pre 0", "forward 0: always"]
    assert recording.events[-1].shapes is None
    assert recording.events[-1].depth == 1


def test_a_layer_that_fails_and_is_caught_does_not_hold_what_comes_after():
    def run(self, x):
        try:
            return self.bad(x)
        except RuntimeError:
            return self.good(x)

    model = Net(run, bad=nn.Linear(9, 9), good=nn.Linear(4, 2))
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(make_ones(1, 4))
    assert repr(recording.call_tree()).splitlines() == [
        "forward",
        "└── (root): Net.__call__()",
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
    layer.register_forward_hook(lambda *given: None, always_call=True)  # fires also after a pre-hook that raised
    with record(layer) as recording:
        with pytest.raises(ValueError, match="not yet"):
            layer(make_ones(1, 4))
        trouble.append(False)
        layer(make_ones(1, 4)).sum().backward()
    assert {event.call for event in recording.events} == {1}
    assert len(recording.order("forward")) == 3
    assert recording.uncalled == ()
