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
