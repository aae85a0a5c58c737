"""What chapter 17 says beyond its cells, run."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hookscope import samples


def ends_of(layer: nn.Module, loss: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes into a layer, and the gradient of what comes out, as the chapter has it."""
    kept: list[torch.Tensor] = []
    with (
        layer.register_forward_hook(lambda module, args, output: kept.append(args[0].detach())),
        layer.register_full_backward_pre_hook(lambda module, grads: kept.append(grads[0])),
    ):
        loss().backward()
    x, grad = kept
    return x, grad


def test_parts_of_a_mean_and_of_two_calls(says):
    says(
        "If the loss is the *mean* over the samples, each part is divided by their number.",
        "If a layer is called twice, add the parts of both calls.",
    )
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
    assert torch.allclose(rows.sum(0), layer.weight.grad)
    for row, sample in zip(rows, x, strict=True):
        own = layer(layer(sample).tanh()).square().sum()
        assert torch.allclose(len(x) * row, torch.autograd.grad(own, layer.weight)[0])


def test_parts_of_sequences_and_convolutions(says):
    says(
        "`F.unfold` makes a row of the pixels under each position; then add up over the positions, as over the steps "
        "of a sequence.",
    )
    linear, steps = nn.Linear(3, 2).double(), torch.randn(4, 7, 3, dtype=torch.float64)
    x, grad = ends_of(linear, lambda: linear(steps).square().sum())
    parts = torch.einsum("nto,nti->noi", grad, x)
    for part, sample in zip(parts, steps, strict=True):
        assert torch.allclose(part, torch.autograd.grad(linear(sample).square().sum(), linear.weight)[0])

    conv, images = nn.Conv2d(2, 3, 3, 2, 1).double(), torch.randn(4, 2, 6, 5, dtype=torch.float64)
    x, grad = ends_of(conv, lambda: conv(images).square().sum())
    rows = nn.functional.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    parts = torch.einsum("nol,nil->noi", grad.flatten(2), rows).view(4, *conv.weight.shape)
    for part, image in zip(parts, images, strict=True):
        assert torch.allclose(part, torch.autograd.grad(conv(image[None]).square().sum(), conv.weight)[0])


def test_parts_with_a_batch_norm(says):
    says(
        "In `train()`, a batch norm computes each output from all samples.",
        "For a layer in front of it, the parts still add up to `weight.grad`, but none of them is the gradient of one "
        "sample's loss.",
    )
    net, batch = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double(), torch.randn(5, 3).double()
    linear: Any = net[0]
    for training in (True, False):
        net.train(training).zero_grad()
        x, grad = ends_of(linear, lambda: net(batch).square().sum())
        parts = torch.einsum("no,ni->noi", grad, x)
        assert torch.allclose(parts.sum(0), linear.weight.grad)
        own = [torch.autograd.grad(net(batch)[n].square().sum(), linear.weight)[0] for n in range(5)]
        right = [torch.allclose(part, wanted) for part, wanted in zip(parts, own, strict=True)]
        assert right == [not training] * 5


def test_parts_without_hooks(says):
    says("Without hooks, `torch.func.vmap(torch.func.grad(loss))` gives the same parts, in one call.")
    layer, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)

    def loss(weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (sample,))
        return output.square().sum()

    given, grad = ends_of(layer, lambda: layer(x).square().sum())
    parts = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(layer.weight.detach(), x)
    assert torch.allclose(parts, torch.einsum("no,ni->noi", grad, given))


