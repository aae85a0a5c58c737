"""Recordings log what torch fires and leave no trace."""

import copy
import gc
import json
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from hookscope.recordings.record import KINDS, Event, FullBackwardHookError, record
from tests.shared.recorded import NESTED_FORWARD, Heads, ToDict, Twice, hooks_on, nested, nothing_left_behind, ones  # noqa: F401

# What the events say.


def test_shapes_keep_the_structure():
    class Odd(nn.Module):
        def forward(self, x, pair, flag, scale=None):
            return {"a": x * pair[0], "rest": [pair[1], None, 3]}

    model = Odd()
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(ones(2, 3), (torch.ones(3), torch.tensor(1.0)), True, scale=torch.ones(1))
    assert [e.shapes for e in recording.events] == [
        ((2, 3), ((3,), ()), "bool", {"scale": (1,)}),
        {"a": (2, 3), "rest": ((), None, "int")},
    ]
    assert json.loads(json.dumps(recording.to_dicts()))[0]["shapes"] == [
        [2, 3],
        [[3], []],
        "bool",
        {"scale": [1]},
    ]


def test_an_output_that_contains_itself_is_described():
    class Loop(nn.Module):
        def forward(self, x):
            loop = [x]
            loop.append(loop)
            return loop

    model = Loop()
    with record(model, kinds="forward") as recording:
        model(ones(1))
    assert "list" in str(recording.events[0].shapes)


def test_nested_tensors_and_lstm_state_are_described():
    lstm = nn.LSTM(4, 5, batch_first=True)
    with record(lstm) as recording:
        output, _ = lstm(ones(2, 3, 4))
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
        layer(ones(1, 4)).sum().backward()
    assert recording.events == (
        Event(1, "forward_pre", "", "Linear", 1, "forward", ((1, 4),)),
        Event(2, "forward", "", "Linear", 1, "forward", (1, 2)),
        Event(3, "full_backward_pre", "", "Linear", 1, "backward", ((1, 2),)),
        Event(4, "full_backward", "", "Linear", 1, "backward", ((1, 4),)),
    )
    with pytest.raises(AttributeError):
        recording.events[0].kind = "forward"
    assert set(recording.to_dicts()[0]) == set(Event.__dataclass_fields__)


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
        layer(ones(1, 4))
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
    x = ones(1, 4)
    x.register_hook(lambda grad: grad * 7)
    layer.weight.register_hook(lambda grad: grad * 11)
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.update(grad=p.grad.clone()))
    before = hooks_on(layer)
    with record(layer, tensors={"x": x}, parameters=True) as recording:
        y = layer(x)
        y.sum().backward()
    assert hooks_on(layer) == before
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
        layer(ones(1, 4))


def test_a_global_hook_is_logged_for_the_chosen_layers_only():
    model, other = nested(), nn.Linear(4, 2)
    ran = []

    def everywhere(module, args, output):
        ran.append(type(module).__name__)

    handle = torch_module.register_module_forward_hook(everywhere)
    with record(model, "0.*", kinds="forward") as recording:
        model(ones(1, 4))
        other(ones(1, 4))
    handle.remove()
    assert len(ran) == 6
    assert recording.order() == [
        "forward 0.0: everywhere",
        "forward 0.0",
        "forward 0.1: everywhere",
        "forward 0.1",
    ]


# Which layers, kinds, tensors.


def test_layers_and_kinds_can_be_chosen():
    model = nested()
    with record(model, nn.Linear, kinds=("forward_pre", "full_backward")) as recording:
        model(ones(1, 4)).sum().backward()
    assert recording.order() == ["forward_pre 0.0", "forward_pre 1", "full_backward 1", "full_backward 0.0"]
    with record(model, "0.**", kinds="full_backward_pre") as recording:
        model(ones(1, 4)).sum().backward()
    assert recording.order() == ["full_backward_pre 0.1", "full_backward_pre 0.0"]


def test_uncalled_layers_are_listed_and_containers_without_forward_are_not():
    model = Heads()
    model.spare = nn.Linear(1, 1)
    with record(model) as recording:
        model.trunk["a"](ones(1, 4))
    assert recording.uncalled == ("", "trunk.b", "spare")


