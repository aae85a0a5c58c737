"""Each kind of edit changes just the values it is aimed at, to what a hook written by hand would make of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookscope import at, capture, census, edit
from tests.shared.awkward_models import Do, Net, Pair

X = torch.tensor([[1.0, -2.0, 3.0, -4.0], [5.0, 6.0, -7.0, 8.0]])


def passing() -> nn.Module:
    """A net whose layer `leaf` returns what it gets."""
    return Net(lambda self, x: self.leaf(x), leaf=nn.Identity())


def through(net: nn.Module, x: Tensor = X, **said) -> Tensor:
    """Run with one edit of `leaf`: a method's name and what it takes."""
    (verb, given), *where = said.items()
    with edit(net) as e:
        getattr(e, verb)("leaf", *given, **dict(where))
        return net(x)


def changed(**places: float) -> Tensor:
    """X with some values changed, named by row and column."""
    new = X.clone()
    for place, value in places.items():
        new[int(place[1]), int(place[2])] = value
    return new


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"set": (0, at[:, 3])}, changed(_03=0, _13=0)),
        ({"set": (0,)}, X * 0),
        ({"set": (torch.tensor([9.0, 8.0]), at[0, 1:3])}, changed(_01=9, _02=8)),
        ({"add": (10, at[..., -1])}, changed(_03=6, _13=18)),
        ({"add": (torch.tensor([1.0, 0.0, 0.0, 2.0]),), "samples": [1]}, changed(_10=6, _13=10)),
        ({"scale": (2, at[:, [0, 2]])}, changed(_00=2, _02=6, _10=10, _12=-14)),
        ({"map": (torch.relu,)}, X.relu()),
        ({"map": (torch.relu, at[:, :2]), "samples": 0}, changed(_01=0)),
        ({"map": (lambda t: t.mul_(3), at[1])}, torch.stack([X[0], X[1] * 3])),
        ({"set": (0, at[X > 4])}, X.where(X <= 4, 0)),
        ({"scale": (2,), "to": "input", "samples": slice(1, None)}, torch.stack([X[0], X[1] * 2])),
        ({"mean": ()}, X.mean(0, keepdim=True).expand(2, 4)),
        ({"mean": (None, at[:, 1]), "samples": [0]}, changed(_01=2)),
        ({"swap": (X * 2, at[:, 0])}, changed(_00=2, _10=10)),
    ],
)
def test_just_what_is_aimed_at_changes(said, expected) -> None:
    net, x = passing(), X.clone()
    assert torch.equal(through(net, x, **said), expected)
    assert torch.equal(x, X), "what the layer was given is what it returned, and stays as it was"
    assert not len(census(net))


@pytest.mark.parametrize("to", ["output", "input"])
def test_edits_take_effect_in_the_order_written(to: str) -> None:
    net = passing()
    with edit(net) as e:
        e.add("leaf", 1.0, to=to)
        e.scale("leaf", 2.0, to=to)
        assert torch.equal(net(X), (X + 1) * 2)


def test_the_only_tensor_of_a_structure_needs_no_part_and_several_do() -> None:
    net = Net(lambda self, x: self.leaf(x), leaf=Do(lambda x: (x, None)))
    with edit(net) as e:
        e.set("leaf", 0)
        assert not net(X)[0].any()
    net.leaf.function = lambda x: Pair(x, x)
    with pytest.raises(
        ValueError, match=r"layer 'leaf', call 1: it returned several tensors. Choose one: part=0 \(2, 4"
    ):
        through(net, set=(0,))


def test_inputs_by_position_beside_a_keyword() -> None:
    net = Net(lambda self, x: self.leaf(x, hidden=x, scale=3), leaf=Do(lambda x, hidden, scale: x + hidden * scale))
    with edit(net) as e:
        e.set("leaf", 0, at[:, 1:], to="input", part=0)
        assert torch.equal(net(X)[:, 1:], X[:, 1:] * 3)
    with pytest.raises(ValueError, match=r"it got several tensors. Choose one: part=0 .*part='hidden'"):
        through(net, set=(0,), to="input")


