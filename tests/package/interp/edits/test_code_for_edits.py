"""The code that `explain` writes for an edit makes the same of the same inputs, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import at, capture, census, edit, explain
from tests.shared.awkward_models import Do, Net
from tests.shared.explanation_runs import explain_and_check
from tests.shared.language_models import IDS, gpt2

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
V = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)


def structured() -> nn.Module:
    """A net whose layers return and are given several kinds of structures."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        record = self.record(self.one(x), hidden=x)
        first, second = self.two(record["a"] + record["b"])
        return self.alone(first)[0] + self.relu(self.passing(second) * 2) + second

    torch.manual_seed(0)
    return Net(
        run,
        one=nn.Linear(4, 4),
        record=Do(lambda x, hidden: {"b": x, "a": hidden * 2}),
        two=Do(lambda x: (x + 1, x - 1)),
        alone=Do(lambda x: (x * 2, None)),
        passing=nn.Identity(),
        relu=nn.ReLU(inplace=True),
    )


EDITS: dict[str, Callable[[Any], Any]] = {
    "set": lambda e: e.set("one", 0, at[:, 3]),
    "set all": lambda e: e.set("one", 0.5),
    "set infinite": lambda e: e.set("one", float("inf"), at[0, 0]),
    "set with an empty index": lambda e: e.set("one", 0.5, at[()]),
    "set a tensor": lambda e: e.set("one", V),
    "add": lambda e: e.add("one", V.detach(), at[:, :]),
    "add all": lambda e: e.add("one", V),
    "scale": lambda e: e.scale("one", 0.5, at[..., -1], to="input"),
    "scale all inputs": lambda e: e.scale("one", 0.5, to="input"),
    "a function of torch": lambda e: e.map("one", torch.relu, samples=[1]),
    "a function": lambda e: e.map("one", lambda t: t.mul_(3), at[:, 1:3]),
    "a function of all": lambda e: e.map("one", lambda t: t.mul_(3)),
    "a vector of another dtype": lambda e: e.add("one", V.detach().double(), at[:, :]),
    "a vector of another dtype into a gradient": lambda e: e.scale("one", V.detach().double(), to="grad"),
    "a tensor of another dtype": lambda e: e.set("one", V.detach().double(), to="input"),
    "a swap of another dtype": lambda e: e.swap("one", X.double() / 3, at[:, 0]),
    "a boolean index": lambda e: e.set("one", 1, at[X > 0]),
    "mean": lambda e: e.mean("one", None, at[:, 1]),
    "mean of all": lambda e: e.mean("one"),
    "swap a tensor": lambda e: e.swap("one", X, at[:, 0]),
    "calls": lambda e: e.scale("one", 2, calls={1}),
    "a part of a dict": lambda e: e.set("record", 0, part="a"),
    "a keyword": lambda e: e.add("record", 1.0, to="input", part="hidden"),
    "a part of a tuple": lambda e: e.add("two", 1.0, part=1),
    "the only tensor": lambda e: e.add("alone", 1.0, at[0]),
    "a gradient": lambda e: e.scale("one", 3.0, to="grad"),
    "a part of the gradient": lambda e: e.set("one", 0, at[:, 1], to="grad"),
    "the gradient of what is passed on": lambda e: e.scale("passing", 5.0, to="grad"),
    "several": lambda e: (e.add("one", 2.0, to="grad"), e.add("one", 1), e.scale("one", 3)),
}


@pytest.mark.parametrize("name", sorted(EDITS))
def test_the_lines_that_are_written_do_the_same(name: str) -> None:
    net, x = structured(), X.clone().requires_grad_()

    def grads(y: Tensor | None) -> list[Any]:
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
    code = explain_and_check(e)
    names = {**explain(e).names, "model": net, "inputs": (x,)}
    grads(None)
    exec(compile(code, "explained", "exec"), names)
    torch.testing.assert_close(names["result"], y, rtol=0, atol=0, equal_nan=True)
    if "loss.backward()" in code:
        found = [x.grad, V.grad, *(p.grad for p in net.parameters())]
    else:
        found = grads(names["result"])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    with torch.no_grad():
        assert not torch.equal(net(X), y) or "grad" in name
    assert not len(census(net))


def in_plain(e: Any, net: nn.Module, *inputs: Any) -> Any:
    """What the lines for an edit make of the same inputs."""
    names = {**explain(e).names, "model": net, "inputs": inputs}
    exec(compile(explain_and_check(e), "explained", "exec"), names)
    assert not len(census(net))
    return names["result"]


def test_lines_for_values_of_another_run() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    exact = copy.deepcopy(net).double()
    with capture(exact, "0", "1") as clean:
        exact(X.double())
    for dtype in (torch.float32, torch.bfloat16):
        with edit(net.to(dtype)) as e:
            e.swap("0", clean, at[:, 1])
            e.mean("1", clean)
            y = net(-X.to(dtype))
        result = in_plain(e, net, -X.to(dtype))
        assert result.dtype == y.dtype == dtype
        assert torch.equal(result, y)
    assert [list(names) for names in (explain(e).names,)] == [["other_1", "mean_2"]]


def test_lines_for_several_calls_of_one_layer() -> None:
    net = Net(lambda self, x: self.leaf(x) * 2 + self.leaf(x + 1), leaf=nn.Linear(4, 4))
    with capture(net, "leaf") as clean:
        net(X)
    edits: list[Callable[[Any], Any]] = [
        lambda e: e.swap("leaf", clean, at[:, 1]),
        lambda e: e.swap("leaf", clean, calls=2),
        lambda e: e.set("leaf", 0, at[0], calls=[2]),
    ]
    for write in edits:
        with edit(net) as e:
            write(e)
            y = net(-X)
        assert torch.equal(in_plain(e, net, -X), y)
        assert not torch.equal(net(-X), y)


def test_one_hook_for_many_layers() -> None:
    net = gpt2()
    with torch.no_grad(), edit(net) as e:
        e.scale("transformer.h.*.mlp", 3.0, at[..., :4])
        e.add("transformer.h.1.attn", 1.0, part=0)
        y = net(IDS).logits
    assert (code := explain_and_check(e)).count("def ") == 2
    assert "for name in ['transformer.h.0.mlp', 'transformer.h.1.mlp']:" in code
    with torch.no_grad():
        assert torch.equal(in_plain(e, net, IDS).logits, y)
        assert not torch.equal(net(IDS).logits, y)


def test_lines_are_few() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with edit(net) as e:
        e.set("0", 0, at[:, 3])
        net(X)
    assert str(explain(e)) == (
        "handles = []\n\n\n"
        "def edit_1(module, args, output):\n"
        "    new = output.clone()  # a copy: others may hold the tensor itself\n"
        "    new[:, 3] = 0\n"
        "    return new\n\n\n"
        "try:\n"
        "    handles.append(model.get_submodule('0').register_forward_hook(edit_1))\n"
        "    result = model(*inputs)  # for keyword arguments: model(**inputs)\n"
        "finally:\n"
        "    for handle in handles:\n"
        "        handle.remove()  # otherwise your hooks fire in every later pass\n"
    )
