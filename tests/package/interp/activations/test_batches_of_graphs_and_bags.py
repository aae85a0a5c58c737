"""A batch whose rows are not samples is refused with a word about what to write, and what is written works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import collect
from tests.shared.awkward_models import Net


def sums_of_nodes() -> nn.Module:
    """Build a model that takes for each graph the sum over its nodes."""

    def run(self: nn.Module, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        near = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        return self.linear(torch.zeros(int(graph.max()) + 1, 4).index_add_(0, graph, near))

    torch.manual_seed(0)
    return Net(run, linear=nn.Linear(4, 3)).eval()


def means_of_bags() -> nn.Module:
    def run(self: nn.Module, tokens: Tensor, offsets: Tensor) -> Tensor:
        return self.linear(self.bag(tokens, offsets))

    torch.manual_seed(0)
    return Net(run, bag=nn.EmbeddingBag(50, 4), linear=nn.Linear(4, 3)).eval()


X, EDGES = torch.randn(6, 4), torch.tensor([[0, 1, 4], [1, 2, 5]])
GRAPH = torch.tensor([0, 0, 0, 1, 1, 1])
TOKENS, OFFSETS = torch.tensor([1, 2, 3, 4, 5, 6, 7]), torch.tensor([0, 3, 5])
BATCHES: dict[str, tuple[Any, Any, str]] = {
    "an object": (
        SimpleNamespace(x=X, edges=EDGES, graph=GRAPH),
        lambda model, batch: model(batch.x, batch.edges, batch.graph),
        r"assumed 6 samples.* rows of batch\.x \(6, 4\), batch\.graph \(6,\), and passed batch\.edges \(2, 3\) whole",
    ),
    "a dict": (
        {"x": X, "edges": EDGES, "graph": GRAPH},
        lambda model, batch: model(**batch),
        r"rows of batch\['x'\] \(6, 4\), batch\['graph'\] \(6,\), and passed batch\['edges'\] \(2, 3\) whole",
    ),
    "a tuple": (
        (TOKENS, OFFSETS),
        lambda model, batch: model(*batch),
        r"assumed 7 samples.* rows of batch\[0\] \(7,\), and passed batch\[1\] \(3,\) whole",
    ),
    "deeper": (
        [SimpleNamespace(held=[TOKENS, OFFSETS])],
        lambda model, batch: model(*batch[0].held),
        r"rows of batch\[0\]\.held\[0\] \(7,\), and passed batch\[0\]\.held\[1\] \(3,\) whole",
    ),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_rows_that_are_not_samples(kind: str, tmp_path: Path) -> None:
    batch, run, said = BATCHES[kind]
    model = sums_of_nodes() if "x" in said else means_of_bags()
    with pytest.raises(
        ValueError, match=f"the model runs on the first batch, but not on its first [23] samples .*{said}"
    ) as caught:
        collect(model, [batch], "linear", to=tmp_path / "a", run=run, progress=False)
    assert "run=lambda model, numbers: model(batch_of(numbers))" in str(caught.value)
    assert caught.value.__cause__ is not None  # torch's own


def test_a_batch_that_does_not_run_at_all_keeps_its_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="input has to be 1D or 2D Tensor") as caught:
        collect(means_of_bags(), [(TOKENS[None, None], OFFSETS)], to=tmp_path / "a", run=lambda m, b: m(*b))
    assert "samples" in caught.value.__notes__[0]


def test_rows_that_run_and_are_not_samples(tmp_path: Path) -> None:
    batch = SimpleNamespace(x=X, edges=torch.tensor([[0], [1]]), graph=torch.tensor([1, 0, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"no sample axis.* let the loader yield sample numbers"):
        collect(
            sums_of_nodes(), [batch], "linear", to=tmp_path / "a", progress=False,
            run=lambda model, batch: model(batch.x, batch.edges, batch.graph),
        )  # fmt: skip


def test_numbers_of_samples_as_the_message_says(tmp_path: Path) -> None:
    sizes = [3, 2, 4, 1, 5, 3, 2]
    graphs = [torch.randn(size, 4) for size in sizes]

    def batch_of(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = [graphs[number] for number in numbers]
        graph = torch.arange(len(chosen)).repeat_interleave(torch.tensor([len(each) for each in chosen]))
        return torch.cat(chosen), torch.arange(len(graph)).expand(2, -1), graph

    model = sums_of_nodes()
    stored = collect(
        model, torch.arange(7).split(3), "linear", to=tmp_path / "a", progress=False,
        run=lambda model, numbers: model(*batch_of(numbers)),
    )  # fmt: skip
    with torch.no_grad():
        assert torch.allclose(stored["linear"][:], model(*batch_of(torch.arange(7))), atol=1e-6)
    bags, start = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5, 6])], torch.tensor([0, 2, 3])
    words = means_of_bags()
    found = collect(
        words, torch.arange(3).split(2), "bag", to=tmp_path / "b", progress=False,
        run=lambda model, numbers: model(
            torch.cat([bags[n] for n in numbers]),
            torch.tensor([0, *[len(bags[n]) for n in numbers][:-1]]).cumsum(0),
        ),
    )  # fmt: skip
    with torch.no_grad():
        assert torch.allclose(found["bag"][:], words.bag(torch.cat(bags), start))
