"""What a layer returned is kept as it was, however deep and however twisted; what cannot be is said."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope import capture
from hookscope.pytree import find_tensors, tree_map
from tests.shared.awkward_models import Do


@dataclasses.dataclass
class Box:
    a: Tensor

    def __post_init__(self) -> None:
        self.more = self.a + 1  # an attribute that is no field


class Named(dict[str, Any]):
    more: Tensor


class Listed(list[Any]):
    more: Tensor


class Node:
    child: Node
    parent: Node
    tensor: Tensor


def tree(y: Tensor) -> Node:
    parent, child = Node(), Node()
    parent.tensor, parent.child, child.parent = y, child, parent
    return parent


def with_more(container: Any, y: Tensor) -> Any:
    container.more = y + 1
    return container


def array(y: Tensor) -> Any:
    made = np.empty(1, object)
    made[0] = y
    return made


def circle(y: Tensor) -> list[Any]:
    made: list[Any] = [y]
    made.append({"back": made})
    return made


CASES: dict[str, tuple[Any, Any]] = {
    "an attribute of a dataclass that is no field": (Box, lambda kept: kept.more),
    "an attribute of a dict": (lambda y: with_more(Named(a=y), y), lambda kept: kept.more),
    "an attribute of a list": (lambda y: with_more(Listed([y]), y), lambda kept: kept.more),
    "a tree that knows its parents": (tree, lambda kept: kept.child.parent.tensor),
    "an array of objects": (array, lambda kept: kept[0]),
    "a list that contains itself": (circle, lambda kept: kept[1]["back"][0]),
    "a dict of somebody's class": (lambda y: UserDict(a=y), lambda kept: kept["a"]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_call(case: str) -> None:
    make, get = CASES[case]
    net = nn.Sequential(Do(lambda x: make(x * 2)))
    with capture(net, "0") as seen:
        out = get(net(torch.ones(1, requires_grad=True)))
        expected = out.detach().clone()
        out.data.zero_()  # later, in place
    got = get(seen["0"].output)
    assert torch.equal(got, expected)
    assert not got.requires_grad
    assert not seen.notes


def test_a_circle_stays_one() -> None:
    kept = tree_map(torch.clone, tree(torch.ones(1)))
    assert kept.child.parent is kept
    circled = tree_map(torch.clone, circle(torch.ones(1)))
    assert circled[1]["back"] is circled


def test_a_circle_without_tensors_is_not_copied() -> None:
    parent, child = Node(), Node()
    parent.child, child.parent = child, parent
    given = [parent, child, torch.ones(1)]
    kept = tree_map(torch.clone, given)
    assert kept[0] is parent
    assert kept[1] is child
    assert len(find_tensors(given)) == 1


def test_what_lies_too_deep_is_said() -> None:
    def deep(y: Tensor) -> Any:
        made: Any = y
        for _ in range(25):
            made = (made,)
        return made

    net = nn.Sequential(Do(lambda x: deep(x * 2)))
    with pytest.warns(UserWarning, match="deeper than 20 levels are not copied"), capture(net, "0") as seen:
        net(torch.ones(1))
    (note,) = seen.notes
    assert note.startswith("layer 0: values nested deeper than 20 levels are not copied")
