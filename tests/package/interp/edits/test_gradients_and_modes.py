"""Gradients are edited and flow through edits, under checkpoints, autocast, torch.func and without grad, too."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookscope import at, edit
from tests.shared.awkward_models import Net
from tests.shared.networks import make_checkpointed

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def linear_tanh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def test_a_vector_and_a_mask_are_trained() -> None:
    net, vector, mask = linear_tanh(), torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
    with edit(net) as e:
        e.add("0", vector, at[:, :])
        e.map("1", lambda values: values * mask)
        net(X).sum().backward()
    hidden = net[0](X).detach()
    torch.testing.assert_close(vector.grad, (1 - hidden.tanh() ** 2).sum(0))
    torch.testing.assert_close(mask.grad, hidden.tanh().sum(0))


@pytest.mark.parametrize("verb", ["set", "add", "scale"])
def test_gradients_are_those_of_the_same_lines_written_by_hand(verb: str) -> None:
    net, x, v = linear_tanh(), X.clone().requires_grad_(), torch.randn(2, requires_grad=True)
    with edit(net) as e:
        getattr(e, verb)("0", v, at[:, 1:3])
        net(x).square().sum().backward()
    by_edit, x.grad, v.grad = (x.grad, v.grad), None, None
    h = net[0](x)
    part = {"set": v.expand(2, 2), "add": h[:, 1:3] + v, "scale": h[:, 1:3] * v}[verb]
    net[1](torch.cat([h[:, :1], part, h[:, 3:]], 1)).square().sum().backward()
    torch.testing.assert_close(by_edit, (x.grad, v.grad))


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.5).eval(), nn.Sequential()])
def test_the_gradient_of_a_tensor_that_is_passed_on_is_edited_for_this_use_only(layer: nn.Module) -> None:
    net, x = Net(lambda self, x: self.leaf(x) + 3 * x, leaf=layer), X.clone().requires_grad_()
    with edit(net) as e:
        e.scale("leaf", 10, to="grad")
        net(x).sum().backward()
    assert (x.grad == 13).all()


def test_double_backward() -> None:
    net, x = linear_tanh(), X.double().requires_grad_()
    net.double()

    def run(x: Tensor) -> Tensor:
        with edit(net) as e:
            e.scale("0", 2.0, at[:, 1])
            e.map("1", torch.square)
            return net(x)

    assert torch.autograd.gradgradcheck(run, (x,))


def test_no_grad_and_inference_mode() -> None:
    net = linear_tanh()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), edit(net) as e:
            e.set("0", 0, at[:, 1])
            e.map("1", lambda t: t.add_(1), samples=[0])
            y = net(X)
        assert not y.requires_grad
        assert y[1, 1] == 0
        assert y[0, 1] == 1
        assert "calls changed" in repr(e)


def test_autocast() -> None:
    net, v = linear_tanh(), torch.randn(4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), edit(net) as e:
        e.add("0", v)
        e.set("0", 0.5, at[:, 0])
        y = net(X)
        y.float().sum().backward()
    assert y.dtype is torch.bfloat16
    assert v.grad.dtype is torch.float32
    assert v.grad[0] == 0
    assert v.grad[1:].all()


def test_torch_func() -> None:
    net = linear_tanh()

    def by_hand(x: Tensor) -> Tensor:
        h = net[0](x)
        h = torch.cat([h[:1], torch.full_like(h[1:2], 5.0), h[2:]])
        return net[1](h) * 2

    with edit(net) as e:
        e.set("0", 5.0, at[1])
        e.scale("1", 2.0)
        mapped = torch.vmap(net)(X)
        jacobian = torch.func.jacrev(net)(X[0])
        hessian = torch.func.hessian(lambda x: net(x).sum())(X[0])
        _, forward_mode = torch.func.jvp(net, (X[0],), (X[1],))
        named = dict(net.named_parameters())
        grads = torch.func.grad(lambda p: torch.func.functional_call(net, p, (X[0],)).sum())(named)
    torch.testing.assert_close(mapped, torch.vmap(by_hand)(X))
    torch.testing.assert_close(jacobian, torch.func.jacrev(by_hand)(X[0]))
    torch.testing.assert_close(hessian, torch.func.hessian(lambda x: by_hand(x).sum())(X[0]))
    torch.testing.assert_close(forward_mode, torch.func.jvp(by_hand, (X[0],), (X[1],))[1])
    assert grads["0.bias"][1] == 0
    assert e.rows[0]["largest change"] == "not measured"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_with_the_same_edits(reentrant: bool) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4), nn.Tanh())
    results = []
    for net, start in ((block, ""), (make_checkpointed(block, reentrant), "block.")):
        x, v = X.clone().requires_grad_(), torch.full((4,), 0.5, requires_grad=True)
        net.zero_grad()
        torch.manual_seed(1)
        with edit(net) as e:
            e.add(f"{start}0", v, calls={1})
            e.scale(f"{start}1", 2.0, at[:, 1])
            e.map(f"{start}3", torch.sin)
            e.scale(f"{start}3", 5.0, to="grad")
            e.set(f"{start}4", 0, at[0], to="input")
            net(x).square().sum().backward()
        assert [row["calls seen"] for row in e.rows] == [1] * 5, "calls are counted as the model makes them"
        results.append([x.grad, v.grad, *(p.grad.clone() for p in block.parameters())])
    for plain, again in zip(*results, strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_of_a_layer_that_checkpoints_call_twice_are_counted(reentrant: bool | None) -> None:
    def forward(self: Net, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.fc(x) if reentrant is None else checkpoint(self.fc, x, use_reentrant=reentrant)
        return x

    net = Net(forward, fc=nn.Linear(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with edit(net) as e:
            e.scale("fc", 3.0, to="grad")
            net(X.clone().requires_grad_()).sum().backward()
    assert (e.rows[0]["calls seen"], e.rows[0]["calls changed"]) == (2, 2)


def test_a_checkpoint_that_cannot_tell_which_call_it_runs_again_is_refused() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Tanh())
    net = Net(lambda self, x: [x := checkpoint(self.block, x, use_reentrant=False) for _ in range(2)][1], block=block)
    e = edit(net)
    e.add("block.0", 1.0, calls={2})
    x = X.clone().requires_grad_()
    with (
        e,
        pytest.raises(
            RuntimeError, match="a checkpoint runs the layer again in backward, and hookscope cannot tell which"
        ),
    ):
        net(x).sum().backward()
    with edit(net) as e:
        e.add("block.0", 1.0)
        net(x).sum().backward()
    edited, x.grad = x.grad, None
    h = x
    for _ in range(2):
        h = block[2](block[1](block[0](h) + 1))
    h.sum().backward()
    assert torch.equal(edited, x.grad)
