"""Outputs are edited in copies of what holds them; inputs in tuples, and never in an object of the caller's."""

from __future__ import annotations

import dataclasses
import re
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from hookscope import NotEditedError, census, edit
from hookscope.interp.edits.nested_values import get
from tests.shared.awkward_models import Do, Net

X = torch.ones(2)


class Around(MutableMapping[str, Tensor]):
    """A mapping around a dict, which a shallow copy of it shares."""

    def __init__(self, held: dict[str, Tensor]) -> None:
        self.held = held

    def __getitem__(self, key: str) -> Tensor:
        return self.held[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.held[key] = value

    def __delitem__(self, key: str) -> None:
        del self.held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class Store:
    """An object whose attributes lie in a store, as those of a graph of PyTorch Geometric do."""

    def __init__(self, **held: Tensor) -> None:
        self.__dict__["_held"] = held

    def __getattr__(self, name: str) -> Tensor:
        if name == "_held":
            raise AttributeError(name)
        try:
            return self.__dict__["_held"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Tensor) -> None:
        self.__dict__["_held"][name] = value


class Attributes(dict[str, Tensor]):
    """A dict whose keys are its attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


@pytest.mark.parametrize("kind", [Attributes, UserDict, dict])
def test_an_output_is_edited_in_a_copy_of_its_own(kind: Callable[..., Any]) -> None:
    """The layer keeps what it returned, and the next one writes to what it gets."""
    kept: list[Any] = []

    def make(x: Tensor) -> Any:
        kept.append(kind(h=x * 1))
        return kept[-1]

    def write(value: Any) -> Any:
        value["h"] = value["h"] + 1
        return value

    net = Net(lambda self, x: self.second(self.first(x))["h"] + 100 * kept[-1]["h"], first=Do(make), second=Do(write))
    with edit(net) as e:
        e.add("first", 10.0, part="h")
        assert net(X).tolist() == [1 + 10 + 1 + 100] * 2
    assert e.rows[0]["calls changed"] == 1
    assert net.first(X)["h"].tolist() == [1, 1]


@pytest.mark.parametrize("value", [Around({"h": X}), Store(h=X)], ids=lambda value: type(value).__name__)
def test_an_output_whose_copy_shares_its_items_is_refused_and_stays(value: Any) -> None:
    e = edit(nn.Sequential(nn.Identity()))
    e.add("0", 10.0, part="h")
    with pytest.raises(TypeError, match=r"layer '0', call 1: .*shares its items with the original"), e:
        e.modules.model(value)
    assert (value["h"] if isinstance(value, Around) else value.h) is X


def test_a_tuple_keeps_what_it_has_beside_its_items() -> None:
    class Output(tuple[Tensor, ...]):
        more: Tensor

    def make(x: Tensor) -> Output:
        made = Output((x, x * 2))
        made.more = x * 3
        return made

    net = Net(lambda self, x: (out := self.leaf(x))[0] + out[1] + out.more, leaf=Do(make))
    with edit(net) as e:
        e.set("leaf", 0.0, part=0)
        assert net(X).tolist() == [5, 5]


@pytest.mark.parametrize("part", [1, -1])
def test_an_index_means_a_positional_argument_and_no_keyword(part: int) -> None:
    net = Net(
        lambda self, x: self.inner(x, mask=x * 1, memory=x * 2), inner=Do(lambda x, memory, mask: x + memory + mask)
    )
    e = edit(net)
    e.set("inner", 0.0, to="input", part=part)
    with pytest.raises(NotEditedError, match=r"called with part=0 \(2,\), part='mask' \(2,\), part='memory'"), e:
        net(X)


def test_entries_of_a_model_output_keep_their_order() -> None:
    @dataclasses.dataclass
    class Output(ModelOutput):
        loss: Tensor | None = None
        logits: Tensor | None = None

    def make(x: Tensor) -> Any:
        made = Output(logits=x)
        made["loss"] = x * 100
        return made

    net = Net(lambda self, x: self.head(x)[0], head=Do(make))
    assert net(X).tolist() == [1, 1]
    with edit(net) as e:
        e.scale("head", 2.0, part="logits")
        assert net(X).tolist() == [2, 2]


class Fields(tuple[Tensor, ...]):
    """A tuple whose constructor takes its items apart."""

    def __new__(cls, *items: Tensor) -> Fields:
        return super().__new__(cls, items)


def test_tuples_of_any_constructor_and_what_torch_returns() -> None:
    for make in (lambda x: Fields(x, x * 2), lambda x: torch.max(torch.stack([x, x * 2]), 0)):
        net = Net(lambda self, x: self.leaf(x), leaf=Do(make))
        expected = make(X)
        with edit(net) as e:
            e.set("leaf", 7.0, part=0)
            found = net(X)
        assert type(found) is type(expected)
        assert found[0].tolist() == [7, 7]
        assert torch.equal(found[1], expected[1])


def test_an_output_that_is_computed_on_each_access_is_refused_and_stays() -> None:
    class Doubled:
        def __init__(self) -> None:
            self.half = X / 2

        @property
        def h(self) -> Tensor:
            return self.half * 2

        @h.setter
        def h(self, value: Tensor) -> None:
            self.half = value

    net, value = nn.Sequential(nn.Identity()), Doubled()
    e = edit(net)
    e.scale("0", 10.0, part="h")
    with (
        pytest.raises(TypeError, match=r"edit 1 \(scale\) of layer '0', call 1: .*Doubled.h is computed on each"),
        e,
    ):
        net(value)
    assert value.half.tolist() == [0.5, 0.5]


@dataclasses.dataclass
class Record:
    """A dataclass with a tensor."""

    h: Tensor


class Named(NamedTuple):
    """A tuple whose items have names."""

    h: Tensor


def cache(x: Tensor) -> Any:
    """Make a KV cache of transformers."""
    from transformers import DynamicCache

    made = DynamicCache()
    made.update(x[None, None, None], x[None, None, None], 0)
    return made


OF_THE_CALLER: dict[str, tuple[Callable[[Tensor], Any], Any, str]] = {
    "list": (lambda x: [x], 0, "list"),
    "dict": (lambda x: {"h": x}, "h", "dict"),
    "UserDict": (lambda x: UserDict(h=x), "h", "UserDict"),
    "ModelOutput": (lambda x: ModelOutput(h=x), "h", "ModelOutput"),
    "object": (lambda x: SimpleNamespace(h=x), "h", "SimpleNamespace"),
    "dataclass": (Record, "h", "Record"),
    "list in a tuple": (lambda x: (1, [x]), (1, 0), "list"),
    "tuple in a list": (lambda x: [(x,)], (0, 0), "list"),
    "KV cache": (cache, ("layers", 0, "keys"), "DynamicCache"),
}


@pytest.mark.parametrize("by", ["position", "keyword"])
@pytest.mark.parametrize("kind", OF_THE_CALLER)
def test_a_tensor_in_an_object_of_the_callers_is_refused_before_the_layer_runs(kind: str, by: str) -> None:
    make, part, name = OF_THE_CALLER[kind]
    ran: list[Any] = []
    net = Net(
        lambda self, held: self.attn(held) if by == "position" else self.attn(held=held),
        attn=Do(lambda held: ran.append(held)),
    )
    held = make(X)
    path = (0 if by == "position" else "held", *(part if isinstance(part, tuple) else (part,)))
    before = get(held, path[1:])
    e = edit(net)
    e.scale("attn", 10.0, to="input", part=path)
    said = (
        rf"^edit 1 \(scale\) of layer 'attn', call 1: the input part={re.escape(repr(path))} is in a {name}, which "
        r"belongs to the caller\. .* Edit the output of the layer that computes the tensor, or pass the tensor itself"
    )
    with pytest.raises(ValueError, match=said), e:
        net(held)
    assert get(held, path[1:]) is before
    assert before.flatten().tolist() == [1, 1]
    assert not ran
    assert not len(census(net))


def test_the_only_tensor_is_refused_in_a_list_without_a_part_too() -> None:
    e, given = edit(Do(lambda given: given[0] * 1)), [X]
    e.set("", 0.0, to="input")
    with pytest.raises(ValueError, match=r"part=\(0, 0\) is in a list"), e:
        e.modules.model(given)
    assert given[0] is X


def test_calls_that_are_not_meant_are_given_lists() -> None:
    net = Net(lambda self, x: self.attn([x]) + self.attn((x * 1,)), attn=Do(lambda given: given[0] * 1))
    with edit(net) as e:
        e.scale("attn", 10.0, to="input", part=(0, 0), calls=2)
        assert net(X).tolist() == [11, 11]


@pytest.mark.parametrize("make", [lambda x: (x, x * 2), lambda x: ((x, 3), x * 2), lambda x: (Named(x), x * 2)])
def test_tuples_of_the_callers_are_built_again(make: Callable[[Tensor], Any]) -> None:
    given = make(X)
    net = Do(lambda given, more: (given, more))
    path = (0, 0) if isinstance(given[0], Tensor) else (0, 0, 0)
    with edit(net) as e:
        e.scale("", 10.0, to="input", part=path)
        found, more = net(given, given)
    assert get(found, path[1:]).tolist() == [10, 10]
    assert type(found[0]) is type(given[0])
    assert found[1] is given[1]
    assert more is given
    assert get(given, path[1:]) is X
