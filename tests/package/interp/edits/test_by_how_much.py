"""The table of an edit says how many calls were changed, and by how much."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookscope import at, edit
from tests.shared.awkward_models import Net

X = torch.tensor([[1.0, -2.0, 3.0, -4.0], [5.0, 6.0, -7.0, 8.0]])
INFINITE = float("inf")


def test_a_table_says_what_was_changed_and_by_how_much() -> None:
    net = Net(lambda self, x: self.leaf(x), leaf=nn.Identity())
    e = edit(net)
    e.add("leaf", 0.5, at[:, 0], calls={1, 2})
    e.map("leaf", torch.abs, samples=[0])
    with e:
        for _ in range(3):
            net(X)
    assert e.rows == [
        {
            "edit": 1,
            "layer": "leaf",
            "change": "add 0.5 at[:, 0] calls={1, 2}",
            "calls seen": 3,
            "calls changed": 2,
            "largest change": 0.5,
        },
        {
            "edit": 2,
            "layer": "leaf",
            "change": "map abs samples=[0]",
            "calls seen": 3,
            "calls changed": 3,
            "largest change": 8.0,
        },
    ]
    assert repr(e).startswith("Net: 2 edits\n")
    assert "<table" in e._repr_mimebundle_()["text/html"]
    with e:
        for _ in range(2):
            net(X.abs())
    assert [row["calls seen"] for row in e.rows] == [2, 2], "a block counts afresh"
    assert e.notes == ("edit 2 changed nothing in layer 'leaf': all values were the same before",)


@pytest.mark.parametrize(
    ("values", "verb", "given", "changed", "largest"),
    [
        (torch.tensor([0.0, -INFINITE, 1.0]), "scale", 1.0, 0, 0.0),
        (torch.tensor([0.0, -INFINITE, 1.0]), "add", 0.5, 1, 0.5),
        (torch.tensor([0.0, 1.0]).repeat(20_000), "add", -0.5, 1, 0.5),
        (torch.cat([torch.zeros(40_000), torch.tensor([INFINITE])]), "add", 0.0, 0, 0.0),
        (torch.tensor([1.0, 0.0]), "set", INFINITE, 1, INFINITE),
        (torch.zeros(0, 3), "add", 0.5, 0, 0.0),
        (torch.full((2,), 40_000.0, dtype=torch.half), "scale", -1.0, 1, 80_000.0),
        (torch.tensor([3, 7], dtype=torch.uint8), "set", 5, 1, 2.0),  # neither 5 - 7 nor 3 - 5 wraps
        (torch.tensor([True, False]), "set", False, 1, 1.0),
        (torch.zeros(1, dtype=torch.long), "set", -(2**63), 1, 2.0**63),
        (torch.full((1,), -(2**63)), "set", 2**63 - 1, 1, 2.0**64),
        (torch.full((1,), 2**60), "add", 1, 1, 0.0),  # a change that is too small for the size that is told
    ],
)
def test_by_how_much_values_changed(values: Tensor, verb: str, given: float, changed: int, largest: float) -> None:
    net = nn.Sequential(nn.Identity())
    with edit(net) as e:
        getattr(e, verb)("0", given)
        net(values)
    assert (e.rows[0]["calls changed"], e.rows[0]["largest change"]) == (changed, largest)


def test_a_call_without_samples_leaves_the_others_measured() -> None:
    net = nn.Sequential(nn.Identity())
    with edit(net) as e:
        e.add("0", 0.5)
        net(torch.ones(0, 3)), net(torch.ones(2, 3))
    assert (e.rows[0]["calls seen"], e.rows[0]["calls changed"], e.rows[0]["largest change"]) == (2, 1, 0.5)


def test_the_table_can_be_read_among_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    net = nn.Sequential(nn.Identity())
    with edit(net) as e:
        e.add("0", 0.5)
        net(X)
    with FakeTensorMode():
        assert e.rows[0]["largest change"] == 0.5


def test_what_the_model_writes_in_place_later_is_no_change_of_the_edit() -> None:
    net = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    x = X.clone()
    with edit(net) as e:
        e.scale("0", 2.0)
        net(x)
        x.zero_()  # which the layer had returned
    assert e.rows[0]["largest change"] == 8.0
