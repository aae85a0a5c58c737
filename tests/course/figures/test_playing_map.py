"""The map that plays: every state is torch's own, a guess keeps its secret, and Python can do what the page can."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import pytest
import torch
from torch import nn

from hookscope_course.figures import PlayingMap, hook_pass
from hookscope_course.figures.playing_map.figure import GIVEN, SENTENCES, WAITS, shorten
from hookscope_course.figures.playing_map.layout import place_map
from hookscope_course.figures.playing_map.one_layer import MULTIPLIERS, PLACES, record_runs
from tests.course.figures.by_hand import run_by_hand

CHOICES = [(None, "look", "multiply") if kind in MULTIPLIERS else (None, "look") for kind in PLACES]


@pytest.fixture
def undrawn(monkeypatch):
    """A map that draws no picture: thousands of them would take minutes."""
    monkeypatch.setattr("hookscope_course.figures.playing_map.figure.draw_map", lambda *_: b"")
    return PlayingMap()


def every_state():
    for effects in product(*CHOICES):
        yield {kind: effect for kind, effect in zip(PLACES, effects, strict=True) if effect}


# Every state is torch's own.


def test_there_are_13122_states():
    assert sum(1 for _ in every_state()) == 3**8 * 2


@pytest.mark.slow
def test_each_state_is_what_torch_does(undrawn):
    """In all of them: which hook fires when, what it is given, and what comes out."""
    for hooks in every_state():
        undrawn.hooks = hooks
        seen, ends = run_by_hand(hooks)
        shown = [(kind, undrawn._at(kind)[0]) for kind in undrawn.order if kind != "retain_grad"]
        assert shown == seen, hooks
        assert undrawn.values == ends, hooks


def test_the_ends_are_those_of_a_linear_layer_too(undrawn):
    """Chapter 02 says it of `nn.Linear`: the same values, whatever the order of weight and x."""
    for kind in MULTIPLIERS:
        undrawn.hooks = {kind: "multiply"}
        assert undrawn.values == run_by_hand({kind: "multiply"}, nn.Linear(1, 1, bias=False))[1]


def test_what_a_hook_gives_is_what_the_next_is_given(undrawn):
    undrawn.hooks = dict.fromkeys(MULTIPLIERS, "multiply") | {"retain_grad": "look"}
    given = {name: undrawn._at(name) for name in undrawn._order}
    assert given["forward_pre"] == (3, 30)
    assert given["compute"] == (30, 60)
    assert given["forward"] == (60, 600)
    assert given["tensor_y"] == (1, 10)
    assert given["retain_grad"] == (10, 10)
    assert given["full_backward_pre"] == (10, 100)
    assert given["step"] == (1000, 1000)  # the forward hook's times ten is in the graph
    assert given["tensor_weight"] == (30_000, 300_000)
    assert given["accumulate"] == (300_000, 300_000)
    assert given["post_accumulate_grad"] == (300_000, 3_000_000)
    assert given["full_backward"] == (2000, 20_000)
    assert given["tensor_x"] == (200_000, 2_000_000)


def test_retain_grad_comes_after_the_tensor_hooks_and_before_the_node():
    """Nothing is called when it happens, so the map's place for it is held against what its neighbors see."""
    layer, x = nn.Linear(1, 1), torch.ones(1, 1, requires_grad=True)
    there = []
    layer.register_full_backward_pre_hook(lambda *_: there.append(("full_backward_pre", y.grad is not None)))
    y = layer(x)
    y.retain_grad()
    y.register_hook(lambda _: there.append(("tensor_y", y.grad is not None)))
    y.sum().backward()
    assert there == [("tensor_y", False), ("full_backward_pre", True)]
    order, _ = record_runs()
    at = order.index("retain_grad")
    assert order[at - 1 : at + 2] == ("tensor_y", "retain_grad", "full_backward_pre")


def test_every_place_is_registered_by_a_name_of_torch():
    for place in PLACES.values():
        owner, _, name = place.register.partition(".")
        assert hasattr(nn.Module if owner == "layer" else torch.Tensor, name)


def test_runs_leave_random_numbers_and_the_learner_s_modes_alone():
    record_runs.cache_clear()
    before = torch.get_rng_state()
    with torch.inference_mode():
        assert PlayingMap().values["x.grad"] == 20
        assert torch.is_inference_mode_enabled()
    record_runs.cache_clear()
    with torch.no_grad():
        assert PlayingMap().values["y"] == 60
    assert torch.equal(torch.get_rng_state(), before)


# Placing and playing, from Python.


def test_hooks_are_placed_moved_and_removed():
    play = PlayingMap({"forward": "multiply"})
    play.place("full_backward")
    play.move("forward", "forward_pre")
    assert play.hooks == {"forward_pre": "multiply", "full_backward": "look"}
    assert play.order == ["forward_pre", "full_backward"]
    play.place("forward_pre", "look")
    assert play.values == {"y": 6, "x.grad": 2, "weight.grad": 3}
    play.place("forward_pre", "multiply")
    play.move("forward_pre", "retain_grad")
    assert play.hooks["retain_grad"] == "look"
    assert play.values["y.grad"] == 1
    play.remove("retain_grad")
    assert play.order == ["full_backward"]


