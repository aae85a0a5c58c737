"""The parts of a gradient: in every state the figure shows torch's own numbers, and hides them until the run."""

from __future__ import annotations

import re

import pytest
import torch

from hookscope_course.figures import GradientParts
from hookscope_course.figures.gradient_parts.figure import EFFECTS, PLACES
from hookscope_course.figures.gradient_parts.layout import place_steps, place_twice

STEPS = [("", "look"), *((place, effect) for place in PLACES["steps"] for effect in EFFECTS["steps"])]
TWICE = [("", "look"), *(("y", effect) for effect in EFFECTS["twice"])]


def steps_by_calculus(place, effect):
    """The parts of w.grad for h = w · h + x, worked out by hand: gradient of h times the h before."""
    factor = 2 if effect == "double" else 1
    before, grad, parts, got = {1: 1, 2: 4, 3: 6}, 1, {}, None
    for step in (3, 2, 1):
        if place == f"h{step}":
            got, grad = grad, factor * grad
        parts[step] = grad * before[step]
        if place == f"step {step}":
            got, parts[step] = parts[step], factor * parts[step]
        grad *= 2
    total = sum(parts.values())
    if place == "w":
        got, total = total, factor * total
    return parts, {**({} if got is None else {"got": got}), "w.grad": total}


@pytest.mark.parametrize(("place", "effect"), STEPS)
def test_each_state_of_the_steps_is_right(place, effect):
    figure = GradientParts()
    figure.place, figure.effect = place, effect
    parts, ends = steps_by_calculus(place, effect)
    figure.guess(**ends)
    assert figure.run() == f"{len(ends)} of {len(ends)} right."
    assert figure.gradients == ends
    found = figure._runs[f"{place},{effect}"]
    for step, part in parts.items():
        assert float(found["values"][f"out step {step}"]) == part
        assert place == "w" or str(part) in found["said"]
    assert str(ends["w.grad"]) in found["said"]
    assert set(found["reasons"]) == set(ends)
    sums = re.findall(r"(\d+) \+ (\d+) \+ (\d+)", found["reasons"]["w.grad"])
    assert all(sum(map(int, each)) == sum(parts.values()) for each in sums)


def twice_by_hand(effect):
    """Only the hook that was chosen, and nothing that notes."""
    x = torch.tensor(1.0, requires_grad=True)
    y = x * x
    edits = {
        "look": lambda grad: None,
        "double": lambda grad: 2 * grad,
        "removed": lambda grad: 2 * grad,
        "detach": lambda grad: 2 * grad.detach(),
    }
    handle = y.register_hook(edits[effect])
    (first,) = torch.autograd.grad(y * y, x, create_graph=True)
    if effect == "removed":
        handle.remove()
    (second,) = torch.autograd.grad(first, x)
    return {"first": first.item(), "second": second.item()}


@pytest.mark.parametrize(("place", "effect"), TWICE)
def test_each_state_of_the_second_derivative_is_what_torch_does(place, effect):
    figure = GradientParts("twice")
    figure.place, figure.effect = place, effect
    ends = twice_by_hand(effect)
    figure.guess(**ends)
    assert figure.run() == "2 of 2 right."
    values = {name: float(value) for name, value in figure._runs[f"{place},{effect}"]["values"].items()}
    assert values["by x"] + values["by y"] == values["second"] == ends["second"]
    # By calculus: the first is f · 2y · 2x, and its x in 2x adds f · 2y · 2.
    assert values["by x"] == 4 * (1 if effect == "look" else 2)


def test_the_four_second_derivatives_that_the_chapter_names():
    assert [twice_by_hand(effect)["second"] for effect in EFFECTS["twice"]] == [12, 40, 24, 8]


def test_another_hook_asks_anew():
    figure = GradientParts("twice")
    figure.guess(first=4, second=12)
    figure.run()
    figure.place = "y"
    assert (figure.ran, figure.guesses) == (False, {})
    figure.run()
    figure.effect = "double"
    assert not figure.ran
    figure.start_over()
    assert (figure.place, figure.effect, figure.guesses, figure.ran) == ("", "look", {}, False)