def test_a_shared_module_has_its_first_name():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(4, 4), relu)
    with record(model, kinds="forward") as recording:
        model(ones(1, 4))
    assert recording.order() == ["forward 0", "forward 1", "forward 0 #2", "forward (root)"]


def test_parameters_shared_and_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    with record(model, kinds=("tensor", "post_accumulate_grad"), parameters=True) as recording:
        model(ones(1, 2)).sum().backward()
    assert sorted(recording.order("tensor")) == ["tensor 0.weight", "tensor 1.bias"]
    with record(model, "1", kinds=["post_accumulate_grad"], parameters=True) as recording:
        model(ones(1, 2)).sum().backward()
    assert sorted(recording.order()) == ["post_accumulate_grad 1.bias", "post_accumulate_grad 1.weight"]


def test_watch_returns_the_tensor_and_counts_firings():
    with record(nn.Identity(), kinds="forward") as recording:
        for _ in range(2):
            y = ones(2) * 2
            assert recording.watch(y, "y") is y
            y.sum().backward()
    assert recording.order() == ["tensor y", "tensor y #2"]
    assert recording.events[0].shapes == (2,)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: record(m, kinds=("foward",)), ValueError, "no kind 'foward'; did you mean 'forward'?"),
        (lambda m: record(m, kinds="zzz"), ValueError, "no kind 'zzz'; kinds are forward_pre, forward, "),
        (lambda m: record(m, kinds="backward"), ValueError, "legacy backward hook.*record 'full_backward'"),
        (lambda m: record(m, kinds="forward", parameters=True), ValueError, "parameters=True needs kind"),
        (lambda m: record(m, kinds="post_accumulate_grad"), ValueError, "add parameters=True"),
        (lambda m: record(m, "00"), LookupError, "no layer '00'; did you mean '0'?"),
        (lambda m: record(m, tensors={"x": ones(1, grad=False)}), ValueError, r"x\.requires_grad_\(\)"),
        (lambda m: record(m, tensors={"x": 3}), TypeError, "'x' must be a Tensor, not int"),
        (lambda m: record(m, max_events=0), ValueError, "max_events must be 1 or more"),
        (lambda m: record("model"), TypeError, "model must be a torch.nn.Module"),
        (lambda m: record(m).watch(ones(1), "x"), RuntimeError, "outside the with-block"),
        (lambda m: record(m).timeline(), ValueError, "no events"),
        (lambda m: record(m, kinds="forward").call_tree(), ValueError, "'forward_pre' and 'forward'"),
        (lambda m: record(m).order("forwards"), ValueError, "no kind 'forwards'"),
        (lambda m: record(m).compare("forward 0"), TypeError, "not one string"),
    ],
)
def test_bad_input_is_named_before_anything_is_registered(call, error, text):
    model = nested()
    before = hooks_on(model)
    with pytest.raises(error, match=text):
        call(model)
    assert hooks_on(model) == before


def test_compiled_and_scripted_models_are_refused():
    # What torch.compile and Module.compile leave on a module; calling them takes ten seconds of imports.
    model = nn.Sequential()
    model._orig_mod = nested()
    with pytest.raises(ValueError, match="the model is compiled"):
        record(model)
    model = nested()
    model[0]._compiled_call_impl = model[0]._call_impl
    with pytest.raises(ValueError, match="layer '0' is compiled"):
        record(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU())
    with pytest.raises(ValueError, match="layer '0' is TorchScript"):
        record(model)
    with record(model, nn.ReLU) as recording:
        model(ones(1, 4))
    assert recording.order() == ["forward_pre 1", "forward 1"]


def test_a_recording_is_made_once():
    recording = record(nested())
    with recording, pytest.raises(RuntimeError, match=r"call record\(\.\.\.\) again"):
        recording.__enter__()
    with pytest.raises(RuntimeError, match="made once"), recording:
        pass


def test_watching_what_does_not_require_grad_ends_the_block_with_hooks_off():
    model = nested()
    before = hooks_on(model)
    with pytest.raises(ValueError, match="tensor 'y' does not require grad"), record(model) as recording:
        recording.watch(torch.ones(1), "y")
    assert hooks_on(model) == before


def test_max_events_stops_the_log_and_says_so():
    model = nested()
    with record(model, max_events=3) as recording:
        model(ones(1, 4))
    assert len(recording.events) == 3
    assert recording.notes == ("only the first 3 events were logged; see max_events",)