def test_two_names_of_one_module_are_edited_under_both_and_it_is_said() -> None:
    shared = nn.Identity()
    net = nn.Sequential(shared, nn.ReLU(), shared)
    e = edit(net)
    e.add("0", 1)
    with pytest.warns(UserWarning, match="layer '0' is also named '2'; calls under any of its names count"), e:
        y = net(X)
    assert torch.equal(y, (X + 1).relu() + 1)
    assert e.rows[0]["calls seen"] == 2
    assert "is also named '2'" in repr(e)
    with e:
        net[:1](X)  # called once, it was called under one name
    assert not e.notes


def test_a_mean_is_that_of_all_calls_of_another_run() -> None:
    net = Net(lambda self, x: self.b(self.a(x)) + self.b(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    with torch.no_grad(), capture(net) as clean:
        net(X)
    with torch.no_grad(), edit(net) as e:
        e.mean("b", clean)
        out = net(-X)
    mean = torch.cat([call.output for call in clean["b"].calls]).mean(0)
    torch.testing.assert_close(out, (2 * mean).expand(2, 4))


def test_a_head_is_its_columns_before_the_output_projection() -> None:
    layers = {"value": nn.Linear(4, 4), "c_proj": nn.Linear(4, 4)}
    net = nn.ModuleDict({"attn": Net(lambda self, x: (self.c_proj(self.value(x)), None), num_heads=2, **layers)})
    net.forward = lambda x: net["attn"](x)[0]
    with torch.no_grad(), capture(net, "attn.c_proj", inputs=True) as clean:
        net(X)
    with torch.no_grad(), edit(net) as e, capture(net, "attn.c_proj", inputs=True) as seen:
        e.swap("attn", clean, at[0], heads=1)
        net(-X)
    plain = net["attn"].value(-X).detach()
    plain[0, 2:] = clean["attn.c_proj"].args[0][0, 2:]
    assert torch.equal(seen["attn.c_proj"].args[0], plain)
    assert e.rows[0]["layer"] == "attn.c_proj"
    with pytest.raises(ValueError, match=r"no head 2\. Its heads are 0 to 1"):
        edit(net).set("attn", 0, heads=2)
    with capture(net, "attn") as wrong:
        net(X)
    with pytest.raises(LookupError) as caught:
        edit(net).swap("attn", wrong, heads=1)
    assert "capture(model, 'attn.c_proj', inputs=True)" in caught.value.__notes__[0]


def test_layers_that_came_into_the_model_after_the_edit_was_made() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    for layer in ("2", "*", nn.ReLU, lambda name, module: name == "2"):
        again = nn.Sequential(*net)
        e = edit(again)
        e.scale("1", 2.0)
        again.append(nn.ReLU())
        e.add(layer, 7.0)
        with e:
            y = again(torch.ones(1, 4))
        assert "2" in [row["layer"] for row in e.rows]
        assert bool((y >= 7).all())


def test_numbers_out_of_bounds_are_refused_before_a_gpu_would_end_the_process() -> None:
    from hookscope.interp.edits.selection import _must_fit

    shape = torch.Size((2, 3, 4))
    for fits in ([1, -2], (slice(None), [2, -3]), (..., torch.tensor([3])), (torch.ones(2, 3, dtype=torch.bool), [3])):
        _must_fit(fits, shape)
    for wrong in ([2], [-3], (slice(None), [3]), (..., torch.tensor([4])), (torch.ones(2, 3, dtype=torch.bool), [4])):
        with pytest.raises(IndexError, match="index out of bounds for dimension"):
            _must_fit(wrong, shape)


def test_an_edit_that_was_never_entered_says_so() -> None:
    net = nn.Sequential(nn.Identity())
    e = edit(net)
    e.set("0", 1.0)
    assert net(torch.zeros(1)) == 0
    assert "nothing is edited until the with block begins" in repr(e)
    with e:
        net(torch.zeros(1))
    assert not e.notes


@pytest.mark.parametrize("which", [nn.Linear, "a", "*"])
def test_a_layer_of_two_names_that_is_replaced_in_the_block(which: type | str) -> None:
    net = Net(lambda self, x: self.b(self.a(x)), a=nn.Linear(4, 4))
    net.b = net.a
    with edit(net) as e:
        e.scale(which, 2.0)
        net(X)
        net.a = net.b = nn.Linear(4, 4)
    assert e.rows[0]["calls changed"] == 2
