"""What the events of a recording say, and that hooks are called as the learner knows them."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookscope.recordings.record import Event, record
from tests.shared.awkward_models import Do, Net
from tests.shared.recording_helpers import list_hooks, make_nested, make_ones


def test_shapes_keep_the_structure():
    model = Net(lambda self, x, pair, flag, scale=None: {"a": x * pair[0], "rest": [pair[1], None, 3]})
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(make_ones(2, 3), (torch.ones(3), torch.tensor(1.0)), True, scale=torch.ones(1))
    assert [e.shapes for e in recording.events] == [
        ((2, 3), ((3,), ()), "bool", {"scale": (1,)}),
        {"a": (2, 3), "rest": ((), None, "int")},
    ]


def test_an_output_that_contains_itself_is_described():
    def run(x):
        loop = [x]
        loop.append(loop)
        return loop

    model = Do(run)
    with record(model, kinds="forward") as recording:
        model(make_ones(1))
    assert "list" in str(recording.events[0].shapes)


def test_nested_tensors_and_lstm_state_are_described():
    lstm = nn.LSTM(4, 5, batch_first=True)
    with record(lstm) as recording:
        output, _ = lstm(make_ones(2, 3, 4))
        output.sum().backward()
    by_kind = {e.kind: e.shapes for e in recording.events}
    assert by_kind["forward"] == ((2, 3, 5), ((1, 2, 5), (1, 2, 5)))
    assert by_kind["full_backward"] == ((2, 3, 4),)
    assert by_kind["full_backward_pre"] == ((2, 3, 5), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ragged = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)])
    identity = nn.Identity()
    with record(identity, kinds="forward") as recording:
        identity(ragged)
    assert recording.events[0].shapes == "nested tensor"


def test_events_are_complete_and_frozen():
    layer = nn.Linear(4, 2)
    with record(layer) as recording:
        layer(make_ones(1, 4)).sum().backward()
    assert recording.events == (
        Event(1, "forward_pre", "", "Linear", 1, "forward", ((1, 4),)),
        Event(2, "forward", "", "Linear", 1, "forward", (1, 2)),
        Event(3, "full_backward_pre", "", "Linear", 1, "backward", ((1, 2),)),
        Event(4, "full_backward", "", "Linear", 1, "backward", ((1, 4),)),
    )
    with pytest.raises(AttributeError):
        recording.events[0].kind = "forward"


def test_hooks_are_called_as_the_learner_knows_them():
    class Logger:
        def on_forward(self, module, args, output):
            pass

        def __call__(self, module, args, output):
            pass

    def with_name(name, module, args, output):
        pass

    layer = nn.Linear(4, 2)
    layer.register_forward_hook(Logger().on_forward)
    layer.register_forward_hook(Logger())
    layer.register_forward_hook(__import__("functools").partial(with_name, "fc"))
    with record(layer, kinds="forward") as recording:
        layer(make_ones(1, 4))
    assert [e.hook for e in recording.events] == ["Logger.on_forward", "Logger()", "partial(with_name)", ""]


def test_hooks_keep_their_arguments_and_what_they_return():
    layer = nn.Linear(4, 2, bias=False)
    nn.init.ones_(layer.weight)
    seen = {}

    def double_args(module, args, kwargs):
        return (args[0] * 2,), kwargs

    def add_one(module, args, kwargs, output):
        seen["kwargs"] = kwargs
        return output + 1

    layer.register_forward_pre_hook(double_args, with_kwargs=True)
    layer.register_forward_hook(add_one, with_kwargs=True)
    layer.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 3,))
    layer.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] * 5,))
    x = make_ones(1, 4)
    x.register_hook(lambda grad: grad * 7)
    layer.weight.register_hook(lambda grad: grad * 11)
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.update(grad=p.grad.clone()))
    before = list_hooks(layer)
    with record(layer, tensors={"x": x}, parameters=True) as recording:
        y = layer(x)
        y.sum().backward()
    assert list_hooks(layer) == before
    assert y.tolist() == [[9.0, 9.0]]
    assert seen["kwargs"] == {}
    assert x.grad[0, 0].item() == 2 * 3 * 5 * 7 * 2  # two outputs; the pre-hook doubled x
    assert layer.weight.grad[0, 0].item() == seen["grad"][0, 0].item() == 2 * 3 * 11
    assert recording.order("tensor", "post_accumulate_grad") == [
        "tensor weight: <lambda>",
        "tensor weight",
        "post_accumulate_grad weight: <lambda>",
        "post_accumulate_grad weight",
        "tensor x: <lambda>",
        "tensor x",
    ]
    assert len(x._backward_hooks) == 1


def test_arity_errors_stay_the_learners_own():
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda module, args: None)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"), record(layer):
        layer(make_ones(1, 4))


def test_a_global_hook_is_logged_for_the_chosen_layers_only():
    model, other = make_nested(), nn.Linear(4, 2)
    ran = []

    def everywhere(module, args, output):
        ran.append(type(module).__name__)

    handle = torch_module.register_module_forward_hook(everywhere)
    with record(model, "0.*", kinds="forward") as recording:
        model(make_ones(1, 4))
        other(make_ones(1, 4))
    handle.remove()
    assert len(ran) == 6
    assert recording.order() == ["forward 0.0: everywhere", "forward 0.0", "forward 0.1: everywhere", "forward 0.1"]


@pytest.mark.parametrize("kinds", [None, "forward", "full_backward"])
def test_a_recording_that_saw_no_call_says_what_to_do(kinds):
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    compiled, x = torch.compile(net, backend="eager"), torch.ones(1, 2)
    compiled(x)
    leaf = nn.Tanh()
    for model, run in ((net, lambda: None), (leaf, lambda: leaf.forward(x)), (net, lambda: compiled(x))):
        with record(model, kinds=kinds) as recording:
            run()
        assert recording.events == ()
        assert recording.notes[-1].startswith("No recorded layer ran inside the block. Call model(...)")
    with record(net, kinds=kinds) as recording:
        net(x)
    assert recording.notes == ()
    with pytest.raises(KeyError), record(net, kinds=kinds) as recording:
        raise KeyError
    assert recording.notes == ()