class RecurrentCell(nn.Module):
    """The cell of chapter 17: h = w · h + x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, h: Tensor, x: float) -> Tensor:
        return self.w * h + x


def test_what_is_printed_is_a_sum_and_gradients_of_h(says):
    says("17 is the sum over the three steps")
    cell, at_w, at_cell, parts = RecurrentCell(), list[float](), list[float](), list[float]()
    cell.w.register_hook(lambda grad: at_w.append(grad.item()))
    cell.register_full_backward_pre_hook(lambda module, grad_output: at_cell.append(grad_output[0].item()))
    cell.register_forward_hook(
        lambda module, args, output: output.register_hook(lambda grad: parts.append((grad * args[0]).item())) and None
    )
    h = torch.tensor([1.0], requires_grad=True)
    for _ in range(3):
        h = cell(h, 1.0)
    h.backward()
    assert (at_w, at_cell, parts) == ([17], [1, 2, 4], [7, 6, 4])
    assert sum(parts) == at_w[0]
    assert {*at_cell} & {*parts}, "4 is both a gradient of h and a part"


@pytest.mark.parametrize("without_graph", [torch.no_grad()(lambda grad: 2 * grad), lambda grad: (2 * grad).detach()])
def test_no_grad_in_a_hook_is_detach(says, without_graph):
    says(
        "If the hook uses `grad.detach()`, path 2 is missing, and there is no error. `torch.no_grad()` in a hook has "
        "the same effect.",
    )
    x = torch.tensor(1.0, requires_grad=True)
    y = x * x
    with y.register_hook(without_graph):
        (first,) = torch.autograd.grad(y * y, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (8, 8)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def test_hooks_on_modules_in_a_second_pass(says):
    says(
        "A full backward pre-hook on the first module gives 40, as the hook on `y` does.",
        "A full backward hook on the first module gives 48: it stands at `x`, so it doubles both paths again.",
        "Either hook on the second module fires in the first pass only, and gives 24.",
    )
    x, fired = torch.tensor(1.0, requires_grad=True), list[nn.Module]()

    def second_derivative(model: Any) -> float:
        fired.clear()
        (first,) = torch.autograd.grad(model(x), x, create_graph=True)
        assert first.item() == 8
        return torch.autograd.grad(first, x)[0].item()

    def hook(module: nn.Module, *grads: Any) -> tuple[Tensor]:
        fired.append(module)
        return (2 * grads[0][0],)

    for place, kind, second in ((0, "pre_hook", 40), (0, "hook", 48), (1, "pre_hook", 24), (1, "hook", 24)):
        two = nn.Sequential(Square(), Square())
        getattr(two[place], f"register_full_backward_{kind}")(hook)
        assert (second_derivative(two), len(fired)) == (second, 2 - place)
    with x.register_hook(lambda grad: 2 * grad):
        assert second_derivative(lambda x: x**4) == 48


def test_the_upper_rows_count_more_after_60_steps(says):
    says(
        "The parts show you that the first step takes almost nothing from the upper rows.",
        "after 60 steps of Adam, the upper 14 rows make up 9 % to 50 % of the norms, from each of ten "
        "initializations that we tried.",
    )
    images, labels = samples.digits("train")
    rows = images.double()[:, 0].unbind(1)

    def upper_share(cell: nn.RNNCell, head: nn.Linear) -> float:
        """Return the part of the norms that belongs to the first 14 steps, for 64 digits."""
        state, aliases = torch.zeros(64, 32).double(), list[Tensor]()
        for row in rows:
            aliases.append(cell.weight_hh.view_as(cell.weight_hh))
            state = functional_call(cell, {"weight_hh": aliases[-1]}, (row[:64], state))
        grads = torch.autograd.grad(F.cross_entropy(head(state), labels[:64]), aliases)
        norms = torch.stack([grad.norm() for grad in grads])
        return (norms[:14].sum() / norms.sum()).item()

    for seed in range(10):
        torch.manual_seed(seed)
        cell, head = nn.RNNCell(28, 32).double(), nn.Linear(32, 10).double()
        before = upper_share(cell, head)
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.003)
        for batch in torch.randint(0, len(labels), (60, 64)):
            state = torch.zeros(64, 32).double()
            for row in rows:
                state = cell(row[batch], state)
            optimizer.zero_grad()
            F.cross_entropy(head(state), labels[batch]).backward()
            optimizer.step()
        assert before < 0.005, seed
        assert 0.09 < upper_share(cell, head) < 0.5, seed
