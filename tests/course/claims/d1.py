"""Demonstrations of the claims of document D1: what a hook is, with equality checks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.course.claims import Found, shows
from tests.course.claims.parts import THREE, Double, Product, doubling


@shows("D1.1")
def runs_before_and_after() -> None:
    seen = []
    double = Double()
    with (
        double.register_forward_pre_hook(lambda module, args: seen.append(("before", args[0].item()))),
        double.register_forward_hook(lambda module, args, output: seen.append(("after", output.item()))),
    ):
        double(THREE)
    assert seen == [("before", 3), ("after", 6)]


@shows("D1.2")
def a_sketch_that_fails_if_taken_as_printed() -> Found:
    double, seen = Double(), []
    with (
        double.register_forward_hook(lambda: None),
        pytest.raises(TypeError, match="takes 0 positional arguments but 3 were given") as caught,
    ):
        double(THREE)
    # The same steps, with the parameters that all later hooks of the document have room for.
    with double.register_forward_hook(lambda *given: seen.append(len(given))):
        double(THREE)
    return Found(holds=seen == [3], fails=caught.type is TypeError, hidden=True)


@shows("D1.3")
def collects_what_is_in_grad() -> Found:
    def collected(weight: nn.Parameter) -> list[torch.Tensor]:
        answer: list[torch.Tensor] = []
        weight.register_hook(answer.extend)
        (2.0 * 3.0 * weight).sum().backward()
        assert torch.equal(torch.stack(answer), weight.grad), "it does collect them"
        return answer

    one, two, row = (nn.Parameter(torch.tensor(values)) for values in ([5.0], [5.0, 5.0], [[5.0, 5.0]]))
    as_printed = collected(one) == [one.grad]
    assert collected(two) != [two.grad], "a list of two against a list of one"
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        assert collected(row) == [row.grad]
    # In a second pass a tensor hook gets that pass, .grad holds the total.
    layer, passes, totals = doubling(), [], []
    layer.weight.register_hook(lambda grad: passes.append(grad.item()))
    layer.weight.register_post_accumulate_grad_hook(lambda weight: totals.append(weight.grad.item()))
    for _ in range(2):
        layer(torch.tensor([[2.0]])).sum().backward()
    assert [passes, totals] == [[2, 2], [2, 4]]
    return Found(holds=as_printed, fails=not as_printed)


@shows("D1.4")
def in_place_needs_three_parameters() -> None:
    class Add(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    def two(module: nn.Module, output: torch.Tensor) -> None:
        output += 5

    def three(module: nn.Module, args: object, output: torch.Tensor) -> None:
        output += 5

    add = Add()
    with add.register_forward_hook(two), pytest.raises(TypeError, match="takes 2 positional arguments but 3 were"):
        add(THREE, THREE)
    with add.register_forward_hook(three):
        assert add(THREE, THREE).item() == 11
    # The price: a module may return its own input, and backward may need the output as it was.
    mine, identity, relu = THREE.clone(), nn.Identity(), nn.ReLU()
    identity.register_forward_hook(three)
    identity(mine)
    assert mine.item() == 8
    relu.register_forward_hook(three)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        relu(THREE.clone().requires_grad_()).sum().backward()


@shows("D1.5")
def grad_input_and_grad_output_are_the_grads() -> None:
    answer: list[torch.Tensor] = []
    product, x1, x2 = Product(), torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    product.register_full_backward_hook(lambda module, gi, go: answer.extend(gi + go))
    output = product(x1, x2)
    output.retain_grad()
    output.backward()
    assert [grad.item() for grad in answer] == [15, 10, 1]
    assert all(map(torch.equal, answer, (x1.grad, x2.grad, output.grad)))
    assert product.W.grad.item() == 6, "the parameter is not among them"
