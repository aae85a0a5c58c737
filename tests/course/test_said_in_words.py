"""What a chapter says in words alone, because it needs machines that most have not, is run here as far as it can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lessons.build import reading


def test_what_chapter_16_says_of_dataparallel() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("16_")).read_text()
    assert "**DataParallel**" in text
    layer, seen = nn.Linear(2, 2), list[nn.Module]()

    def keep_on_module(module: Any, args: object, output: torch.Tensor) -> None:
        module.kept = output
        seen.append(module)

    layer.register_forward_hook(keep_on_module)
    copies = []
    for _ in range(2):  # what nn.DataParallel calls for each of its GPUs
        copy = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copy.weight, copy.bias = layer.weight, layer.bias
        copy(torch.ones(1, 2))
        copies.append(copy)
    assert seen == copies, "it fires for each of them"
    assert all(hasattr(copy, "kept") for copy in copies)
    assert not hasattr(layer, "kept"), "and what it keeps on the module is lost with the copy"


def test_what_chapter_17_says_of_a_mean_loss_and_of_two_calls() -> None:
    layer, x = nn.Linear(3, 3).double(), torch.randn(4, 3, dtype=torch.float64)
    came, went = list[torch.Tensor](), list[torch.Tensor]()

    def keep_grad(module: nn.Module, grad_output: Any) -> None:
        went.insert(0, grad_output[0])

    with (
        layer.register_forward_hook(lambda module, args, output: came.append(args[0].detach())),
        layer.register_full_backward_pre_hook(keep_grad),
    ):
        layer(layer(x).tanh()).square().sum(1).mean().backward()
    rows = sum(torch.einsum("no,ni->noi", grad, given) for grad, given in zip(went, came, strict=True))
    assert torch.allclose(rows.sum(0), layer.weight.grad)  # type: ignore[union-attr, arg-type]
    for row, sample in zip(rows, x, strict=True):  # type: ignore[arg-type]
        own = layer(layer(sample).tanh()).square().sum()
        assert torch.allclose(len(x) * row, torch.autograd.grad(own, layer.weight)[0])


def test_what_chapter_17_says_of_nn_rnn() -> None:
    rnn, fired = nn.RNN(3, 4, batch_first=True), list[nn.Module]()
    assert [*rnn.children()] == []
    with rnn.register_full_backward_pre_hook(lambda module, grads: fired.append(module)):
        rnn(torch.randn(2, 5, 3))[0][:, -1].sum().backward()
    assert fired == [rnn]


def test_what_chapter_17_says_of_no_grad_in_a_hook() -> None:
    x = torch.tensor(1.0, requires_grad=True)
    y = x * x

    def without_graph(grad: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return 2 * grad

    with y.register_hook(without_graph):  # type: ignore[no-untyped-call]
        (first,) = torch.autograd.grad(y * y, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (8, 8)


def test_what_chapter_17_says_of_in_place_layers() -> None:
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 2))
    frozen.requires_grad_(False)
    kept = list[torch.Tensor]()

    def asks(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.requires_grad_())
        return output.clone()

    with frozen[0].register_forward_hook(asks):
        score = frozen(torch.rand(1, 1, 4, 4))[0, 0]
    (grad,) = torch.autograd.grad(score, kept)
    assert grad.shape == (1, 2, 2, 2)

    def only_positive(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[torch.Tensor]:
        return (grad_input[0].clamp(min=0),)

    layer, relu, x = nn.Linear(2, 2), nn.ReLU(inplace=True), torch.ones(1, 2)
    with relu.register_full_backward_hook(only_positive):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            relu(layer(x))
        relu.inplace = False
        relu(layer(x)).sum().backward()