def test_the_reason_shows_how_the_two_paths_add_up():
    figure = GradientParts("twice")
    figure.place, figure.effect = "y", "double"
    figure.guess(first=8, second=24)
    assert figure.run() == (
        "1 of 2 right.\nsecond derivative is 40: path 1 brings 8, and path 2 brings 32, because the hook doubles "
        "path 2 in the second pass, too: 2 · 16."
    )
    assert figure.alt.endswith("The second is path 1 + path 2 = 8 + 32 = 40.")
    paths = {row["what"]: row["is"] for row in figure.numbers()}
    assert (paths["path 1, by the x in 2x"], paths["path 2, through y"]) == ("8", "32")


@pytest.mark.parametrize("narrow", [False, True])
def test_each_path_and_each_pass_has_its_number_beside_it(narrow):
    layout = place_twice(narrow=narrow)
    at = {text: (x, y) for text, x, y, _ in layout["words"]}
    flights = [flight for wave in layout["waves"] for flight in wave]
    (x, low), (_, high) = next(flight["points"] for flight in flights if flight["value"] == "by x")
    assert abs(at["path 1"][0] - x) <= 35
    assert high < at["path 1"][1] < low
    way = next(flight["points"] for flight in flights if flight["value"] == "in second pass")
    (left, _), (_, bottom), (right, _), *_ = way
    assert left < at["path 2"][0] < right
    assert 0 < bottom - at["path 2"][1] <= 10
    [slot] = layout["slots"].values()
    for text, (hook_x, hook_y) in (("pass 2", slot["at"]), ("pass 1", slot["also"][0])):
        assert abs(at[text][0] - hook_x) <= 45
        assert abs(at[text][1] - hook_y) <= 30
    assert {layout["boxes"][name][4].split()[-1] for name in ("first", "second")} == {"derivative"}


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("lay_out", [place_steps, place_twice])
def test_no_word_is_hidden_by_a_box(lay_out, narrow):
    layout = lay_out(narrow=narrow)
    font = layout["font"]
    for text, x, y, _ in layout["words"]:
        half = 0.25 * font * len(text)
        for name, (box_x, box_y, width, height, *_) in layout["boxes"].items():
            beside = abs(x - box_x) >= half + width / 2
            over_or_under = y <= box_y - height / 2 or y - 0.7 * font >= box_y + height / 2
            assert beside or over_or_under, (text, name)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("place", ["h1", "h2"])
def test_the_name_of_a_hook_on_a_state_is_under_the_box_of_its_gradient(place, narrow):
    layout = place_steps(narrow=narrow)
    x, y, width, height, *_ = layout["boxes"][f"grad {place}"]
    slot = layout["slots"][place]
    assert slot["lines"] == [f"hook on {place}"]
    assert slot["anchor"] == "middle"
    assert slot["text"][0] == x
    assert 0 < slot["text"][1] - (y + height / 2) < 2 * layout["font"]
    assert x - width / 2 - 2 * layout["radius"] <= slot["at"][0] < x - width / 2


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("lay_out", [place_steps, place_twice])
def test_every_hook_is_in_the_drawing_and_every_value_is_shown(lay_out, narrow):
    layout = lay_out(narrow=narrow)
    width, height = layout["size"]
    for slot in layout["slots"].values():
        for x, y in [slot["at"], *slot["also"]]:
            assert layout["radius"] < x < width - layout["radius"]
            assert layout["radius"] < y < height - layout["radius"]
    runs = GradientParts("steps" if lay_out is place_steps else "twice")._runs
    flights = [flight for wave in layout["waves"] for flight in wave]
    known = {*layout["known"], *(name for flight in flights for name in flight["knows"])}
    assert {*layout["labels"]} <= known
    assert {name for name, box in layout["boxes"].items() if box[6]} <= known
    for run in runs.values():
        assert {flight["value"] for flight in flights} <= {*run["values"]}
