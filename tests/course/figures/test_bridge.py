"""The bridge: what it shows is what two real ranks see, and both hooks move together."""

from __future__ import annotations

import os
import sys

import cloudpickle
import pytest
import torch
from torch import distributed, nn

from hookscope_course import ranks
from hookscope_course.figures import Bridge, train_one_step
from hookscope_course.figures.bridge.figure import HOOKS, RECORDED, _lay_out

# As from a notebook: the ranks get the functions themselves, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def one_hook(name, first, second):
    """On a rank: one step of DDP with this hook only; no other hook may change what it sees."""
    seen = []
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(5.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    ddp = nn.parallel.DistributedDataParallel(layer)
    if name == "forward pre-hook":
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].item()))
    elif name == "forward hook":
        layer.register_forward_hook(lambda module, args, output: seen.append(output.item()))
    elif name == "tensor hook":
        layer.weight.register_hook(lambda grad: seen.append(grad.item()))
    elif name == "post-accumulate hook":
        layer.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.item()))
    elif name == "step pre-hook":
        optimizer.register_step_pre_hook(lambda *given: seen.append(layer.weight.grad.item()))
    ddp(torch.tensor([[first if distributed.get_rank() == 0 else second]])).sum().backward()
    if name == "communication hook":  # the gradient before the mean, which DDP was given
        seen.append(first if distributed.get_rank() == 0 else second)
    optimizer.step()
    return seen, layer.weight.item()


def each_alone(first, second):
    return {name: one_hook(name, first, second) for name in HOOKS}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="`ranks` forks")
def test_it_shows_what_two_ranks_see():
    with ranks.start(2) as group:
        for got, recorded in zip(group.run(train_one_step), RECORDED, strict=True):
            assert got == pytest.approx(recorded)
        for numbers in ((2.0, 4.0), (1, 7)):  # as the chapter writes them
            seen = group.run(train_one_step, *numbers)
            bridge = Bridge(seen)
            for rank, alone in enumerate(group.run(each_alone, *map(float, numbers))):
                for name, (got, weight) in alone.items():
                    bridge.move(name)
                    assert got == pytest.approx([seen[rank][name]]), name
                    assert bridge.values[rank] == f"{got[0]:.4g}"
                    assert bridge._ends["new weight"][rank] == f"{weight:.4g}"
    assert bridge.values == ("4", "4"), "the mean of 1 and 7"


def test_two_and_four_become_three_and_three():
    bridge = Bridge()
    seen = [(bridge.move(name), bridge.values) for name in HOOKS]
    assert [sees for _, sees in seen] == [("2", "4"), ("10", "20"), ("2", "4"), ("2", "4"), ("2", "4"), ("3", "3")]
    assert seen[2][0] == "A tensor hook on the weight gets the gradient: 2 on rank 0, 4 on rank 1."
    assert seen[-1][0].endswith("reads the mean from weight.grad: 3 on both ranks.")
    assert bridge.alt.endswith(seen[-1][0])
    assert [row["rank 1"] for row in bridge.numbers()] == ["4", "20", "4", "4", "4", "3"]
    bridge.place = 0
    assert "both ranks" not in bridge.alt


@pytest.mark.parametrize("narrow", [False, True])
def test_every_place_is_on_its_rail(narrow):
    layout = _lay_out(narrow=narrow)
    width, height = layout["size"]
    for slots, tracks, plates, meet in zip(
        *(layout[key] for key in ("slots", "tracks", "plates", "meet")), strict=True
    ):
        places = [slot["at"] for slot in slots]
        assert [track[0] for track in tracks] == places[:-1]
        assert [track[-1] for track in tracks] == places[1:]
        assert meet[0] == places[-2], "a value goes onto the bridge where its communication hook is"
        for x, y in plates:
            assert layout["plate"][0] / 2 < x < width - layout["plate"][0] / 2
            assert 0 < y < height
    mirrored = [[x, height - y] for x, y in (slot["at"] for slot in layout["slots"][0])]
    assert mirrored == [slot["at"] for slot in layout["slots"][1]]
