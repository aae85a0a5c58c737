"""The numbers that a recording keeps on request, and how every kind of event is shown."""

import torch
from torch import nn

from hookscope.recordings.record import record
from tests.shared.awkward_models import Do
from tests.shared.recording_helpers import make_ones


def kept(*args):
    model = Do(lambda *args: args)
    with record(model, kinds="forward", values=True) as recording:
        model(*args)
    return recording


def test_numbers_are_kept_on_request_only():
    layer = nn.Linear(4, 2)
    with record(layer) as recording:
        layer(make_ones(1, 4)).sum().backward()
    assert {event.values for event in recording.events} == {None}
    assert "values" not in repr(recording)


def test_sixteen_elements_are_kept_and_seventeen_are_summed_up():
    recording = kept(torch.arange(16), torch.arange(17), torch.ones(20, dtype=torch.bool))
    small, large, flags = recording.events[0].values
    assert small.tolist() == list(range(16))
    assert (large.mean, large.min, large.max) == (8, 0, 16)
    assert (flags.mean, flags.min, flags.max) == (1, 1, 1)
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
    values = recording.events[0].values
    assert values[:3] == ("sparse tensor", "meta tensor", "complex tensor")
    assert values[3].tolist() == [1 + 0j]
    assert values[4] == {"a": (None, 2.5, True), "b": "ReLU"}
    assert str(values[5].mean) == "nan"
    assert values[6].tolist() == []


def test_numbers_under_transforms_and_in_inference_mode():
    layer = nn.Linear(2, 1)
    with record(layer, kinds="forward", values=True) as recording:
        torch.vmap(layer)(torch.ones(3, 2))
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(2))
        with torch.inference_mode():
            layer(torch.ones(1, 2))
    batched, inside, inferred = (event.values for event in recording.events)
    assert batched == "unreadable tensor"
    if torch.__version__ >= (2, 10):
        assert inside.tolist() == inferred[0].tolist()
        assert not torch._C._functorch.is_functorch_wrapped_tensor(inside)
    else:
        assert inside == "unreadable tensor"
    assert not inferred.is_inference()


def test_post_accumulate_grad_keeps_the_gradient():
    layer = nn.Linear(2, 1, bias=False)
    with record(layer, parameters=True, kinds="post_accumulate_grad", values=True) as recording:
        for _ in range(2):
            layer(make_ones(1, 2, grad=False)).sum().backward()
    assert [event.values.tolist() for event in recording.events] == [[[1, 1]], [[2, 2]]]


def everything():
    layer = nn.Linear(2, 1)
    with record(layer, parameters=True, values=True) as recording:
        y = recording.watch(layer(make_ones(1, 2)), "y", retain_grad=True, nodes=True)
        y.sum().backward()
    return recording


def test_every_kind_has_its_own_marker():
    from hookscope.recordings import timeline
    from hookscope.recordings.event import GIVEN

    assert set(timeline.MARKERS) == set(GIVEN)
    assert len(set(timeline.MARKERS.values())) == len(GIVEN)


def test_every_kind_is_shown():
    recording = everything()
    alt = recording.picture().alt
    assert "backward: tensor y" in alt
    tree = repr(recording.call_tree())
    for event in recording.events:
        assert sum(f"[{event.index}] " in line for line in tree.splitlines()) == 1
    assert "retain_grad" in recording._repr_mimebundle_()["text/html"]
    assert recording.order("retain_grad") == ["retain_grad y"]
