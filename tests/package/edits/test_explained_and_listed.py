"""A census lists the hooks of edits, and `explain` writes plain torch lines that make the same of the same inputs."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attend

from hookscope import at, capture, census, edit, explain
from tests.package.edits.test_what_an_edit_does import Attention, Held
from tests.shared.awkward import Do, Net, Pair, tensors_in
from tests.shared.explained import checked
from tests.shared.language import IDS, gpt2, llama

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def test_a_census_lists_edits() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with edit(net) as e:
        e.set("1", 0)
        found = [entry for entry in census(net) if entry.callable == "hookscope.edit"]
        assert [(entry.layer, entry.kind) for entry in found if entry.layer] == [("1", "forward_pre"), ("1", "forward")]
        assert "hookscope.edit" in repr(census(net))
        net(X)
    assert not len(census(net))


def structured() -> nn.Module:
    """A net whose layers return several kinds of structures."""

    def run(self, x):
        pair = self.pair(self.one(x))
        held = self.held(pair.low + pair.high)
        record = self.record(held.h + held.more["p"], hidden=x)
        first, second = self.two(record["a"] + record["b"])
        return self.attn(first)[0] + self.passing(second) * 2 + self.user(second)["u"]

    torch.manual_seed(0)
    return Net(
        run,
        one=nn.Linear(4, 4),
        pair=Do(lambda x: Pair(x * 2, x + 1)),
        held=Do(lambda x: Held(x, {"p": x * 3})),
        record=Do(lambda x, hidden: OrderedDict(b=x, a=hidden * 2)),
        two=Do(lambda x: (x + 1, x - 1)),
        attn=Attention(),
        passing=nn.Identity(),
        user=Do(lambda x: UserDict(u=x * 1)),
    )


V = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)

EDITS = {
    "set": lambda e: e.set("one", 0, at[:, 3]),
    "set all": lambda e: e.set("one", 0.5),
    "set infinite": lambda e: e.set("one", float("inf"), at[0, 0]),
    "set with an empty index": lambda e: e.set("one", 0.5, at[()]),
    "set a tensor": lambda e: e.set("one", V),
    "add": lambda e: e.add("one", V.detach(), at[:, :]),
    "add all": lambda e: e.add("one", V),
    "scale": lambda e: e.scale("one", 0.5, at[..., -1], to="input"),
    "scale all inputs": lambda e: e.scale("one", 0.5, to="input"),
    "a function of torch": lambda e: e.map("one", torch.relu, rows=[1]),
    "a function": lambda e: e.map("one", lambda t: t.mul_(3), at[:, 1:3]),
    "a function of all": lambda e: e.map("one", lambda t: t.mul_(3)),
    "rows and columns": lambda e: e.map("one", torch.tanh, at[:, ::2], rows=[1]),
    "a mask": lambda e: e.mask("one", V > 2, other=7.0),
    "a vector of another dtype": lambda e: e.add("one", V.detach().double(), at[:, :]),
    "a vector of another dtype into a gradient": lambda e: e.scale("one", V.detach().double(), to="grad"),
    "a tensor of another dtype": lambda e: e.set("one", V.detach().double(), to="input"),
    "a direction of another dtype": lambda e: e.project_out("one", V.detach().double() / 3),
    "a swap of another dtype": lambda e: e.swap("one", X.double() / 3, at[:, 0]),
    "a soft mask of another dtype": lambda e: e.mask("one", V.detach().double() / 3, at[0]),
    "an infinity under a mask of numbers": lambda e: e.mask("one", (V.detach() > 2).float(), at[0], other=-torch.inf),
    "infinities that a mask of numbers leaves out": lambda e: (
        e.set("one", torch.inf, at[:, 0]),
        e.mask("one", torch.tensor([0.0, 1.0, 0.5, 1.0]), other=torch.tensor([7.0, -torch.inf, 5.0, torch.nan])),
    ),
    "a soft mask": lambda e: e.mask("one", V.detach() / 4, at[0]),
    "a boolean index": lambda e: e.set("one", 1, at[X > 0]),
    "mean": lambda e: e.mean("one", None, at[:, 1]),
    "noise": lambda e: e.noise("one", 0.5, at[1], seed=3),
    "project_out": lambda e: e.project_out("one", V),
    "swap a tensor": lambda e: e.swap("one", X, at[:, 0]),
    "calls": lambda e: e.scale("one", 2, calls={1}),
    "a part of a named tuple": lambda e: e.set("pair", 0, part="high"),
    "a part of a dataclass": lambda e: e.set("held", 0, at[0], part=("more", "p")),
    "a part of an OrderedDict": lambda e: e.set("record", 0, part="a"),
    "a part of a UserDict": lambda e: e.set("user", 0, part="u"),
    "a keyword": lambda e: e.add("record", 1.0, to="input", part="hidden"),
    "a part of a tuple": lambda e: e.add("two", 1.0, part=1),
    "the only tensor": lambda e: e.add("attn", 1.0, at[0]),
    "heads": lambda e: e.set("attn", 0, at[0], heads=1),
    "a gradient": lambda e: e.scale("one", 3.0, to="grad"),
    "a part of the gradient": lambda e: e.set("two", 0, at[:, 1], to="grad", part=0),
    "the gradient of what is passed on": lambda e: e.scale("passing", 5.0, to="grad"),
    "several": lambda e: (e.scale("one", 2, to="grad"), e.add("one", 1)),
}


@pytest.mark.parametrize("name", sorted(EDITS))
def test_the_lines_that_are_written_do_the_same(name: str) -> None:
    net, x = structured(), X.clone().requires_grad_()

    def grads(y) -> list:
        net.zero_grad()
        V.grad = x.grad = None
        if y is not None:
            y.sum().backward()
        return [
            None if each is None else each.clone() for each in (x.grad, V.grad, *(p.grad for p in net.parameters()))
        ]

    with edit(net) as e:
        EDITS[name](e)
        y = net(x)
        expected = grads(y)
    code = checked(e)
    names = {**explain(e).names, "model": net, "inputs": (x,)}
    net.zero_grad()
    V.grad = x.grad = None
    exec(compile(code, "explained", "exec"), names)
    torch.testing.assert_close(names["result"], y, rtol=0, atol=0, equal_nan=True)
    if any(one.spec.to == "grad" for one in e.layer_edits):  # then the lines run backward themselves
        found = [x.grad, V.grad, *(p.grad for p in net.parameters())]
    else:
        found = grads(names["result"])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    with torch.no_grad():
        assert not torch.equal(net(X), y) or "grad" in name
    assert not len(census(net))


def test_lines_for_a_capture() -> None:
    net = structured()
    with capture(net, "one", "attn.c_proj", inputs=True) as clean:
        net(X)
    with edit(net) as e:
        e.swap("one", clean, at[:, 1])
        e.swap("attn", clean, heads=0, rows=[1])
        e.mean("one", clean, at[:, 2])
        y = net(-X)
    names = {**explain(e).names, "model": net, "inputs": (-X,)}
    exec(compile(checked(e), "explained", "exec"), names)
    assert torch.equal(names["result"], y)
    assert [len(kept) for kept in explain(e).names.values()] == [1, 1, 1]
    assert tensors_in(names["result"])


def test_lines_for_values_of_another_dtype_than_that_of_the_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    exact = copy.deepcopy(net).double()
    with capture(exact, "0", "1") as clean:
        exact(X.double())
    for dtype in (torch.float32, torch.bfloat16):
        with edit(net.to(dtype)) as e:
            e.noise("0", 0.5, seed=3)
            e.swap("0", clean, at[:, 1])
            e.mean("1", clean)
            y = net(-X.to(dtype))
        names = {**explain(e).names, "model": net, "inputs": (-X.to(dtype),)}
        exec(compile(checked(e), "explained", "exec"), names)
        assert names["result"].dtype == y.dtype == dtype
        assert torch.equal(names["result"], y)


def test_lines_for_positions_and_for_what_was_frozen() -> None:
    net = gpt2()
    names = {"model": net, "inputs": (IDS,)}
    with torch.no_grad(), edit(net) as e:
        e.add("transformer.h.0.mlp", 2.0, positions=[1, 3], rows=[1])
        e.scale("transformer.h.1.mlp", 3.0, at[..., :4], positions=slice(2, None))
        y = net(IDS).logits
    code = checked(e)
    assert "places = {1: [1, 3]}.get(number)" in code
    with torch.no_grad():
        exec(compile(code, "explained", "exec"), names)
        assert not torch.equal(net(IDS).logits, y)
    assert torch.equal(names["result"].logits, y)
    twice = Net(lambda self, x: self.leaf(x) + self.leaf(x + 1), leaf=nn.Tanh())
    with edit(twice) as e:
        e.freeze("leaf", None, at[:, 1])
        y = twice(X)
    names = {"model": twice, "inputs": (X,)}
    exec(compile(checked(e), "explained", "exec"), names)
    assert torch.equal(names["result"], y)
    assert torch.equal(y[:, 1], 2 * X[:, 1].tanh())


def in_plain(e, net, *inputs):
    """What the lines for an edit make of the same inputs."""
    names = {**explain(e).names, "model": net, "inputs": inputs}
    functions = nn.functional.linear, nn.functional.scaled_dot_product_attention
    exec(compile(checked(e), "explained", "exec"), names)
    assert (nn.functional.linear, nn.functional.scaled_dot_product_attention) == functions
    assert torch.backends.mha.get_fastpath_enabled()
    assert not len(census(net))
    return names["result"]


class Attending(nn.Module):
    """Calls an `nn.MultiheadAttention`, twice or by keyword."""

    def __init__(self, batch_first: bool = False, twice: bool = False, weights: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attn, self.twice = nn.MultiheadAttention(4, 2, batch_first=batch_first), twice
        self.weights = weights

    def forward(self, x):
        y = self.attn(x, x, x, need_weights=self.weights)[0]
        return self.attn(query=y, key=y, value=y, need_weights=False)[0] if self.twice else y


WORDS = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("name", ["all", "some", "second", "frozen", "unbatched", "weights", "several"])
def test_lines_for_heads_of_multihead_attention(name: str, batch_first: bool, evaluated: bool) -> None:
    net = Attending(batch_first, name in ("second", "frozen"), name == "weights").train(not evaluated)
    x = WORDS[0] if name == "unbatched" else WORDS
    with torch.no_grad():
        plain = net(x)
        with edit(net) as e:
            if name == "some":
                e.scale("attn", 3.0, at[1, :, 0], heads=[1], rows=[2, 0] if batch_first else None)
            elif name == "second":
                e.map("attn", torch.tanh, heads=0, calls={2})
            elif name == "frozen":
                e.freeze("attn", heads=0)
            elif name == "several":
                e.set("attn", 0.5, heads=0)
                e.add("attn", 1.0, heads=[0, 1])
            else:
                e.set("attn", 0, heads=1)
            y = net(x)
        assert torch.equal(in_plain(e, net, x), y)
    assert not torch.equal(plain, y)


@pytest.mark.parametrize("batch_first", [True, False])
def test_lines_for_an_edge_of_multihead_attention(batch_first: bool) -> None:
    net = Attending(batch_first, twice=True).eval()
    with torch.no_grad():
        with edit(net) as e:
            e.cut("attn", 1, [2, 0], [1, 0], rows=[0, 2])
            e.cut("attn", 0, 2, 1, calls={2})
            y = net(WORDS)
        torch.testing.assert_close(in_plain(e, net, WORDS), y, rtol=0, atol=1e-6)
        assert (net(WORDS) - y).abs().max() > 1e-3


@pytest.mark.parametrize(("make", "layer"), [(gpt2, "transformer.h.1.attn"), (llama, "model.layers.1.self_attn")])
def test_lines_for_an_edge_of_a_language_model(make, layer: str) -> None:
    net, mask = make(), torch.ones_like(IDS)
    mask[1, :2] = 0
    whole = Net(lambda self, ids: self.inner(ids, attention_mask=mask).logits, inner=net)
    for masked in (False, True):
        given = whole if masked else net
        name = f"inner.{layer}" if masked else layer
        with torch.no_grad():
            with edit(given) as e:
                e.cut(name, [0, 1], 3, [2, 1])
                e.scale(name, 2.0, part=0)
                y = given(IDS)
            found = in_plain(e, given, IDS)
            y, found, plain = (each if masked else each.logits for each in (y, found, given(IDS)))
            torch.testing.assert_close(found, y, rtol=0, atol=1e-5)
            assert (plain - y).abs().max() > 1e-4


def test_lines_for_positions_of_heads_of_multihead_attention() -> None:
    net = nn.Sequential(OrderedDict(words=nn.Embedding(9, 4), attending=Attending(batch_first=True)))
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with torch.no_grad():
        plain = net(ids)
        with edit(net) as e:
            e.scale("attending.attn", 3.0, positions=[1, 3], heads=1, rows=[1])
            e.set("attending.attn", 0.5, positions=2, heads=0)
            y = net(ids)
        assert torch.equal(in_plain(e, net, ids), y)
    assert ((y - plain).abs().amax(-1) > 0).tolist() == [[False, False, True, False], [False, True, True, True]]


class ByName(nn.Module):
    """Calls a function that its module has imported by name."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 1

    def forward(self, x):
        return attend(x[:, None], x[:, None], x[:, None])[:, 0]


