"""Paths of tensors in nested values: each place is found once, can be read, and can be replaced in a copy."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hookscope import capture
from hookscope.interp.edits import nested_values
from hookscope.pytree import find_paths, find_tensors, key_get, keystr, list_children, replace_at, tree_map
from tests.shared.awkward_models import LARGE, MODELS, Pair, Result
from tests.shared.awkward_models.building import Frozen
from tests.shared.table_checks import check_each


class Attributes(dict[str, Any]):
    """A dict whose keys are its attributes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.__dict__ = self


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Listed(list[Any]):
    """A list of a derived class."""


tensor = st.integers(0, 9).map(lambda number: torch.full((2,), float(number)))
others = st.sampled_from([None, 1, "text", 2.5, torch.float32, print, nn.ReLU, b"x", 1j, True])
keys = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", "h'", "logits"]))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two, many = st.tuples(children, children), st.lists(children, max_size=3)
    mapping = st.dictionaries(keys, children, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b"]), children, max_size=2)
    kinds: list[st.SearchStrategy[Any]] = [
        many,
        many.map(tuple),
        many.map(deque),
        many.map(Listed),
        two.map(lambda items: Pair(*items)),
        two.map(lambda items: Slotted(*items)),
        st.tuples(children, many).map(lambda items: Result(*items)),
        children.map(Frozen),
        mapping,
        mapping.map(OrderedDict),
        mapping.map(UserDict),
        mapping.map(MappingProxyType),
        mapping.map(lambda items: defaultdict(list, items)),
        named.map(Attributes),
        named.map(lambda items: SimpleNamespace(**items)),
        tensor.map(lambda x: {x, x + 1}),
        tensor.map(lambda x: torch.max(torch.stack([x, x + 1]), 0)),
        tensor.map(lambda x: nn.utils.rnn.pack_sequence([x, x[:1]])),
        tensor.map(lambda x: BaseModelOutput(last_hidden_state=x, hidden_states=(x, x + 1))),
    ]
    return st.one_of(kinds)


values = st.recursive(st.one_of(tensor, tensor, others), containers, max_leaves=12)
always_the_same = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)


def ids(tensors: Any) -> list[int]:
    return list(dict.fromkeys(map(id, tensors)))


def is_walked(value: Any) -> None:
    """Check the paths of a value against `find_tensors`, which is a walk of its own, and against Python itself."""
    paths = list(find_paths(value))
    assert ids(found for _, found in paths) == ids(find_tensors(value))
    is_mapped(value)
    names = [keystr(path) for path, _ in paths]
    assert len(set(names)) == len(names)
    for path, found in paths:
        holders = [key_get(value, path[:end]) for end in range(len(path))] if indexable(value, path) else []
        if holders:
            assert eval(f"value{keystr(path)}", {"value": value}) is found
    for path, found in find_paths(value, objects=False):
        assert key_get(value, path) is found
        is_replaced(value, path, found)
    for steps, found in nested_values.tensors(value):
        assert nested_values.get(value, steps) is found


def is_mapped(value: Any) -> None:
    """Check that `tree_map` replaces each tensor that `find_tensors` lists, in that order."""
    replaced: list[Tensor] = []
    tree_map(lambda tensor: replaced.append(tensor) or tensor.clone(), value)  # type: ignore[func-returns-value]
    assert list(map(id, find_tensors(value))) == list(map(id, replaced))


def indexable(value: Any, path: Any) -> bool:
    """Whether Python can read a path, which goes through no set."""
    for key in path:
        if isinstance(value, (set, frozenset)):
            return False
        value = key.get(value)
    return True


def is_replaced(value: Any, path: Any, found: Tensor) -> None:
    before, new = list(find_paths(value)), torch.zeros(1)
    try:
        copy = replace_at(value, path, new)
    except TypeError:  # a mapping proxy has no items that can be set
        assert any(isinstance(key_get(value, path[:end]), MappingProxyType) for end in range(len(path)))
        return
    assert type(copy) is type(value)
    assert key_get(copy, path) is new
    name = keystr(path)
    expected = [(keystr(each), new if keystr(each) == name else tensor) for each, tensor in before]
    got = [(keystr(each), tensor) for each, tensor in find_paths(copy)]
    assert [each for each, _ in got] == [each for each, _ in expected]
    assert all(one is other for (_, one), (_, other) in zip(got, expected, strict=True))
    assert key_get(value, path) is found


@settings(always_the_same, max_examples=250)
@given(values)
def test_each_place_of_a_tensor_is_found_read_and_replaced(value: Any) -> None:
    is_walked(value)


@pytest.mark.filterwarnings("ignore")
def test_each_place_in_what_awkward_models_return() -> None:
    def check_model(name: str) -> None:
        model, args, kwargs = MODELS[name]()
        with torch.no_grad(), capture(model, inputs=True) as seen:
            model(*args, **kwargs)
        for call in seen.calls:
            is_walked(call.output)
            is_walked((call.args, call.kwargs))

    check_each([name for name in MODELS if name not in LARGE], check_model)


def test_a_value_that_contains_itself_is_visited_once() -> None:
    value: list[Any] = [torch.ones(1)]
    value += [{"back": value}, value]
    assert [keystr(path) for path, _ in find_paths(value)] == ["[0]"]
    is_mapped(value)


def test_a_container_that_cannot_be_read_has_no_children() -> None:
    class Broken(list[Any]):
        def __iter__(self) -> Any:
            raise ValueError("cannot be read")

    assert list_children(Broken([torch.ones(1)])) == []
    value = [torch.ones(1), Broken([torch.ones(1)])]
    assert [keystr(path) for path, _ in find_paths(value)] == ["[0]"]
    is_mapped(value)


@pytest.mark.parametrize(("levels", "count"), [(20, 1), (24, 0)])
def test_values_are_followed_as_deep_as_one_goes(levels: int, count: int) -> None:
    value: Any = torch.ones(1)
    for _ in range(levels):
        value = [value]
    assert len(find_tensors(value)) == count
    is_mapped(value)


def test_other_kinds_than_tensors_are_found() -> None:
    relu = nn.ReLU()
    assert [(keystr(path), found) for path, found in find_paths({"a": [relu, 1]}, nn.Module)] == [("['a'][0]", relu)]


def test_what_is_an_entry_and_an_attribute_is_replaced_as_both() -> None:
    class Both(dict[str, Tensor]):
        def __init__(self, h: Tensor) -> None:
            super().__init__(h=h)
            self.h = h

    one, new = Both(torch.ones(1)), torch.zeros(1)
    ((path, _),) = find_paths(one)
    copy = replace_at(one, path, new)
    assert copy["h"] is copy.h is new
    assert one["h"] is one.h is not new