def test_a_pass_in_sentences():
    play = PlayingMap({"forward": "multiply", "full_backward": "look"})
    said = [play.sentence]
    while play.index < len(play.stations) - 1:
        said.append(play.step())
    assert said == [
        "You call the layer with x = 3.",
        "forward computes weight · x = 2 · 3 = 6.",
        "The forward hook is given output = 6 and returns 60. From now on, that is the output.",
        "You get y = 60.",
        "You call y.backward(). The gradient of y with respect to itself is 1.",
        "The layer's backward step makes two gradients: 30 for weight, and 20 for its input.",
        "30 is added to weight.grad.",
        "The full backward hook sees grad_input = (20,). weight.grad is already there.",
        "The pass is over: y = 60, x.grad = 20, weight.grad = 30.",
    ]
    assert play.step() == said[-1]
    assert play.step(-100) == said[0]


def test_every_station_has_words():
    play = PlayingMap()
    assert set(SENTENCES) == set(play._order)
    assert set(GIVEN) == set(WAITS) == set(PLACES)
    for kind in MULTIPLIERS:
        assert len(SENTENCES[kind]) == 2


def test_a_moved_hook_begins_a_new_pass_or_stays_at_the_end():
    play = PlayingMap({"forward": "look"})
    play.step(2)
    play.place("forward", "multiply")
    assert play.index == 0
    play.step(100)
    play.place("tensor_x")
    assert play.index == len(play.stations) - 1 == 8


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (600, "600"), (2000, "2000"), (20_000, "2·10⁴"), (3_000_000, "3·10⁶")]
)
def test_values_have_four_digits_at_most(value, text):
    assert shorten(float(value)) == text


# Guessing.


def test_until_the_last_hook_is_known_neither_words_nor_picture_tell_the_order():
    quiz = PlayingMap(guess=True)
    assert quiz.numbers() == ()
    for text in (quiz.alt, repr(quiz)):
        places = [text.find(PLACES[kind].name) for kind in quiz.order]
        assert places != sorted(places)
    assert quiz.png == PlayingMap(list(reversed(quiz.order)), guess=True).png
    hidden = quiz.png
    while quiz._known() < len(quiz.order):
        quiz.choose(quiz.order[quiz._known()])
    assert "Hooks fire in this order: forward pre-hook, forward hook, tensor hook on y" in quiz.alt
    assert len(quiz.numbers()) == 9
    assert quiz.png != hidden


def test_a_right_guess_goes_there_and_a_wrong_one_gets_its_reason():
    quiz = PlayingMap(["forward_pre", "forward", "full_backward"], guess=True)
    assert quiz.step(5) == "You call the layer with x = 3."
    said = quiz.choose("full_backward")
    assert said.startswith("Not yet. The full backward hook fires when the gradient leaves the layer")
    assert said.endswith("Try again.")
    assert (quiz.index, quiz.score) == (0, (0, 3))
    assert (
        quiz.choose("forward_pre")
        == "Right, the forward pre-hook. The forward pre-hook sees args = (3,) before forward runs."
    )
    assert quiz.index == 1
    assert quiz.step(5) == "forward computes weight · x = 2 · 3 = 6."
    quiz.choose("full_backward")
    said = quiz.choose("forward_pre")
    assert said.startswith(
        "Not yet. The forward pre-hook has fired already, and fires once in a pass. It is the forward hook"
    )
    assert quiz.choose("full_backward").startswith("Right, the ")
    assert quiz.score == (1, 3)
    assert quiz.sentence.startswith("The pass is over"), "the last guess plays the pass to its end"
    with pytest.raises(RuntimeError, match="every hook has fired"):
        quiz.choose("forward")


def test_a_guess_begins_again_when_a_hook_moves_before_the_end():
    quiz = PlayingMap(["forward_pre", "forward"], guess=True)
    quiz.choose("forward_pre")
    quiz.move("forward", "tensor_x")
    assert (quiz.guesses, quiz.index) == ([], 0)
    assert quiz.choose("forward_pre").startswith("Right, the ")


def test_after_one_round_the_map_is_free():
    quiz = PlayingMap(["forward_pre", "forward"], guess=True)
    for kind in ("forward_pre", "forward"):
        quiz.choose(kind)
    quiz.place("forward", "multiply")
    quiz.move("forward_pre", "tensor_x")
    assert quiz.values == {"y": 60, "x.grad": 20, "weight.grad": 30}
    assert (quiz.score, quiz.guesses) == ((2, 2), [["forward_pre"], ["forward"]])
    quiz.index = 0
    assert quiz.step(100).startswith("The pass is over")
    quiz.set_state({"hooks": {"forward": "look", "tensor_y": "look"}, "index": 0, "_request": 1})
    assert quiz.step(100).startswith("The pass is over"), "a hook that the page moves asks nothing either"
    quiz.guesses = []
    assert (quiz.hooks, quiz.index) == ({"forward_pre": "look", "forward": "look"}, 0)
    assert quiz.step(100) == "You call the layer with x = 3."


