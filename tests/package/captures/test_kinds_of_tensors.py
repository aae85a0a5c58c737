"""No kind of tensor is a reason for the model's own pass to fail: what cannot be kept as asked is kept as it is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hookscope import capture, gradient_flow
from hookscope.captures.stats import compute_stats
from tests.shared.awkward_models import Do
from tests.shared.table_checks import check_each


def nested(layout: torch.layout) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def csr() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # beta, says torch
        return torch.eye(3).to_sparse_csr()


KINDS = {
    "no samples": lambda: torch.ones(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": csr,
    "mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
    "jagged": lambda: nested(torch.jagged),
    "nested": lambda: nested(torch.strided),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.5, 0, torch.qint8),
    "float8": lambda: torch.ones(3, 2).to(torch.float8_e4m3fn),
    "meta": lambda: torch.ones(3, 2, device="meta"),
    "complex": lambda: torch.ones(3, 2, dtype=torch.complex64),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"copy": False},
    {"stats": True},
    {"inputs": True},
    {"samples": 0},
    {"dtype": torch.float16},
    {"samples": 0, "dtype": torch.float16, "max_bytes": 10_000},
]


@pytest.mark.filterwarnings("ignore")  # that something could not be done as asked is said as a warning, too
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_passes_with_every_option(kind: str) -> None:
    check_each(range(len(OPTIONS)), lambda number: check_kind(kind, OPTIONS[number]))


def check_kind(kind: str, options: dict[str, Any]) -> None:
    made = KINDS[kind]()
    net = nn.Sequential(Do(lambda x: made), Do(lambda x: x))
    seen = capture(net, **options)
    for _ in range(2):  # the second time memory is used again
        with seen:
            assert net(torch.ones(1)) is made
    assert len(seen.calls) == 2
    assert kind.split()[0] in ("no",) or "Sequential: 2 calls" in repr(seen)
    if not options.get("stats") and not {"samples", "dtype"} & options.keys():
        kept = seen["0"].output
        assert type(kept) is type(made)
        assert (kept.dtype, kept.layout, kept.is_nested) == (made.dtype, made.layout, made.is_nested)
    gradient_flow(seen)


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(3, 2)


@pytest.mark.filterwarnings("error")  # that nothing is known of them is no failure
@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize("make", [KINDS["meta"], fake], ids=["meta", "fake"])
def test_nothing_is_known_of_a_tensor_without_values(make: Callable[[], Tensor], stats: bool) -> None:
    made = make()
    net = nn.Sequential(Do(lambda x: made), Do(lambda x: (made, torch.tensor([0.0, 2.0]))))
    with capture(net, "0", "1", stats=stats) as seen:
        net(torch.ones(1))
    found = seen["0"].stats if stats else compute_stats(seen["0"].output)
    assert found[:2] == ((3, 2), torch.float32)
    assert len(found) == 10
    assert all(math.isnan(number) for number in found[2:])
    flow = gradient_flow(seen)
    first, second = flow.rows
    assert first == {"call": "0", "type": "Do", "mean |x|": None, "max |x|": None, "% zeros": None}
    assert (second["mean |x|"], second["% zeros"]) == (1, 50), "of the tensor that has values"
    assert repr(flow).splitlines()[-2].split() == ["0", "Do"]


def test_memory_that_is_expanded_is_not_written_to() -> None:
    net = nn.Sequential(Do(lambda x: torch.arange(3.0).expand(2, 3)), Do(lambda x: x.t()))
    seen = capture(net)
    for _ in range(3):
        with seen:
            net(torch.ones(1))
        assert seen["0"].output.tolist() == [[0, 1, 2], [0, 1, 2]]
        assert seen["1"].output.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_vmap_in_inference_mode() -> None:
    net = nn.Sequential(nn.ReLU())
    with torch.inference_mode(), pytest.warns(UserWarning, match="torch.func"), capture(net) as seen:
        assert torch.vmap(net)(torch.ones(3, 2)).tolist() == [[1, 1]] * 3
    assert seen.order == ["0"]


class Ends(torch.autograd.Function):
    """Gives no gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


def test_a_backward_that_gives_none_goes_on() -> None:
    net = nn.Sequential(nn.Linear(2, 2), Do(Ends.apply), nn.ReLU())
    with capture(net, gradients=True) as seen:
        net(torch.ones(1, 2)).sum().backward()
    assert seen["1"].calls[0].slots()[0].grads
    assert not seen["0"].calls[0].slots()[0].grads
    with capture(net, gradients=True, stats=True) as seen:
        net(torch.ones(1, 2)).sum().backward()


class Sparse(torch.autograd.Function):
    """Gives a sparse gradient back, as an embedding may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.to_sparse()


def test_a_gradient_that_cannot_be_kept_as_asked_stops_no_backward() -> None:
    net, x = nn.Sequential(Do(lambda x: x * 1), Do(Sparse.apply)), torch.ones(3, 2, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="all of it is kept unchanged"),
        capture(net, "0", gradients=True, samples=0) as seen,
    ):
        net(x).sum().backward()
    assert seen["0"].grad.to_dense().tolist() == [[1, 1]] * 3
    assert x.grad is not None
