"""Whatever holds the tensors: what is kept is what was in it at that moment, in the order that it had."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, record
from hookscope.captures import Capture
from tests.shared.awkward_models import Do


class Data:
    """Holds a tensor and can be called, as PyTorch Geometric's does."""

    def __init__(self, x: Tensor | None) -> None:
        self.x = x

    def __call__(self) -> int:
        return 1


def add_one(data: Data) -> Data:
    data.x = data.x + 1
    return data


def test_what_can_be_called_is_a_container_all_the_same() -> None:
    net = nn.Sequential(Do(add_one), Do(add_one))
    with capture(net, inputs=True) as seen:
        net(Data(torch.zeros(1)))
    assert [seen[name].output.x.item() for name in "01"] == [1, 2]
    assert [seen[name].args[0].x.item() for name in "01"] == [0, 1]


def test_what_has_no_tensor_yet_is_kept_as_it_was() -> None:
    class State:
        def __init__(self) -> None:
            self.h: Tensor | None = None
            self.layers: list[Data] = [Data(None)]

    def fill(x: Tensor, state: State) -> Tensor:
        state.h = state.layers[0].x = x
        return x

    net = nn.Module()
    net.cell = Do(fill)
    net.forward = lambda x: net.cell(x, State())
    with capture(net, inputs=True) as seen:
        net(torch.ones(1))
    state = seen["cell"].args[1]
    assert type(state) is State
    assert state.h is None
    assert state.layers[0].x is None


class ReadOnly(Mapping[str, Any]):
    """A mapping without __setitem__."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Two(tuple[Any, ...]):
    """A tuple with a constructor of its own."""

    def __new__(cls, first: Any, second: Any) -> Two:
        return super().__new__(cls, (first, second))


class Uncopied:
    """Refuses to be copied."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __copy__(self) -> None:
        raise TypeError("no copy")


class Wrapping(OrderedDict[str, Any]):
    """Wraps what it is given, as TensorDict does with what is no tensor."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value if isinstance(value, (Tensor, Wrapping)) else SimpleNamespace(of=value))


@pytest.mark.parametrize(
    ("make", "kind", "read"),
    [
        (lambda x: ReadOnly({"a": x}), dict, lambda kept: kept["a"]),
        (lambda x: Two(x, 3), tuple, lambda kept: kept[0]),
        (Uncopied, SimpleNamespace, lambda kept: kept.x),
        (lambda x: Wrapping(a=x), dict, lambda kept: kept["a"]),
        (lambda x: Wrapping(deep=Wrapping(a=x)), dict, lambda kept: kept["deep"]["a"]),
    ],
)
def test_what_cannot_be_rebuilt_is_kept_as_something_plain_and_said(make: Any, kind: type, read: Any) -> None:
    made = []
    net = nn.Sequential(nn.Linear(1, 1, bias=False), Do(lambda x: made.append(make(x)) or made[-1]))
    nn.init.ones_(net[0].weight)
    said = pytest.warns(UserWarning, match=rf"layer 1: a {type(make(0)).__name__} cannot be rebuilt")
    with said, capture(net, gradients=True) as seen:
        out = net(torch.ones(1, 1))
        read(out).sum().backward()
        read(out).detach().zero_()
    assert out is made[0]
    assert type(seen["1"].output) is kind
    assert read(seen["1"].output).item() == 1
    assert read(seen["1"].grad).item() == 1


def test_a_mapping_proxy_stays_one() -> None:
    with capture(Do(lambda x: MappingProxyType({"a": x}))) as seen:
        seen._model(torch.ones(1))
    assert type(seen[""].output) is MappingProxyType
    assert seen[""].output["a"].item() == 1
    assert not seen.notes


def test_an_object_that_cannot_be_copied_and_holds_no_tensor_is_said_to_stay_live() -> None:
    net = nn.Module()
    net.inner = Do(lambda x, state: x)
    net.forward = lambda x: net.inner(x, Uncopied(None))
    said = pytest.warns(UserWarning, match="a Uncopied cannot be copied, so it is kept as it is and can change later")
    with said, capture(net, inputs=True):
        net(torch.ones(1))


class Fields(OrderedDict[str, Any]):
    """Copies itself in the order of its fields, as transformers' ModelOutput does."""

    def __reduce__(self) -> Any:
        return Fields, (), None, None, iter(sorted(self.items()))


def test_the_order_of_a_mapping_is_kept() -> None:
    def forward(x: Tensor) -> Fields:
        return Fields([("b", x), ("a", x + 1)])

    with capture(Do(forward)) as seen:
        seen._model(torch.zeros(1))
    assert type(seen[""].output) is Fields
    assert [(key, value.item()) for key, value in seen[""].output.items()] == [("b", 0), ("a", 1)]


class Unread(Mapping[str, Tensor]):
    """A mapping that reads on demand, and has nothing to read from."""

    def __getitem__(self, key: str) -> Tensor:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class Once(list[Tensor]):
    """A list that is not to be looked through."""

    def __iter__(self) -> Iterator[Tensor]:
        raise RuntimeError("read me by pop()")


class Closed:
    """An object that does not tell what it holds."""

    @property
    def __dict__(self) -> dict[str, Any]:
        raise RuntimeError("closed")


@pytest.mark.parametrize("make", [lambda x: Unread(), lambda x: Once([x]), lambda x: Closed()])
@pytest.mark.filterwarnings("ignore:hookscope")
def test_a_container_that_cannot_be_read_does_not_stop_the_model(make: Any) -> None:
    net = nn.Sequential(Do(make))
    for look in (capture(net), capture(net, stats=True), capture(net, inputs=True, gradients=True), record(net)):
        with look as seen:
            kind = type(net(torch.ones(1)))
        if isinstance(seen, Capture) and kind is not Closed:
            assert f"a {kind.__name__} cannot be read" in repr(seen.notes)