def test_what_a_hook_waits_for_does_not_tell_which_is_next():
    for kind, reason in WAITS.items():
        rest = reason.replace(PLACES[kind].name, "")
        assert not [place.name for place in PLACES.values() if place.name in rest]
        assert not re.search(r"\b(first|last|next|comes|gets its)\b", rest)


@pytest.mark.parametrize("kind", PLACES)
def test_what_a_hook_waits_for_stands_before_it(kind):
    """Each reason names what comes before the hook; here that is held against the recorded order."""
    order = PlayingMap()._order
    before = {
        "forward_pre": ["call"],
        "forward": ["compute"],
        "tensor_y": ["start"],
        "retain_grad": ["tensor_y"],
        "full_backward_pre": ["tensor_y", "retain_grad"],
        "tensor_weight": ["step"],
        "post_accumulate_grad": ["accumulate", "tensor_weight"],
        "full_backward": ["step", "accumulate", "tensor_weight"],
        "tensor_x": ["full_backward"],
    }
    assert all(order.index(each) < order.index(kind) for each in before[kind])
    if kind == "tensor_x":
        assert order[-2:] == ["tensor_x", "end"]


# Without a page, small, and as a picture.


def test_its_words_and_numbers_are_those_of_its_hooks():
    play = PlayingMap()
    assert "in this order: forward pre-hook, forward hook (times ten), full backward pre-hook" in play.alt
    rows = play.numbers()
    assert rows[1] == {"fires": 2, "what": "forward hook", "is given": "output = 6", "value after it": 60}
    assert {row["what"]: row["value after it"] for row in rows[4:]} == play.values
    assert PlayingMap({}).alt.endswith("It has no hooks. At the end y = 6, x.grad = 2, weight.grad = 3.")


def test_the_picture_follows_the_hooks_and_not_the_station():
    play = PlayingMap()
    first = play.png
    play.step(3)
    assert play.png == first
    play.place("tensor_x", "multiply")
    assert play.png != first


def test_all_that_the_page_needs_is_in_its_state():
    """It goes on without a kernel, on the site: 256 runs, the words, and where everything stands."""
    state = PlayingMap().get_state()
    assert len(state["_runs"]) == 256
    assert {len(run) for run in state["_runs"]} == {2 * len(state["_order"])}
    sent = {key: value for key, value in state.items() if key not in ("_esm", "_css", "png", "layout")}
    assert len(json.dumps(sent)) < 100_000


def test_a_pass_shows_its_kinds_only():
    small = hook_pass("full_backward_pre", "full_backward")
    assert small._kinds == ["full_backward_pre", "full_backward"]
    assert list(small._layouts["wide"]["slots"]) == small._kinds
    assert small._layouts["wide"]["tray"] is None
    assert hook_pass("tensor", "retain_grad").order == ["tensor_y", "retain_grad", "tensor_x"]


def test_a_pass_before_chapter_02_does_not_give_the_way_back_away():
    half = hook_pass("forward_pre", "forward", backward=False)
    half.step(100)
    assert half.sentence == "The call is over: y = 6."
    assert half.values == {"y": 6}
    assert "grad" not in str(half._layouts) + str(half._order)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_everything_stands_on_the_scene_and_every_station_on_its_rail(narrow, backward):
    kinds = {kind for kind in PLACES if backward or kind.startswith("forward")}
    layout = place_map(kinds, backward=backward, tray=True, narrow=narrow)
    width, height = layout["size"]
    for x, y, w, h in layout["boxes"].values():
        assert w / 2 <= x <= width - w / 2
        assert h / 2 <= y <= height - h / 2
    at = {name: [x, y] for name, x, y in [*layout["track"], *layout["branch"]]}
    assert {kind: slot["at"] for kind, slot in layout["slots"].items()} == {kind: at[kind] for kind in kinds}
    centers = [slot["at"] for slot in layout["slots"].values()]
    for place, (a, b) in enumerate(centers):
        for c, d in centers[place + 1 :]:
            assert (a - c) ** 2 + (b - d) ** 2 >= (2 * layout["radius"]) ** 2


def test_a_walk_of_a_thousand_moves_never_leaves_the_states(undrawn):
    dice = random.Random(0)
    for _ in range(1000):
        undrawn.step(dice.randint(-3, 5))
        free = [kind for kind in PLACES if kind not in undrawn.hooks]
        if undrawn.hooks and free and dice.random() < 0.6:
            undrawn.move(dice.choice(list(undrawn.hooks)), dice.choice(free))
        elif free and dice.random() < 0.6:
            undrawn.place(dice.choice(free))
        elif undrawn.hooks:
            undrawn.remove(dice.choice(list(undrawn.hooks)))
        assert 0 <= undrawn.index < len(undrawn.stations)
        assert undrawn.values == run_by_hand(undrawn.hooks)[1]