# No trace.


def busy_model():
    """A model with a hook of every kind and option on it."""
    model = nested()

    def hook(*args):
        pass

    for module in model.modules():
        module.register_forward_pre_hook(hook, with_kwargs=True)
        module.register_forward_hook(lambda *args: None, always_call=True)
        module.register_forward_hook(hook, prepend=True, with_kwargs=True)
        module.register_full_backward_pre_hook(hook)
        module.register_full_backward_hook(hook)
    model[1].weight.register_hook(hook)
    model[1].weight.register_post_accumulate_grad_hook(hook)
    return model


@pytest.mark.parametrize("make", [nested, busy_model])
@pytest.mark.parametrize("end", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_everything_is_as_before_however_the_block_ends(make, end):
    model = make()
    before = hooks_on(model)
    try:
        with record(model, parameters=True) as recording:
            model(ones(1, 4)).sum().backward()
            assert hooks_on(model) != before
            if end:
                raise end
    except (ValueError, KeyboardInterrupt, SystemExit):
        assert end
    assert hooks_on(model) == before
    assert recording.order("forward")[-1] == "forward (root)"


def test_an_interrupted_forward_leaves_nothing_and_can_be_read():
    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.ReLU(), Interrupted())
    before = hooks_on(model)
    with pytest.raises(KeyboardInterrupt), record(model) as recording:
        model(ones(1))
    assert hooks_on(model) == before
    assert recording.order() == ["forward_pre (root)", "forward_pre 0", "forward 0", "forward_pre 1"]
    assert "forward() did not return" in repr(recording.call_tree())


def test_a_start_that_fails_takes_off_what_is_on():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
    before = hooks_on(model[0])
    with pytest.raises(ValueError, match=r"parameter '1\.weight' has no shape yet"), record(model, parameters=True):
        pass
    assert hooks_on(model[0]) == before
    with record(model) as recording:  # torch's own hook removes itself and changes the layer's class
        model(ones(1, 4))
    lazy = [event for event in recording.events if event.name == "1"]
    assert [e.hook for e in lazy] == ["LazyModuleMixin._infer_parameters", "", ""]
    assert [e.type for e in lazy] == ["LazyLinear", "Linear", "Linear"]
    assert not model[1]._forward_pre_hooks


def test_a_removed_hook_stays_removed_and_a_replaced_one_stays_replaced():
    model = nested()

    def hook(*args):
        pass

    def other(*args):
        pass

    gone = model[0].register_forward_hook(hook, always_call=True)
    kept = model[0].register_forward_hook(hook)
    replaced = model[1].register_full_backward_hook(hook)
    with record(model):
        model(ones(1, 4))
        gone.remove()
        model[1]._backward_hooks[replaced.id] = other
        model(ones(1, 4)).sum().backward()
    assert list(model[0]._forward_hooks.items()) == [(kept.id, hook)]
    assert not model[0]._forward_hooks_always_called
    assert list(model[1]._backward_hooks.values()) == [other]
    kept.remove()
    assert not model[0]._forward_hooks


def test_legacy_hooks_can_be_registered_afterwards():
    model = nested()
    with record(model):
        model(ones(1, 4))
    model[0].register_backward_hook(lambda *args: None)
    with record(model[1]) as recording:
        model[1].register_full_backward_hook(lambda *args: None)
    assert model[1]._is_full_backward_hook is True
    assert len(recording.notes) == 1


