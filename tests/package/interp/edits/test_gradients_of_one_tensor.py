"""A tensor that several layers, or several calls, return has one gradient; it is edited in the order it comes in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import NotEditedError, edit
from tests.shared.awkward_models import Do, Net

X = torch.ones(2)


@pytest.mark.parametrize("order", [("1", "1.0"), ("1.0", "1")])
def test_a_container_comes_before_the_layer_whose_output_it_returns(order: tuple[str, str]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6)))
    x = torch.randn(4, 6, requires_grad=True)
    outer, inner = net[1], net[1][0]  # type: ignore[index]
    handles = [
        outer.register_full_backward_pre_hook(lambda module, grads: (torch.ones_like(grads[0]),)),
        inner.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,)),
    ]
    (net(x) * 5).sum().backward()
    truth, x.grad = x.grad, None
    for handle in handles:
        handle.remove()
    with edit(net) as e:
        for layer in order:
            _ = e.set("1", 1.0, to="grad") if layer == "1" else e.scale("1.0", 2.0, to="grad")
        (net(x) * 5).sum().backward()
    assert torch.equal(x.grad, truth)
    assert [row["calls changed"] for row in e.rows] == [1, 1]


def remember(self: nn.Module) -> Tensor:
    """Compute once, and return the very same tensor again, as tables of rotary positions are kept."""
    if self.kept is None:
        self.kept = self.weight * 1
    return self.kept


def look_up_twice(self: nn.Module, x: Tensor) -> Tensor:
    self.table.kept = None
    return (self.table() * x).sum() + (self.table() * x * 10).sum()


@pytest.mark.parametrize("calls", [None, 1, 2])
def test_a_tensor_that_an_earlier_call_has_returned_is_refused(calls: Any) -> None:
    net = Net(look_up_twice, table=Net(remember, weight=nn.Parameter(torch.ones(3)), kept=None))
    e = edit(net)
    e.scale("table", 0.5, to="grad", calls=calls)
    with pytest.raises(RuntimeError, match="call 2: it returned the same tensor as call 1"), e:
        net(torch.ones(3))


def test_an_identity_that_is_called_twice_with_one_tensor_has_two_gradients() -> None:
    net = Net(lambda self, x: (self.same(x) + 10 * self.same(x)).sum(), same=nn.Identity())
    x = torch.ones(2, requires_grad=True)
    y = x * 1
    with edit(net) as e:
        e.scale("same", 0.5, to="grad", calls=1)
        net(y).backward()
    assert x.grad.tolist() == [10.5, 10.5]


def test_a_call_whose_gradient_comes_twice_is_one_call() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    with edit(net) as e:
        e.scale("0", 2.0, to="grad")
        y = net(torch.ones(2, 4))
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    assert (e.rows[0]["calls seen"], e.rows[0]["calls changed"], e.rows[0]["largest change"]) == (1, 1, 1.0)
    assert (net[0].bias.grad == 2 * 2 * 2).all()


def test_a_tensor_that_is_overwritten_and_returned_again_has_two_gradients() -> None:
    held: list[Tensor] = []  # it is not given to the second layer, or that would return an alias
    double = Do(lambda: held.pop().mul_(2))
    net = Net(lambda self, x: held.append(self.first(x)) or self.second(), first=nn.Linear(3, 3), second=double)
    with edit(net) as e:
        e.scale("first", 5.0, to="grad")
        e.add("second", 1.0, to="grad")
        net(torch.randn(4, 3)).sum().backward()
    assert [row["calls changed"] for row in e.rows] == [1, 1]
    assert (net.first.bias.grad == 4 * 5 * 2 * (1 + 1)).all()


def test_a_chunk_that_nothing_uses_has_no_gradient_to_edit() -> None:
    net = nn.Sequential(nn.Linear(3, 3), Do(lambda x: torch.ops.aten.split_with_sizes(x, [1, 2], -1)))
    with edit(net) as e:
        e.scale("1", 2.0, to="grad", part=1)
        net(torch.ones(2, 3))[1].sum().backward()
    assert net[0].bias.grad.tolist() == [0, 4, 4]  # type: ignore[union-attr]

    class Cuts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            return None

    net = nn.Sequential(nn.Linear(3, 3), Do(Cuts.apply))

    def cut_off() -> None:
        with edit(net) as e:
            e.scale("0", 2.0, to="grad")
            net(torch.ones(2, 3)).sum().backward()

    with pytest.raises(NotEditedError, match="but got no gradient"):
        cut_off()


def test_a_layer_under_no_grad_that_passes_a_tensor_on_stops_no_model() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            kept = self.same(y)
        y += 1
        return y + self.same(y) + 0 * kept

    net = Net(run, first=nn.Linear(4, 4), same=nn.Identity())
    with edit(net) as e:
        e.scale("same", 2.0, to="grad")
        net(torch.ones(2, 4)).sum().backward()
    assert (net.first.bias.grad == 2 * (1 + 2)).all()
    assert (e.rows[0]["calls seen"], e.rows[0]["calls changed"]) == (2, 1)


@pytest.mark.parametrize(("part", "scaled", "expected"), [(0, None, 3), (1, None, 1), (1, 0, 10)])
def test_the_gradient_of_one_of_two_places_that_have_the_same_tensor(
    part: int, scaled: int | None, expected: int
) -> None:
    net = Net(lambda self, x: (out := self.cell(x))[0] + 3 * out[1], cell=Do(lambda x: ((made := x * 1), made)))
    x = X.clone().requires_grad_()
    with edit(net) as e:
        if scaled is not None:  # then the output at this place is another tensor
            e.scale("cell", 10.0, part=scaled)
        e.scale("cell", 0.0, to="grad", part=part)
        net(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [expected] * 2


def test_a_call_whose_gradient_never_came_is_named() -> None:
    """What is handed on as it came is edited in an alias, which has no gradient after it was overwritten."""
    net = Net(lambda self, x: torch.relu_(self.drop(x * 1)) + 3 * self.drop(x * 1), drop=nn.Dropout(0.5)).eval()
    e = edit(net)
    e.scale("drop", 0.0, to="grad")
    with pytest.warns(UserWarning, match="edit 1 of layer 'drop': call 1 got no gradient"), e:
        net(X.clone().requires_grad_()).sum().backward()
    with edit(net) as e:
        e.scale("drop", 0.0, to="grad", calls=2)
        net(X.clone().requires_grad_()).sum().backward()
    assert not e.notes
