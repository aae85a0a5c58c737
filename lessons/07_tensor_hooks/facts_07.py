"""What chapter 07 says beyond its cells, run."""

from typing import Any
from warnings import catch_warnings

import pytest
import torch


def test_detect_anomaly_stops_at_nan_and_not_before(says):
    says("stops at the first step of the backward pass that returns a NaN")

    def run(make: Any) -> None:
        with torch.autograd.set_detect_anomaly(True), catch_warnings(action="ignore"):
            make(torch.tensor([-1.0], requires_grad=True)).sum().backward()

    run(torch.log)  # a NaN in the forward pass
    run(lambda x: (x + 1).sqrt())  # inf
    with pytest.raises(RuntimeError, match="returned nan values"):
        run(torch.sqrt)


def test_torch_warns_of_grad_where_it_was_not_kept(says):
    says("A tensor that does not require grad has `None` as well, but there torch does not warn.")
    x = torch.ones(1, requires_grad=True)
    with pytest.warns(UserWarning, match="not a leaf"):
        assert (2 * x).grad is None
    with catch_warnings(action="error"):
        assert torch.ones(1).grad is None


def test_what_a_hook_writes_into_its_gradient_flows_on(says):
    says("If it returns `None`, torch goes on with the gradient that it gave to the hook.")
    a = torch.tensor(2.0, requires_grad=True)
    d = 3 * a
    d.register_hook(lambda grad: grad.mul_(10) and None)
    (4 * d).backward()
    assert a.grad == 120


def test_a_hook_from_before_an_edit_in_place_gets_the_gradient_of_the_old_tensor(says):
    says("so an earlier hook gets the gradient of the old `y`, ten times that of the new one.")
    x, got = torch.tensor([3.0], requires_grad=True), list[float]()
    y = 2 * x
    y.register_hook(lambda grad: got.append(grad.item()))
    y.mul_(10)
    y.register_hook(lambda grad: got.append(grad.item()))
    (5 * y).sum().backward()
    assert got == [5, 50]


def test_the_repaired_loss_does_not_revive_a_constant_map(says):
    says(
        "The slope of the square root is 500, so a gradient of about −999 arrives at `variance`.",
        "But the loss cannot revive this map",
    )
    x = torch.full((8,), 5.0, requires_grad=True)
    variance = (x - x.mean()).square().mean()
    variance.retain_grad()
    ((variance + 1e-6).sqrt() - 1).square().backward()
    assert variance.grad is not None
    assert x.grad is not None
    assert round(variance.grad.item()) == -999
    assert not x.grad.any()