def test_a_legacy_hook_is_logged_and_receives_what_it_did():
    got = {}

    def legacy(module, grad_input, grad_output):
        got[len(got)] = [None if g is None else tuple(g.shape) for g in grad_input]

    model = nested()
    model.register_backward_hook(legacy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model(ones(2, 4)).sum().backward()
        with record(model) as recording:
            model(ones(2, 4)).sum().backward()
    assert got[0] == got[1]
    assert recording.order("backward", "full_backward", "full_backward_pre") == ["backward (root): legacy"]
    assert recording.notes == (
        "layer (root) (Sequential) has a legacy backward hook, and full backward hooks would change what it "
        "receives: none recorded",
    )


def test_a_layer_that_once_had_a_legacy_hook_keeps_its_pre_hook():
    model = nested()
    model[1].register_backward_hook(lambda *args: None).remove()
    before = hooks_on(model)
    with record(model) as recording:
        model(ones(2, 4)).sum().backward()
    assert hooks_on(model) == before
    assert "full_backward_pre 1" in recording.order()
    assert "full_backward 1" not in recording.order()
    assert "full_backward 0" in recording.order()
    assert recording.notes == ("layer 1 (Linear) once had a legacy backward hook: torch refuses full ones there",)


def test_recordings_nest():
    model = Twice()

    def mine(module, grad_input, grad_output):
        pass

    model.fc.register_full_backward_hook(mine)
    before = hooks_on(model)
    with record(model) as outer:
        model(ones(1, 4))
        with record(model, "fc") as inner:
            model(ones(1, 4)).sum().backward()
        model(ones(1, 4)).sum().backward()
    assert hooks_on(model) == before
    assert inner.order("full_backward") == [
        "full_backward fc #2: mine",
        "full_backward fc #2",
        "full_backward fc: mine",
        "full_backward fc",
    ]
    assert [e.call for e in outer.events if e.kind == "full_backward" and e.hook] == [4, 3, 6, 5]
    assert [e.call for e in outer.events if e.kind == "full_backward" and e.name and not e.hook] == [4, 3, 6, 5]


def test_recordings_that_end_in_the_other_order_leave_nothing_either():
    model = busy_model()
    before = hooks_on(model)
    first, second = record(model, parameters=True), record(model, parameters=True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    model(ones(1, 4)).sum().backward()
    second.__exit__(None, None, None)
    assert hooks_on(model) == before
    assert first.events == ()
    assert {"full_backward (root): hook", "tensor 1.weight: hook"} <= set(second.order())


def test_a_graph_run_backward_after_the_block_logs_nothing_and_adds_a_note(recwarn):
    model = nested()
    ran = []
    model[0].register_full_backward_hook(lambda *args: ran.append(1))
    with record(model) as recording:
        loss = model(ones(1, 4)).sum()
        early = nn.Sequential(nn.Linear(4, 1))
        with record(early) as other:
            late = early(ones(1, 4, grad=False)).sum()
    count = len(recording.events)
    loss.backward()
    late.backward()
    assert len(recording.events) == count
    assert ran == [1]
    text = "a graph built inside the block was run backward after it: not logged"
    assert recording.notes == (text,)
    assert other.notes == (text,)
    assert not recwarn.list


def test_a_graph_built_before_has_no_hooks_of_layers_in_it():
    layer = nn.Linear(4, 2)
    loss = layer(ones(1, 4)).sum()
    with record(layer, parameters=True) as recording:
        loss.backward()
    assert set(recording.order()) == {f"{k} {p}" for k in KINDS[4:] for p in ("weight", "bias")}


def test_a_recording_does_not_keep_the_model_or_its_tensors():
    model, x = nested(), ones(1, 4)
    with record(model, tensors={"x": x}) as recording:
        recording.watch(model(x), "y").sum().backward()
    refs = [weakref.ref(model), weakref.ref(model[0]), weakref.ref(x)]
    del model, x
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]
    assert len(recording.events) == 22


def test_a_model_cannot_be_copied_or_saved_with_the_hooks_of_a_recording(tmp_path):
    model = nested()
    with record(model, "0"):
        with pytest.raises(RuntimeError, match="outside the with-block"):
            copy.deepcopy(model)
        with pytest.raises(RuntimeError, match="outside the with-block"):
            torch.save(model, tmp_path / "model.pt")
    copy.deepcopy(model)


# Unaffected.


class Kwargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, *, scale):
        return {"a": self.fc(x) * scale, "b": None}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        output, (h, _) = self.lstm(x[:, None].expand(-1, 3, -1))
        return self.fc(output), h


MODELS = {
    "mlp": nested,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
    "batchnorm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(2)
    ),
    "lstm": Recurrent,
    "dict": ToDict,
    "kwargs": Kwargs,
    "twice": Twice,
    "heads": Heads,
    "frozen": lambda: nested().requires_grad_(False),
    "eval": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).eval(),
}


def flat(value):
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flat(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in flat(item)]
    return [value]


