"""Containers and objects with a will of their own are edited in a copy, or lent, and are afterwards as they were."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from hookscope import NotEditedError, edit
from tests.shared.awkward import Do, Net

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


class Default:
    """An object with nothing of its own."""

    h = X


def read(value: Any) -> Tensor:
    return value["h"] if isinstance(value, (MutableMapping, dict)) else value.h


def write(value: Any, new: Tensor) -> None:
    if isinstance(value, (MutableMapping, dict)):
        value["h"] = new
    else:
        value.h = new


KINDS: dict[str, Callable[[Tensor], Any]] = {
    "a mapping around a dict": lambda x: Around({"h": x}),
    "a store of attributes": lambda x: Store(h=x),
    "a dict of attributes": lambda x: Attributes(h=x),
    "a UserDict": lambda x: UserDict(h=x),
    "a dict": lambda x: {"h": x},
}


def raised(value: Any) -> Any:
    """Write to a field and hand the whole on."""
    write(value, read(value) + 1)
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_is_edited_in_a_copy_of_its_own(kind: str) -> None:
    """The layer keeps what it returned, and the next one writes to what it gets."""
    kept: list[Any] = []

    def make(x: Tensor) -> Any:
        kept.append(KINDS[kind](x * 1))
        return kept[-1]

    net = Net(
        lambda self, x: read(self.second(self.first(x))) + 100 * read(kept[-1]), first=Do(make), second=Do(raised)
    )
    with edit(net) as e:
        e.add("first", 10.0, part="h")
        assert net(X).tolist() == [1 + 10 + 1 + 100] * 2
    assert e.rows[0]["calls changed"] == 1
    kept[-1] = None
    assert read(net.first(X)).tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_the_layer_hands_on_is_handed_on_as_it_was_edited(kind: str) -> None:
    net = Net(
        lambda self, x: self.third(self.second(KINDS[kind](x * 1))),
        second=Do(lambda value: value),
        third=Do(lambda value: read(raised(value))),
    )
    with edit(net) as e:
        e.add("second", 10.0, to="input", part=(0, "h"))
        e.scale("third", 2.0, to="input", part=(0, "h"))
        assert net(X).tolist() == [(1 + 10) * 2 + 1] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_caller_holds_is_as_it_was(kind: str) -> None:
    net = Net(lambda self, value: self.inner([value]), inner=Do(lambda held: read(held[0]) * 2))
    value = KINDS[kind](X)
    with edit(net) as e:
        e.add("inner", 10.0, to="input", part=(0, 0, "h"))
        assert net(value).tolist() == [22, 22]
        assert read(value) is X
    write(value, X * 7)
    assert read(value).tolist() == [7, 7]  # nothing hides it


def test_an_object_that_has_only_what_its_class_has_gets_nothing_of_its_own() -> None:
    net, value = Net(lambda self, value: self.inner(value), inner=Do(lambda value: value.h * 2)), Default()
    with edit(net) as e:
        e.add("inner", 10.0, to="input", part=(0, "h"))
        assert net(value).tolist() == [22, 22]
    assert vars(value) == {}


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


def test_what_turns_all_that_it_is_given_into_something_of_its_own_is_edited_in_a_copy() -> None:
    class Cloning(UserDict[str, Tensor]):
        def __setitem__(self, key: str, value: Tensor) -> None:
            super().__setitem__(key, value.clone())

    net = Net(lambda self, value: self.inner(value), inner=Do(lambda value: value["h"] * 2))
    value = Cloning(h=X)
    with edit(net) as e:
        e.add("inner", 10.0, to="input", part=(0, "h"))
        assert net(value).tolist() == [22, 22]
        assert value["h"].tolist() == [1, 1]


def test_what_cannot_be_built_again_is_an_error_that_says_so() -> None:
    class Fixed:
        def __init__(self) -> None:
            self._h = X

        @property
        def h(self) -> Tensor:
            return self._h

    net = Net(lambda self, value: self.inner(value), inner=Do(lambda value: value.h * 2))
    e = edit(net)
    e.add("inner", 10.0, to="input", part=(0, "h"))
    with pytest.raises(TypeError, match="edit a layer inside of this one"), e:
        net(Fixed())


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


def test_blocks_within_each_other_put_back_what_was_there_before_both() -> None:
    net, state = Do(lambda state: state["h"] * 1), {"h": X}
    with edit(net) as outer:
        outer.scale("", 10.0, to="input", part=(0, "h"))
        with edit(net) as inner:
            inner.add("", 1.0, to="input", part=(0, "h"))
            for _ in range(2):
                assert net(state).tolist() == [11, 11]
                assert state["h"] is X
        assert net(state).tolist() == [10, 10]
    assert state["h"] is X


def test_a_container_given_in_two_places_is_edited_in_the_one_that_is_meant() -> None:
    net, state = Do(lambda query, memory: query["h"] + 100 * memory["h"]), {"h": X}
    with edit(net) as e:
        e.scale("", 10.0, to="input", part=(0, "h"))
        assert net(state, state).tolist() == [110, 110]
    assert state["h"] is X


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


NESTED: dict[str, tuple[Any, tuple[Any, ...], Callable[[Any], Tensor]]] = {
    "an object in an object": (lambda: SimpleNamespace(s=SimpleNamespace(h=X)), ("s", "h"), lambda o: o.s.h),
    "a dict in an object": (lambda: SimpleNamespace(s={"h": X}), ("s", "h"), lambda o: o.s["h"]),
    "an object in a dict": (lambda: {"s": SimpleNamespace(h=X)}, ("s", "h"), lambda o: o["s"].h),
}


@pytest.mark.parametrize("kind", NESTED)
def test_what_is_handed_on_inside_of_something_else(kind: str) -> None:
    make, path, get = NESTED[kind]
    net, value = Net(lambda self, o: get(self.second(o)) * 1, second=Do(lambda o: o)), make()
    with edit(net) as e:
        e.scale("second", 10.0, to="input", part=(0, *path))
        assert net(value).tolist() == [10, 10]
    assert get(value) is X


def test_what_contains_itself_is_handed_on() -> None:
    state: dict[str, Any] = {"h": X}
    state["me"] = state
    net = Net(lambda self, o: self.second(o)["h"] * 1, second=Do(lambda o: o))
    with edit(net) as e:
        e.scale("second", 10.0, to="input", part=(0, "h"))
        assert net(state).tolist() == [10, 10]
    assert state["h"] is X


def test_what_refuses_to_be_copied_is_handed_on_without_the_edit_and_a_note_says_so() -> None:
    class Single:
        def __init__(self) -> None:
            self.h = X

        def __copy__(self) -> Single:
            raise TypeError("no copies")

    net, value = Net(lambda self, o: self.second(o).h * 1, second=Do(lambda o: o)), Single()
    e = edit(net)
    e.scale("second", 10.0, to="input", part=(0, "h"))
    with pytest.warns(UserWarning, match="layer 'second' hands on what it was given, which cannot be copied"), e:
        net(value)
    assert value.h is X


def test_an_object_that_stands_for_another_keeps_nothing() -> None:
    class Proxy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == "inner" or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    net, proxy = Do(lambda o: o.h * 1), Proxy(SimpleNamespace(h=X))
    with edit(net) as e:
        e.scale("", 10.0, to="input", part=(0, "h"))
        assert net(proxy).tolist() == [10, 10]
    assert list(vars(proxy)) == ["inner"]


@pytest.mark.parametrize("to", ["input", "output"])
def test_what_is_computed_whenever_somebody_asks_is_refused_and_stays(to: Any) -> None:
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
    e.scale("0", 10.0, to=to, part=(0, "h") if to == "input" else "h")
    with pytest.raises(TypeError, match=r"edit 1 \(scale\) of layer '0', call 1: .* is made anew whenever somebody"), e:
        net(value)
    assert value.half.tolist() == [0.5, 0.5]


def test_an_entry_that_is_an_attribute_too_is_edited_as_both() -> None:
    class State(dict[str, Tensor]):
        h: Tensor

    state = State(h=X)
    state.h = X
    net = Do(lambda o: o.h + 100 * o["h"])
    with edit(net) as e:
        e.scale("", 10.0, to="input", part=(0, "h"))
        assert net(state).tolist() == [1010, 1010]
    assert state.h is state["h"] is X