def test_lines_for_an_edge_do_not_reach_a_function_that_was_imported_by_name() -> None:
    net = nn.Sequential(ByName())
    with edit(net) as e:
        e.cut("0", head=0, query=2, key=1)
        y = net(WORDS)
    assert not torch.equal(net(WORDS), y)
    with pytest.raises(
        ValueError, match="layer '0': ByName has imported scaled_dot_product_attention by name, as 'att"
    ):
        explain(e)


def test_functions_of_torch_come_back_after_an_exception_in_the_lines() -> None:
    net = Attending()
    with torch.no_grad(), edit(net) as e:
        e.set("attn", 0, heads=1)
        net(WORDS)
    linear = nn.functional.linear
    with pytest.raises(AssertionError, match="was expecting embedding dimension of 4"):
        in_plain(e, net, WORDS[..., :3])
    assert nn.functional.linear is linear
    assert torch.equal(in_plain(e, net, WORDS), in_plain(e, net, WORDS))


def test_lines_are_few() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with edit(net) as e:
        e.set("0", 0, at[:, 3])
        net(X)
    assert str(explain(e)) == (
        "handles = []\n\n\n"
        "def edit_1(module, args, output):\n"
        "    tensor = output\n"
        "    new = tensor.clone()  # a copy: others may hold the tensor itself\n"
        "    new[:, 3] = 0\n"
        "    return new\n\n\n"
        "try:\n"
        "    layer = model.get_submodule('0')\n"
        "    handles.append(layer.register_forward_hook(edit_1))\n"
        "    result = model(*inputs)\n"
        "finally:\n"
        "    for handle in handles:\n"
        "        handle.remove()  # otherwise your hooks fire in every later pass\n"
    )