@pytest.mark.parametrize("grad", [True, False], ids=["input requires grad", "plain input"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_bit_for_bit_the_same(name, grad):
    torch.manual_seed(1)
    plain = MODELS[name]()
    if name == "conv":
        plain(torch.randn(2, 4))
        plain.zero_grad()
    recorded = copy.deepcopy(plain)
    data = torch.randn(6, 4)
    kwargs = {"scale": torch.tensor(3.0)} if name == "kwargs" else {}

    def run(model, **options):
        torch.manual_seed(7)
        x = data.clone().requires_grad_(grad)

        def steps():
            outputs = []
            for _ in range(2):
                new = [t for t in flat(model(x, **kwargs)) if t is not None]
                outputs += new
                loss = sum((output**2).sum() for output in new)
                if loss.requires_grad:
                    loss.backward()
            return outputs

        if options:
            with record(model, **options["options"]) as recording:
                outputs = steps()
            assert len(recording.events) > 3
        else:
            outputs = steps()
        return (
            outputs,
            [x.grad, *(p.grad for p in model.parameters())],
            list(model.buffers()),
            torch.get_rng_state(),
            [(m.training, m._is_full_backward_hook) for m in model.modules()],
            [(t.requires_grad, t.is_leaf) for t in (x, *outputs, *model.parameters())],
        )

    expected, actual = run(plain), run(recorded, options={"parameters": True})
    for left, right in zip(expected[:3], actual[:3], strict=True):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(expected[3], actual[3])
    assert expected[4:] == actual[4:]


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, unused):
        return self.fc(x)


def test_what_full_backward_hooks_do_change_is_as_documented():
    model = Unused()
    for kinds, zeros in [(None, True), (("forward_pre", "forward"), False)]:
        x, unused = ones(1, 4), ones(1, 4)
        with record(model, kinds=kinds):
            y = model(x, unused)
            y.sum().backward()
        assert (unused.grad is not None) is zeros
        assert y._is_view() is zeros

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return self.a(x) + self.b(x)

    class Wider(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = Sum()

        def forward(self, x):
            return self.sum(x) + self.sum.c(x)

    torch.manual_seed(0)
    model, x = Wider(), torch.randn(5, 16, requires_grad=True)

    def gradient(**options):
        x.grad = None
        with record(model, **options):
            model(x * 2).pow(2).sum().backward()
        return x.grad

    exact = gradient(kinds=("forward_pre", "forward"))
    assert torch.allclose(gradient(), exact)
    x.grad = None
    model(x * 2).pow(2).sum().backward()
    assert torch.equal(x.grad, exact)


def test_a_replica_that_shares_its_hooks_runs_unrecorded():
    layer = nn.ReLU()
    with record(layer) as recording:
        x = ones(2)
        layer._replicate_for_data_parallel()(x).sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert recording.events == ()


def test_no_grad_and_inference_mode():
    model = nested()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), record(model) as recording:
            y = model(torch.ones(1, 4))
        assert not y.requires_grad
        assert recording.order() == NESTED_FORWARD


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nested()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = Net()
    x = ones(2, 4)
    model(x).sum().backward()
    expected, x.grad = x.grad, None
    with record(model) as recording:
        loss = model(x).sum()
        loss.backward()
    assert torch.equal(x.grad, expected)
    assert "forward_pre block #2" in recording.order()
    x.grad = None
    with record(model, kinds=("forward_pre", "forward")) as recording:
        loss = model(x).sum()
    loss.backward()  # computes again without the hooks
    assert torch.equal(x.grad, expected)


def test_the_fused_encoder_path_is_noted():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad(), record(layer) as recording:
        layer(torch.ones(1, 3, 8))
    assert recording.notes == (
        "hooks switch off the fused path of layer (root) (TransformerEncoderLayer), where nothing inside fires",
    )
    assert recording.uncalled == ("self_attn.out_proj",)


# Where full backward hooks stop a model.


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        out = self.norm(self.fc(x))
        out += x
        return out


class Returns(nn.Module):
    def forward(self, x):
        return torch.max(x, 1)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
            "inside layer 1 (ReLU), after layer 0 (Linear) returned: they turn",
        ),
        (
            lambda: nn.Sequential(Residual(), nn.ReLU()),
            "inside layer 0 (Residual), after layer 0.norm (LayerNorm) returned: they turn",
        ),
        (
            lambda: nn.Sequential(nn.ReLU(), Returns()),
            "inside layer (root) (Sequential), after layer 1 (Returns) returned: they cannot rebuild",
        ),
    ],
)
def test_what_full_backward_hooks_cannot_do_is_explained(make, place):
    model = make()
    before = hooks_on(model)
    with pytest.raises(FullBackwardHookError) as caught, record(model) as recording:
        model(ones(2, 4))
    assert isinstance(caught.value, RuntimeError)
    assert place in str(caught.value)
    assert 'kinds=("forward_pre", "forward")' in str(caught.value)
    assert caught.value.__cause__ is not None
    assert hooks_on(model) == before
    assert "forward_pre (root)" in recording.order()
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(ones(2, 4))
    assert recording.order()[-1] == "forward (root)"


