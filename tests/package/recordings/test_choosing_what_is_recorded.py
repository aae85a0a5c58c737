"""Which layers, kinds and tensors are recorded, and what is refused before anything is registered."""

import warnings

import pytest
import torch
from torch import nn

from hookscope.recordings.record import record
from tests.shared.networks import make_two_heads
from tests.shared.recording_helpers import list_hooks, make_nested, make_ones


def test_layers_and_kinds_can_be_chosen():
    model = make_nested()
    with record(model, nn.Linear, kinds=("forward_pre", "full_backward")) as recording:
        model(make_ones(1, 4)).sum().backward()
    assert recording.order() == ["forward_pre 0.0", "forward_pre 1", "full_backward 1", "full_backward 0.0"]
    with record(model, "0.**", kinds="full_backward_pre") as recording:
        model(make_ones(1, 4)).sum().backward()
    assert recording.order() == ["full_backward_pre 0.1", "full_backward_pre 0.0"]


def test_uncalled_layers_are_listed_and_containers_without_forward_are_not():
    model = make_two_heads()
    model.spare = nn.Linear(1, 1)
    with record(model) as recording:
        model.trunk["a"](make_ones(1, 4))
    assert recording.uncalled == ("", "trunk.b", "spare")


def test_a_shared_module_has_its_first_name():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(4, 4), relu)
    with record(model, kinds="forward") as recording:
        model(make_ones(1, 4))
    assert recording.order() == ["forward 0", "forward 1", "forward 0 #2", "forward (root)"]


def test_parameters_shared_and_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    with record(model, kinds=("tensor", "post_accumulate_grad"), parameters=True) as recording:
        model(make_ones(1, 2)).sum().backward()
    assert sorted(recording.order("tensor")) == ["tensor 0.weight", "tensor 1.bias"]
    with record(model, "1", kinds=["post_accumulate_grad"], parameters=True) as recording:
        model(make_ones(1, 2)).sum().backward()
    assert sorted(recording.order()) == ["post_accumulate_grad 1.bias", "post_accumulate_grad 1.weight"]


def test_watch_returns_the_tensor_and_counts_firings():
    with record(nn.Identity(), kinds="forward") as recording:
        for _ in range(2):
            y = make_ones(2) * 2
            assert recording.watch(y, "y") is y
            y.sum().backward()
    assert recording.order() == ["tensor y", "tensor y #2"]
    assert recording.events[0].shapes == (2,)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m: record(m, kinds=("foward",)), ValueError, "'foward'.*Did you mean 'forward'?"),
        (lambda m: record(m, kinds="backward"), ValueError, "legacy backward hook.*Record 'full_backward'"),
        (lambda m: record(m, kinds=["node_post"]), ValueError, r"does not take 'node_post'.* Recording\.watch"),
        (lambda m: record(m, kinds="forward", parameters=True), ValueError, "kinds='forward' has neither"),
        (lambda m: record(m, kinds="post_accumulate_grad"), ValueError, "Pass parameters=True"),
        (lambda m: record(m, "00"), LookupError, "no layer '00'; did you mean '0'?"),
        (lambda m: record(m, tensors={"x": make_ones(1, grad=False)}), ValueError, r"x\.requires_grad_\(\)"),
        (lambda m: record(m).watch(make_ones(1), "x"), RuntimeError, "outside the with-block"),
        (lambda m: record(m).picture(), ValueError, "no events to draw"),
        (lambda m: record(m, kinds="forward").call_tree(), ValueError, "'forward_pre' and 'forward'"),
        (lambda m: record(m).order("forwards"), ValueError, "'forwards'.*Pass some of"),
    ],
)
def test_bad_input_is_named_before_anything_is_registered(call, error, text):
    model = make_nested()
    before = list_hooks(model)
    with pytest.raises(error, match=text):
        call(model)
    assert list_hooks(model) == before


def test_compiled_and_scripted_models_are_refused():
    # What torch.compile and Module.compile leave on a module; calling them takes ten seconds of imports.
    model = nn.Sequential()
    model._orig_mod = make_nested()
    with pytest.raises(ValueError, match="the model is compiled"):
        record(model)
    model = make_nested()
    model[0]._compiled_call_impl = model[0]._call_impl
    with pytest.raises(ValueError, match="layer '0' is compiled"):
        record(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU())
    with pytest.raises(ValueError, match="layer '0' is TorchScript"):
        record(model)
    with record(model, nn.ReLU) as recording:
        model(make_ones(1, 4))
    assert recording.order() == ["forward_pre 1", "forward 1"]


def test_a_recording_is_made_once():
    recording = record(make_nested())
    with recording, pytest.raises(RuntimeError, match=r"Call record\(\.\.\.\) again"):
        recording.__enter__()
    with pytest.raises(RuntimeError, match="already used"), recording:
        pass


def test_watching_what_does_not_require_grad_ends_the_block_with_hooks_off():
    model = make_nested()
    before = list_hooks(model)
    with pytest.raises(ValueError, match="tensor 'y' does not require grad"), record(model) as recording:
        recording.watch(torch.ones(1), "y")
    assert list_hooks(model) == before


def test_max_events_stops_the_log_and_says_so():
    model = make_nested()
    with record(model, max_events=3) as recording:
        model(make_ones(1, 4))
    assert len(recording.events) == 3
    (note,) = recording.notes
    assert "Only the first 3 events were logged" in note
    assert "max_events" in note