@pytest.mark.parametrize("heads", [[1, 3], [0, 2, 5, 7, 8, 11, 13, 15]])
def test_lines_for_heads_that_are_not_side_by_side_need_nothing_else(heads: list[int]) -> None:
    net = llama(num_attention_heads=4 * len(heads) // 2, hidden_size=64)
    rows = 0 if len(heads) > 2 else 1
    with torch.no_grad():
        plain = net(IDS).logits
        with edit(net) as e:
            e.scale("model.layers.1.self_attn", 3.0, at[..., :5], heads=heads, rows=rows)
            e.set("model.layers.0", 0.0, at[..., [*range(20), *range(30, 40)]])
            y = net(IDS).logits
        assert not explain(e).names
        assert torch.equal(in_plain(e, net, IDS).logits, y)
        assert (y - plain).abs().max() > 1e-4


def test_lines_for_samples_positions_heads_and_an_index_at_once() -> None:
    net = llama()
    with torch.no_grad():
        plain = net(IDS).logits
        with edit(net) as e:
            e.scale("model.layers.1.self_attn", 3.0, at[..., :2], heads=[1, 3], positions=[1, 3], rows=[1])
            y = net(IDS).logits
        assert torch.equal(in_plain(e, net, IDS).logits, y)
    assert (y[0] == plain[0]).all()
    assert (y - plain).abs().max() > 1e-5
