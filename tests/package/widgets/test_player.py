"""The order player: what it says of every event, which lines its tree has, what it refuses."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from torch import nn

from hookscope import census
from hookscope.recordings.event import GIVEN
from hookscope.recordings.record import record
from hookscope.widgets import player as player_module
from hookscope.widgets.player import OrderPlayer, describe_event, select_events
from tests.shared.patience import PATIENCE
from tests.shared.recorded import nested, recorded

HOSTILE = "<img src=x onerror=alert(1)>"


def everything():
    """A recording with an event of every kind that torch has."""
    model, x = nested(), torch.ones(1, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with record(model, parameters=True, optimizers=optimizer, tensors={"x": x}) as recording:
        y = recording.watch(model(x), "y", retain_grad=True, nodes=True)
        recording.watch_all({"x": x, "y": y})
        y.sum().backward()
        optimizer.step()
    return recording


def test_index_and_event_follow_each_other():
    recording = recorded()
    player = OrderPlayer(recording)
    assert (player.index, player.event) == (-1, None)
    assert player.events == recording.events
    for index, event in enumerate(recording.events):
        player.index = index
        assert player.event is event
    player.index = -1
    assert player.event is None


def test_a_recording_without_events_says_how_to_get_some():
    with record(nested()) as recording:
        pass
    with pytest.raises(ValueError, match="Run the model inside its with block"):
        OrderPlayer(recording)


def test_two_threads_have_a_tree_each():
    both = threading.Barrier(2, timeout=PATIENCE)

    class Waiting(nn.Module):
        def forward(self, x):
            both.wait()
            return x * 2

    model = nn.Sequential(nn.Sequential(Waiting(), nn.ReLU()), nn.ReLU())
    threads = [threading.Thread(target=model, args=(torch.ones(1),), name=name) for name in ("one", "two")]
    with record(model) as recording:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    player = OrderPlayer(recording)
    starts = [line for line, (depth, *_) in enumerate(player._lines) if depth == 0]
    assert {player._lines[line][1] for line in starts} == {"forward, in one", "forward, in two"}
    one, two = (
        [(depth, text.replace(" #2", "")) for depth, text, *_ in lines[1:]]
        for lines in (player._lines[: starts[1]], player._lines[starts[1] :])
    )
    assert one == two
    assert [depth for depth, text in one if text.startswith("0.0: ")] == [5]
    for event, row, words in zip(player.events, player.numbers(), player._events, strict=True):
        assert f", in {event.by}: " in row["hook"] == words[1]
        assert words[3].endswith(f", in {event.by}")
    assert "in MainThread" not in repr(OrderPlayer(recorded()))


def test_every_kind_has_its_sentence():
    recording = everything()
    assert {event.kind for event in recording.events} >= set(GIVEN) - {"backward"}
    said = {event.label: describe_event(event) for event in recording.events}
    assert said["forward_pre (root)"] == "forward pre-hook of layer (root), call 1: args ((1, 4),)"
    assert said["forward 0.0"] == "forward hook of layer '0.0', call 1: output (1, 3)"
    assert said["full_backward 1"] == "full backward hook of layer '1', call 1: grad_input ((1, 3),)"
    assert said["tensor y"] == "tensor hook of tensor 'y': grad (1, 2)"
    assert said["tensor 1.bias"] == "tensor hook of parameter '1.bias': grad (2,)"
    assert said["multi_grad x, y"] == "multi-grad hook of tensors 'x, y': grads ((1, 4), (1, 2))"
    assert said["step_pre SGD"] == "step pre-hook of optimizer 'SGD', step 1: args ()"


def test_a_hook_of_the_learners_is_called_by_its_name_and_a_later_call_by_its_number():
    layer = nn.Linear(4, 4)

    def mine(module, args, output):
        pass

    with layer.register_forward_hook(mine), record(layer, kinds="forward") as recording:
        layer(layer(torch.ones(1, 4)))
    said = [describe_event(event) for event in recording.events]
    assert said[2] == "forward hook 'mine' of layer (root), call 2: output (1, 4)"
    assert [row[4] for row in OrderPlayer(recording)._events] == ["mine", "hookscope's own hook"] * 2


def test_the_tree_is_the_call_tree_of_the_recording():
    recording = everything()
    player = OrderPlayer(recording)
    lines = [re.sub(r"^[│├└─ ]*(\[\d+\] )?", "", line) for line in repr(recording.call_tree()).splitlines()]
    assert [text for _, text, _, _ in player._lines] == lines
    assert [place for _, _, place, _ in player._lines if place >= 0] == list(range(len(recording.events)))
    for _, text, place, phase in player._lines:
        if place >= 0:
            assert text.startswith(recording.events[place].kind)
            assert phase == recording.events[place].phase


def test_depth_in_the_tree_is_that_of_the_calls():
    lines = OrderPlayer(recorded())._lines
    depths = {text: depth for depth, text, _, phase in lines if phase == "forward"}
    assert depths["(root): Sequential.__call__()"] == 1
    assert depths["0: Sequential.__call__()"] == 3
    assert depths["0.1: ReLU.__call__()"] == 5


def test_without_forward_hooks_the_events_stand_one_below_the_other():
    recording = recorded(kinds=["forward", "full_backward"])
    forward = [line for line in OrderPlayer(recording)._lines if line[3] == "forward"]
    assert [depth for depth, *_ in forward] == [0, 1, 1, 1, 1, 1]
    assert forward[1][1] == "forward 0.0  output (1, 3)"


def test_filters_leave_only_what_the_chosen_events_hang_on():
    recording = recorded()
    player = OrderPlayer(recording, kinds=["forward", "full_backward"], layers=["0.*"])
    assert [event.label for event in player.events] == [
        "forward 0.0", "forward 0.1", "full_backward 0.1", "full_backward 0.0",
    ]  # fmt: skip
    texts = [text for _, text, _, _ in player._lines]
    assert "0: Sequential.__call__()" in texts
    assert not any(text.startswith(("1:", "forward_pre", "full_backward_pre")) for text in texts)
    assert [place for _, _, place, _ in player._lines if place >= 0] == [0, 1, 2, 3]
    player.index = 3
    assert player.event is recording.events[17]
    assert "> 4  full backward hook of layer '0.0'" in repr(player)


def test_the_root_can_be_chosen_by_either_name():
    recording = recorded()
    assert select_events(recording, layers="") == select_events(recording, layers="(root)")
    assert {event.name for event in select_events(recording, layers="")} == {""}


def test_it_shows_the_timeline_before_it_runs_and_reads_without_it():
    recording = recorded()
    player = OrderPlayer(recording)
    assert player.png == recording.picture().png
    assert player.alt == recording.picture().alt
    assert len(repr(player).splitlines()) == 21
    assert "before the first of 20 events (10 forward, 10 backward)\n   1  forward pre" in repr(player)


def test_without_matplotlib_it_plays_all_the_same(monkeypatch):
    def missing(*args):
        raise ModuleNotFoundError("a timeline needs matplotlib")

    monkeypatch.setattr(player_module, "draw", missing)
    player = OrderPlayer(recorded())
    assert player.png == b""
    assert player.alt == "The order of 20 events, 10 forward, 10 backward."
    player.index = 3


def test_values_are_shown_if_they_were_recorded():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    with record(model, values=True) as recording:
        model(torch.tensor([[3.0]])).sum().backward()
    player = OrderPlayer(recording)
    assert [row[7] for row in player._events][:2] == ["([[3]],)", "[[6]]"]
    # Before it is run, too: in its text and in the table that stands in for it.
    assert repr(player).splitlines()[2] == "  2  forward hook of layer (root), call 1: output (1, 1) = [[6]]"
    assert [row["values"] for row in player.numbers()][:2] == ["([[3]],)", "[[6]]"]
    assert "<td>[[6]]</td>" in re.sub(r"<td[^>]*>", "<td>", player._repr_mimebundle_()[0]["text/html"])
    without = OrderPlayer(recorded())
    assert {row[7] for row in without._events} == {""}
    assert " = " not in repr(without)
    assert "values" not in without.numbers()[0]


def test_names_are_text_on_one_line():
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(4, 4))
    model.add_module("two\nlines", nn.Linear(4, 4))
    player = OrderPlayer(recorded(model))
    assert any(text.startswith(f"{HOSTILE}: Linear") for _, text, _, _ in player._lines)
    assert not any("\n" in text for _, text, _, _ in player._lines)
    assert [place for _, _, place, _ in player._lines if place >= 0] == list(range(12))


def test_a_layer_called_like_an_event_is_not_one():
    model = nn.Sequential()
    model.add_module("[1] forward", nn.Linear(4, 4))
    lines = OrderPlayer(recorded(model))._lines
    assert [place for _, _, place, _ in lines if place >= 0] == list(range(8))
    assert (3, "[1] forward: Linear.__call__()", -1, "forward") in lines


def test_two_thousand_events_are_drawn_in_part_and_played_whole():
    model, x = nested(), torch.ones(1, 4, requires_grad=True)
    with record(model) as recording:
        for _ in range(100):
            model(x).sum().backward()
    player = OrderPlayer(recording)
    assert player.alt.endswith("The first 300 of 2000 events.")
    player.index = 1999
    assert player.event.call == 100
    assert repr(player).endswith("and 1940 more")
    assert len(census(model)) == 0
