"""Warnings about the hooks of a recording become its notes; all others are shown as ever."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from hookscope.recordings.record import record
from tests.shared.awkward_models import Net
from tests.shared.recording_helpers import make_ones

FIRING, OUTPUT = "Full backward hook is firing", "For backward hooks to be called"


def test_warnings_about_its_own_hooks_become_notes_and_filters_are_left_alone(capsys):
    model = nn.Sequential(nn.Linear(4, 4), Net(lambda self, x: {"out": self.fc(x)}, fc=nn.Linear(4, 2)))
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with record(model) as recording:
            model(make_ones(1, 4, grad=False))["out"].sum().backward()
            warnings.warn("mine", stacklevel=1)
    assert [str(w.message) for w in seen] == ["mine"]
    parts = (
        "Layer 1 (Net) returns a dict, so its full backward hooks cannot fire",
        "Layer (root) (Sequential) returns a dict, so its full backward hooks cannot fire",
        "No input of layer 0 requires grad, so its full backward hooks fire early, before the gradients of its param",
    )
    assert all(part in note for part, note in zip(parts, recording.notes, strict=True))
    assert list(warnings.filters) == filters


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_an_early_hook_is_before_what_is_inside_its_layer() -> None:
    """A leaf has no layers inside: there the hook is before the gradients of the parameters, as torch runs it."""
    model, fired = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), []
    model[0].weight.register_hook(lambda grad: fired.append("weight"))
    model[0].register_full_backward_hook(lambda *given: fired.append("layer 0"))
    with record(model) as recording:
        model(make_ones(1, 4, grad=False)).sum().backward()
    assert fired == ["layer 0", "weight"]
    inside = {note.partition(" requires")[0]: "of the layers inside it" in note for note in recording.notes}
    assert inside == {"No input of layer (root)": True, "No input of layer 0": False}


def test_an_input_that_requires_grad_but_is_in_a_container_is_not_told_to_require_grad():
    model = Net(lambda self, pair: self.fc(pair[0] + pair[1]), fc=nn.Linear(4, 2))
    with record(model) as recording:
        model((make_ones(1, 4), make_ones(1, 4))).sum().backward()
    (note,) = recording.notes
    assert note.startswith("The inputs of layer (root) that require grad are in a container")
    assert "requires_grad_()" not in note


def test_a_tuple_without_a_tensor_of_its_own_is_said_to_hide_backward_hooks():
    model = Net(lambda self, x: ([{"boxes": self.fc(x)}], {}), fc=nn.Linear(4, 2))
    with record(model) as recording:
        model(make_ones(1, 4))[0][0]["boxes"].sum().backward()
    assert any("returns a tuple without a tensor of its own, so its full backward" in note for note in recording.notes)
    assert "full_backward" in {event.kind for event in recording.events if event.name == "fc"}


def test_keyword_arguments_are_told_from_a_dict():
    model = Net(lambda self, x=None, mask=None: self.fc((mask or x)["x"]), fc=nn.Linear(4, 2))
    with record(model, kinds=("forward_pre",)) as recording:
        model({"x": make_ones(1, 4)})
        model(mask={"x": make_ones(1, 4)})
    assert [event.given for event in recording.events if not event.name] == [
        "args ({'x': (1, 4)},)",
        "args (**{'mask': {'x': (1, 4)}},)",
    ]


def test_filters_set_inside_stay_and_do_not_bring_the_warnings_back():
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        with record(model):
            warnings.simplefilter("error")
            model(make_ones(1, 4, grad=False)).sum().backward()
        assert warnings.filters[0][0] == "error"
        with record(model):
            warnings.resetwarnings()
            model(make_ones(1, 4, grad=False)).sum().backward()
        assert not warnings.filters


@pytest.mark.parametrize("where", ["local", "global", "early"])
def test_the_same_warnings_about_hooks_of_the_learners_are_shown(where):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        pytest.skip("torch warns since 2.8")
    model = nn.Sequential(nn.Linear(4, 4), Net(lambda self, x: {"out": self.fc(x)}, fc=nn.Linear(4, 2)))
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
            model(make_ones(1, 4, grad=False))["out"].sum().backward()
    for handle in handles:
        handle.remove()
    torch_module._global_is_full_backward_hook = None
    texts = [str(w.message)[: len(FIRING)] for w in seen]
    assert texts.count(FIRING) == 1
    assert texts.count(OUTPUT[: len(FIRING)]) == (2 if where == "global" else 1)


def test_a_warning_shown_once_per_place_is_shown_after_and_not_again():
    model = nn.Linear(4, 2)

    def run():
        model(make_ones(1, 4, grad=False)).sum().backward()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        with record(model):
            for _ in range(2):
                warnings.warn("once", stacklevel=1)
                run()
    assert [str(w.message) for w in seen] == ["once"]
