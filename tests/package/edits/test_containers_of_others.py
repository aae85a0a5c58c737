"""Containers and objects with a will of their own are edited in a copy, or lent, and are afterwards as they were."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hookscope import NotEditedError, edit, explain
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
        result = net(X)
    names: dict[str, Any] = {"model": net, "inputs": (X,), **explain(e).names}
    exec(str(explain(e)), names)
    assert torch.equal(names["result"], result)


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


@pytest.mark.parametrize("part", [0, 1])
def test_the_gradient_of_one_of_two_places_that_have_the_same_tensor(part: int) -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        made = x * 1
        return made, made

    net = Net(lambda self, x: (out := self.cell(x))[0] + 3 * out[1], cell=Do(twice))
    x = X.clone().requires_grad_()
    with edit(net) as e:
        e.scale("cell", 0.0, to="grad", part=part)
        net(x).sum().backward()
    expected = [(3, 1)[part]] * 2
    assert x.grad is not None
    assert x.grad.tolist() == expected
    x.grad = None
    exec(str(explain(e)), {"model": net, "inputs": (x,), **explain(e).names})
    assert x.grad.tolist() == expected