def test_leaving_out_the_layers_named_helps():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    with record(model, "2", "") as recording:
        model(ones(2, 4)).sum().backward()
    assert recording.order("full_backward") == ["full_backward 2", "full_backward (root)"]


def test_in_place_on_the_output_outside_any_layer_and_under_torch_func():
    layer = nn.Linear(4, 4)
    with pytest.raises(FullBackwardHookError, match=r"with-block, after layer \(root\)"), record(layer):
        layer(ones(1, 4)).add_(1)
    with pytest.raises(FullBackwardHookError, match=r"torch\.func\. Record with kinds"), record(layer):
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(1, 4))


def test_an_error_explained_once_stays_so_and_others_pass():
    model = nn.Sequential(nn.ReLU(), Returns())
    with pytest.raises(FullBackwardHookError) as caught, record(model), record(model):
        model(ones(2, 4))
    assert type(caught.value.__cause__) is TypeError
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    model.register_full_backward_hook(lambda *args: None)
    model[0].register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError) as caught, record(model, kinds="forward"):
        model(ones(2, 4))
    assert type(caught.value) is RuntimeError


# Warnings.

FIRING, OUTPUT = "Full backward hook is firing", "For backward hooks to be called"


def test_warnings_about_its_own_hooks_become_notes_and_filters_are_left_alone(capsys):
    model = nn.Sequential(nn.Linear(4, 4), ToDict())
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with record(model) as recording:
            model(ones(1, 4, grad=False))["out"].sum().backward()
            warnings.warn("mine", stacklevel=1)
    assert [str(w.message) for w in seen] == ["mine"]
    assert recording.notes == (
        "layer 1 (ToDict) returns a dict: its full backward hooks cannot fire",
        "layer (root) (Sequential) returns a dict: its full backward hooks cannot fire",
        "no input of layer 0 requires grad: full_backward fires early",
    )
    assert list(warnings.filters) == filters


def test_filters_set_inside_stay_and_do_not_bring_the_warnings_back():
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        with record(model):
            warnings.simplefilter("error")
            model(ones(1, 4, grad=False)).sum().backward()
        assert warnings.filters[0][0] == "error"
        with record(model):
            warnings.resetwarnings()
            model(ones(1, 4, grad=False)).sum().backward()
        assert not warnings.filters


@pytest.mark.parametrize("where", ["local", "global", "early"])
def test_the_same_warnings_about_hooks_of_the_learners_are_shown(where):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("torch warns since 2.8")
    model = nn.Sequential(nn.Linear(4, 4), ToDict())
    add = model[1].fc.register_full_backward_hook
    handles = []
    if where == "global":
        handles = [torch_module.register_module_full_backward_hook(lambda *args: None)]
    else:
        handles = [add(lambda *args: None), model[1].register_full_backward_hook(lambda *args: None)]
        handles += [model[0].register_full_backward_hook(lambda *args: None)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with record(model):
            model(ones(1, 4, grad=False))["out"].sum().backward()
    for handle in handles:
        handle.remove()
    torch_module._global_is_full_backward_hook = None
    texts = [str(w.message)[: len(FIRING)] for w in seen]
    assert texts.count(FIRING) == 1
    assert texts.count(OUTPUT[: len(FIRING)]) == (2 if where == "global" else 1)


def test_a_warning_shown_once_per_place_is_shown_after_and_not_again():
    model = nn.Linear(4, 2)

    def run():
        model(ones(1, 4, grad=False)).sum().backward()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        with record(model):
            for _ in range(2):
                warnings.warn("once", stacklevel=1)
                run()
    assert [str(w.message) for w in seen] == ["once"]
