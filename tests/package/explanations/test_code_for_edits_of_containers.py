"""The lines for an edit build a container again: of its class, in its order, with all that it has beside its items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from hookscope import edit, explain
from tests.shared.awkward import Do, Net

X = torch.ones(1, 2)


class Items(tuple[Tensor, ...]):
    """A tuple with something beside its items."""

    more: Tensor


def items(x: Tensor) -> Items:
    made = Items((x, x * 2))
    made.more = x * 3
    return made


class Pair(NamedTuple):
    h: Tensor
    c: Tensor


class Attributes(dict[str, Tensor]):
    """A dict that is its own attributes."""

    def __init__(self, h: Tensor) -> None:
        super().__init__(h=h)
        self.__dict__ = self


class Reached(dict[str, Tensor]):
    """A dict whose entries can be reached as attributes: whatever is asked for that is no entry is a KeyError."""

    __getattr__ = dict.__getitem__  # type: ignore[assignment]


class Both(dict[str, Tensor]):
    """A dict of which an entry is an attribute, too."""

    def __init__(self, h: Tensor) -> None:
        super().__init__(h=h)
        self.h = h


def turned(x: Tensor) -> Any:
    """An output of transformers whose entries are not in the order of its fields."""
    from transformers.utils import ModelOutput

    @dataclass
    class Turned(ModelOutput):  # type: ignore[misc]
        first: Tensor | None = None
        last: Tensor | None = None

    made = Turned(last=x)
    made.first = x * 2
    return made


def packed(x: Tensor) -> PackedSequence:
    return pack_padded_sequence(x, torch.tensor([2]), batch_first=True)


# What a layer returns, what of that has 100 added, what is made of it all, and what that gives.
KINDS: dict[str, tuple[Callable[[Tensor], Any], int | str, Callable[[Any], Tensor], float]] = {
    "a tuple with an attribute": (items, 0, lambda o: o[0] + 10 * o.more, 131),
    "a named tuple": (lambda x: Pair(x, x * 2), 0, lambda o: o.h + 10 * o.c, 121),
    "a tuple of torch": (lambda x: x.max(1, keepdim=True), 0, lambda o: o.values + 10 * o.indices, 101),
    "a packed sequence": (packed, 0, lambda o: o.data + 10 * o.batch_sizes, 111),
    "a dict of attributes": (Attributes, "h", lambda o: o.h + 10 * o["h"], 1111),
    "entries by name": (lambda x: Reached(h=x), "h", lambda o: o.h + 10 * o["h"], 1111),
    "an entry and attribute": (Both, "h", lambda o: o.h + 10 * o["h"], 1111),
    "an output in another order": (turned, "first", lambda o: 10 * o[0] + o[1] + 100 * o.first, 10312),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_build_a_container_again(kind: str) -> None:
    make, part, read, expected = KINDS[kind]
    net = Net(lambda self, x: read(self.cell(x)), cell=Do(lambda x: make(x * 1)))
    with edit(net) as e:
        e.add("cell", 100.0, part=part)
        net(X)
    names: dict[str, Any] = {"model": net, "inputs": (X,), **explain(e).names}
    exec(str(explain(e)), names)
    assert set(names["result"].flatten().tolist()) == {expected}


def test_the_lines_freeze_the_tokens_of_the_first_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell = nn.Embedding(9, 2), nn.Linear(2, 2)

        def forward(self, input_ids: Tensor) -> Tensor:
            x: Tensor = self.embed(input_ids)
            for _ in range(3):
                x = x + self.cell(x)
            return x

    net, ids = Twice(), torch.tensor([[1, 2, 3]])
    with edit(net) as e:
        e.freeze("cell", positions=1)
        output = net(ids)
    names: dict[str, Any] = {"model": net, "inputs": (ids,), **explain(e).names}
    exec(str(explain(e)), names)
    assert torch.equal(names["result"], output)
    assert not torch.allclose(output, net(ids))
