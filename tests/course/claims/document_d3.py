"""Demonstrations of the claims of document D3: a notebook on understanding hooks."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from hookscope import compare_backward_hooks
from tests.course.claims import Found, shows


def five_ones() -> tuple[torch.Tensor, torch.Tensor]:
    """Return `a` (five ones) and `b = 2 * a`, after the mean of `b` has gone backward."""
    a = torch.ones(5, requires_grad=True)
    b = 2 * a
    b.retain_grad()
    b.mean().backward()
    return a, b


FIVE = torch.ones(5)


@shows("D3.2")
def only_what_is_recorded_has_a_grad_fn() -> None:
    a = torch.ones(5, requires_grad=True)
    assert (a + a).grad_fn.name() == "AddBackward0"
    assert (FIVE + FIVE).grad_fn is None
    with torch.no_grad():
        assert (a + a).grad_fn is None
    assert (a > 0).grad_fn is None
    # It records not everything then: the three conditions are needed, and not enough.
    for made in (a.detach(), torch.zeros_like(a), torch.rand_like(a), a.new_zeros(5)):
        assert made.grad_fn is None


@shows("D4.2")
def the_gradient_is_freed_and_the_tensor_is_not() -> Found:
    an_intermediate_gradient_is_not_kept()
    a = torch.ones(5, requires_grad=True)
    b = 2 * a
    c = b.exp()
    c.sum().backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = c.grad_fn._saved_result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        freed = b.grad is None
    alive = torch.equal(b, 2 * FIVE)
    return Found(holds=freed, fails=alive)


@shows("D3.8")
def an_intermediate_gradient_is_not_kept() -> Found:
    a = torch.ones(5, requires_grad=True)
    b, k = 2 * a, torch.ones(5)
    seen: list[torch.Tensor] = []
    b.register_hook(seen.append)
    b.mean().backward()
    with pytest.warns(UserWarning, match="a Tensor that is not a leaf Tensor is being accessed"):
        assert b.grad is None
    assert len(seen) == 1
    flags = [(tensor.is_leaf, tensor.requires_grad, tensor.retains_grad) for tensor in (a, b, k, 2 * k)]
    assert flags == [(True, True, False), (False, True, False), (True, False, False), (True, False, False)]
    named = 2 * a
    named.mean().backward(inputs=[named])
    assert named.grad is not None, "another way, which the program of the document does not take"
    kept = five_ones()[1]
    assert kept.retains_grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Found(holds=b.grad is None and kept.grad is not None, fails=b.grad is not None)


@shows("D3.10")
def too_late_after_backward() -> None:
    a, b = five_ones()
    b.grad *= 2
    torch.testing.assert_close(b.grad, 0.4 * FIVE)
    torch.testing.assert_close(a.grad, 0.4 * FIVE)


@shows("D3.14")
def the_weight_is_outputs_by_inputs() -> None:
    layer = nn.Linear(160, 5)
    assert layer.weight.shape == (5, 160)
    both = compare_backward_hooks(layer, torch.ones(7, 160, requires_grad=True))
    assert both.legacy.shapes["grad_input"] == ((5,), (7, 160), (160, 5))
    assert "grad_input[2] is weight.grad.T" in both.explanation


@shows("D3.19")
def a_grad_fn_is_a_node() -> Found:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return 2 * grad

    a = torch.ones(5, requires_grad=True)
    nodes = [(2 * a).grad_fn, Twice.apply(a).grad_fn]
    assert all(isinstance(node, torch.autograd.graph.Node) for node in nodes)
    of_it = [isinstance(node, torch.autograd.Function) for node in nodes]
    return Found(holds=any(of_it), fails=not all(of_it))


@shows("D3.20")
def backward_updates_nothing() -> Found:
    weight = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (3 * weight).backward()
    assert [weight.grad.item(), weight.item()] == [3, 2]
    optimizer.step()
    assert weight.item() == -1
    return Found(holds=weight.grad.item() == 3, fails=True)


@shows("D3.17")
def a_lambda_is_no_module() -> None:
    class WithLambda(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flatten = lambda x: x.view(-1)

    module = WithLambda()
    one, two = torch.ones(1, 10, 4, 4), torch.ones(2, 10, 4, 4)
    assert torch.equal(module.flatten(one), nn.Flatten()(one)[0])
    assert not [*module.children()]
    assert not hasattr(module.flatten, "register_forward_hook")
    assert module.flatten(two).shape == (320,)
    assert nn.Flatten()(two).shape == (2, 160)
