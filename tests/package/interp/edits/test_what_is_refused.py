"""What cannot be right is refused: options when they are given, new values that do not fit inside the pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import at, capture, census, edit
from hookscope.captures import NotCapturedError
from tests.shared.awkward import Do, Net

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    return Net(lambda self, x: self.head(self.body(x)), body=nn.Linear(4, 4), head=nn.Linear(4, 3))


def test_a_capture_that_lacks_what_is_to_be_swapped_is_refused_at_once() -> None:
    model = net()
    with capture(model, "head") as seen:
        model(X)
    with pytest.raises(LookupError, match="no layer 'body'"):
        edit(model).swap("body", seen)
    with pytest.raises(NotCapturedError, match="did not keep inputs"):
        edit(model).swap("head", seen, to="input")
    with pytest.raises(NotCapturedError, match="did not keep gradients"):
        edit(model).swap("head", seen, to="grad")


UNFIT = {
    "None": (lambda e: e.map("body", lambda t: None), TypeError, "the function returned None"),
    "no tensor": (lambda e: e.map("body", lambda t: 3), TypeError, "the function returned int, not a tensor"),
    "another shape": (lambda e: e.map("body", lambda t: t[:1]), ValueError, r"changed the shape \(2, 4\) to \(1, 4\)"),
    "a batch that grows": (lambda e: e.map("body", lambda t: t + torch.ones(3, 1, 1)), ValueError, r"\(3, 2, 4\)"),
    "a value that grows it": (lambda e: e.add("body", torch.ones(3, 2, 4)), ValueError, r"shape \(3, 2, 4\).*\(2, 4\)"),
    "a value of another length": (lambda e: e.set("body", torch.ones(3), at[0]), ValueError, r"\(3,\).*\(4,\)"),
    "another dtype": (lambda e: e.map("body", torch.Tensor.double), TypeError, "float32 to torch.float64"),
    "a complex value": (lambda e: e.add("body", 1j), TypeError, "1j does not fit the dtype torch.float32"),
    "a complex tensor": (
        lambda e: e.set("body", torch.ones(4) * 1j),
        TypeError,
        "complex64, but the tensor has torch.float32",
    ),
    "another device": (lambda e: e.map("body", lambda t: t.to("meta")), ValueError, "from cpu to meta"),
    "a value elsewhere": (lambda e: e.add("body", torch.ones(4, device="meta")), ValueError, "on meta.*on cpu"),
    "an index out of range": (
        lambda e: e.set("body", 0, at[:, 4]),
        IndexError,
        r"at\[:, 4\] does not fit shape \(2, 4\)",
    ),
    "an index that picks nothing": (lambda e: e.set("body", 0, at[:, 9:]), IndexError, "selects nothing from shape"),
    "samples out of range": (lambda e: e.set("body", 0, samples=[2]), IndexError, r"samples=\[2\] does not fit shape"),
    "a direction of another length": (lambda e: e.project_out("body", torch.ones(3)), ValueError, "has 3 values"),
    "a tensor of another run": (lambda e: e.swap("body", torch.ones(1, 4)), ValueError, r"\(1, 4\) in the other run"),
}


@pytest.mark.parametrize("what", sorted(UNFIT))
def test_what_does_not_fit_names_layer_call_and_both(what: str) -> None:
    model = net()
    give, error, match = UNFIT[what]
    e = edit(model)
    give(e)
    with pytest.raises(error, match=match) as caught, e:
        model(X)
    assert "edit 1 (" in str(caught.value)
    assert "layer 'body', call 1" in str(caught.value)
    assert not len(census(model))


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
