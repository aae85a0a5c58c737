"""What cannot be right is refused: options when they are given, new values that do not fit inside the pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, edit
from hookscope.captures import NotCapturedError
from tests.shared.awkward_models import Do, Net

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    return Net(lambda self, x: self.head(self.body(x)), body=nn.Linear(4, 4), head=nn.Linear(4, 3))


def test_a_capture_that_lacks_what_is_to_be_swapped_is_refused_at_once() -> None:
    model = net()
    with capture(model, "head") as seen:
        model(X)
    with pytest.raises(LookupError, match="layer 'body' was not chosen"):
        edit(model).swap("body", seen)
    with pytest.raises(NotCapturedError, match="did not keep inputs"):
        edit(model).swap("head", seen, to="input")
    with pytest.raises(NotCapturedError, match="did not keep gradients"):
        edit(model).swap("head", seen, to="grad")


@pytest.mark.parametrize("value", [300, -1, torch.tensor(300), torch.full((3,), -1)])
def test_what_is_set_does_not_wrap(value: int | torch.Tensor) -> None:
    model, x = nn.Sequential(nn.Identity()), torch.ones(3, dtype=torch.uint8)
    e = edit(model)
    e.set("0", value)
    with pytest.raises(TypeError, match=r"does not fit torch\.uint8"), e:
        model(x)
    with edit(model) as e:
        e.set("0", torch.tensor(3))  # int64 that fits
        e.add("0", -1)
        assert model(x).tolist() == [2, 2, 2]


def test_integers_take_no_fractions_and_half_precision_takes_values_of_single() -> None:
    model = nn.Sequential(Do(lambda x: x.long()))
    e = edit(model)
    e.add("0", 0.5)
    with pytest.raises(TypeError, match=r"0\.5 does not fit the dtype torch\.int64"), e:
        model(X)
    half = nn.Sequential(nn.Identity())
    with edit(half) as e:
        e.add("0", torch.ones(4))
        assert half(X.bfloat16()).dtype is torch.bfloat16


def test_an_error_of_the_function_keeps_its_type_and_says_where() -> None:
    model = net()
    e = edit(model)
    e.map("head", lambda t: t @ torch.ones(7))
    with pytest.raises(RuntimeError) as caught, e:
        model(X)
    assert caught.value.__notes__ == ["hookscope: in edit 1 (map) of layer 'head', call 1"]


def test_a_capture_with_fewer_calls() -> None:
    model = net()
    with capture(model) as seen:
        model(X)
    e = edit(model)
    e.swap("head", seen)
    with pytest.raises(LookupError, match="has 1 calls of this layer, so it has no call 2"), e:
        [model(X) for _ in range(2)]


def test_a_block_is_not_opened_twice() -> None:
    e = edit(net())
    with pytest.raises(RuntimeError, match="already open"), e, e:
        pass
