"""Less than everything is kept on request: statistics, a sample, another dtype, a bound; and more where it must be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import capture, census
from hookscope.captures.call import NotCapturedError
from tests.shared.awkward_models import Do
from tests.shared.capture_runs import make_small_net


def test_stats_in_place_of_tensors():
    net = make_small_net()
    with capture(net, gradients=True, inputs=True, stats=True) as seen:
        net(torch.tensor([[1.0, 3.0], [0.0, -1.0]])).sum().backward()
    stats = seen["0"].stats  # 8 and -2
    assert (stats.shape, stats.dtype) == ((2, 1), torch.float32)
    assert (stats.mean, stats.std, stats.mean_abs, stats.min, stats.max) == (3, 5, 5, -2, 8)
    assert (stats.zeros, stats.nan, stats.inf) == (0, 0, 0)
    assert seen["1"].stats.zeros == 1
    assert seen["1"].args[0].min == -2
    assert seen["0"].grad_stats.mean == 1.5  # 3 and, where the ReLU is shut, 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 3.0]), (2, 1, 2, 1, 3, 0, 1, 2)),
        (torch.tensor([float("nan")]), (*[None] * 5, 0, 1, 0)),
        (torch.zeros(0, 3), (*[None] * 5, 0, 0, 0)),
        (torch.tensor([60000.0, 60000.0], dtype=torch.float16), (60000, 0, 60000, 60000, 60000, 0, 0, 0)),
        (torch.tensor([True, False]), (0.5, 0.5, 0.5, 0, 1, 1, 0, 0)),
        (torch.tensor([2**40, 2**40 + 2]), (2**40 + 1, 1, 2**40 + 1, 2**40, 2**40 + 2, 0, 0, 0)),
        (torch.tensor([3 + 4j, 0j]), (2.5, 2.5, 2.5, 0, 5, 1, 0, 0)),
        (torch.ones(3, 2).to(torch.float8_e4m3fn), (1, 0, 1, 1, 1, 0, 0, 0)),
        (torch.quantize_per_tensor(torch.ones(2, 2), 0.5, 0, torch.qint8), (1, 0, 1, 1, 1, 0, 0, 0)),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), (1, 0, 1, 1, 1, 0, 0, 0)),
        (torch.eye(2).to_sparse(), (0.5, 0.5, 0.5, 0, 1, 2, 0, 0)),
        (torch.tensor([[1.0, 2.0, 3.0]])[:, ::2].expand(4, 2), (2, 1, 2, 1, 3, 0, 0, 0)),
    ],
)
def test_stats_are_right_for_every_kind_of_tensor(values, expected):
    net = Do(lambda: values)
    with capture(net, stats=True) as seen:
        net()
    got = seen[""].stats[2:]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours != ours if theirs is None else ours == theirs  # nan is not equal to itself


def test_grad_stats_of_two_passes_are_refused():
    net = make_small_net()
    with capture(net, gradients=True, stats=True) as seen:
        loss = net(torch.tensor([[1.0, 3.0]])).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    with pytest.raises(NotCapturedError, match="2 backward passes"):
        _ = seen["0"].grad_stats


def test_sample_dtype_and_device_bound_what_is_kept():
    net = nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True))
    x = torch.arange(12.0).reshape(3, 4)
    with capture(net, samples=1) as seen:
        net(x.clone())
    assert seen["0"].output.tolist() == [[4, 5, 6, 7]]
    assert seen["0"].output.untyped_storage().nbytes() == 16, "the rest of the batch is not kept"
    with capture(net, samples=slice(1, 3), dtype=torch.float16) as seen:
        net(-x)
    assert seen["0"].output.dtype == torch.float16
    assert seen["0"].output.tolist() == (-x[1:3]).tolist()
    said = pytest.warns(UserWarning, match=r"samples=7 selects nothing from a tensor of shape \(3, 4\)")
    with said, capture(net, samples=7) as seen:
        net(x)
    assert seen["0"].output.shape == (0, 4)
    assert len(census(net)) == 0
    with capture(Do(lambda x: (x, torch.tensor(3), 5)), samples=0, dtype=torch.float64) as seen:
        seen._model(x)
    first, scalar, number = seen[""].output
    assert (first.dtype, scalar.dtype, number) == (torch.float64, torch.int64, 5)
