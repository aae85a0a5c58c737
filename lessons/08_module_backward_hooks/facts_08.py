"""What chapter 08 says beyond its cells, run."""

from typing import Any
from warnings import catch_warnings

import pytest
import torch
from torch import Tensor, nn


def test_an_input_without_grad_gets_zeros_and_a_number_none(says):
    says(
        "If `x1` requires grad, and `x2` does not, `grad_input` is `(15, 0)`.",
        "If an argument is not a tensor, its entry is `None`.",
    )

    class _ScaledProduct(nn.Module):
        def forward(self, x1: Any, x2: Any) -> torch.Tensor:
            return 5 * x1 * x2

    product, got = _ScaledProduct(), list[Any]()
    product.register_full_backward_hook(lambda module, given, arrives: got.append(given))
    x1 = torch.tensor([2.0], requires_grad=True)
    product(x1, torch.tensor([3.0])).backward()
    product(x1, 3.0).backward()
    assert got == [(torch.tensor([15.0]), torch.tensor([0.0])), (torch.tensor([15.0]), None)]


def test_a_weight_penalty_leads_around_the_gate(says):
    says(
        "A loss can also use a weight of the module directly, as a weight penalty does.",
        "`stop_output` does not stop the gradient of that loss.",
    )
    layer = nn.Linear(2, 2)
    layer.register_full_backward_pre_hook(lambda module, grads: (0 * grads[0],))
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()
    (layer(torch.ones(1, 2)).sum() + layer.weight.square().sum()).backward()
    assert layer.weight.grad.any()


def test_the_gate_is_open_beside_a_residual_block_and_for_momentum(says):
    says(
        "In `h + block(h)`, the gradient also goes back through the first `h`.",
        "Momentum and weight decay still move a weight whose gradient is zero.",
    )
    before, block = nn.Linear(2, 2), nn.Linear(2, 2)
    block.register_full_backward_hook(lambda module, grads, _: (0 * grads[0],))
    block.register_full_backward_pre_hook(lambda module, grads: (0 * grads[0],))
    (h := before(torch.ones(1, 2))).add(block(h)).sum().backward()
    assert before.weight.grad is not None
    assert (before.weight.grad == 1).all()
    for option, moves in (({}, False), ({"momentum": 0.9}, True), ({"weight_decay": 0.1}, True)):
        weight = torch.ones(1, requires_grad=True)
        step = torch.optim.SGD([weight], lr=0.1, **option).step
        weight.grad = torch.ones(1)
        step()
        after, weight.grad = weight.item(), torch.zeros(1)
        step()
        assert (weight.item() != after) == moves


def test_a_single_gradient_without_a_tuple_is_an_error(says):
    says("If you return a tensor, torch treats each row of the tensor as one gradient, and raises an error.")

    def pre(module: nn.Module, grad_output: Any) -> Any:
        return 2 * grad_output[0]

    def full(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return 2 * grad_input[0]

    for shape in ((), (1,), (3,), (1, 1), (1, 3), (3, 1)):
        relu, x = nn.ReLU(), torch.ones(shape, requires_grad=True)
        for register, hook in (
            (relu.register_full_backward_pre_hook, pre),
            (relu.register_full_backward_hook, full),
        ):
            with register(hook), pytest.raises((RuntimeError, TypeError)):
                relu(x).sum().backward()


def nodes_behind(output: Tensor) -> list[Any]:
    found, todo = list[Any](), [output.grad_fn]
    while todo:
        node = todo.pop(0)
        if node is not None and node not in found:
            found.append(node)
            todo += [before for before, _ in node.next_functions]
    return [node for node in found if node.name() == "BackwardHookFunctionBackward"]


def test_the_pre_hook_is_called_behind_the_outputs_and_the_hook_before_the_inputs(says):
    says(
        "So torch adds two nodes of its own.",
        "Node 1, behind the outputs, collects `grad_output`.",
        "Node 2, before the inputs, calls your hook with it.",
        "Node 1 calls the full backward pre-hooks.",
    )
    for kind in ("full_backward_hook", "full_backward_pre_hook"):
        layer, order = nn.Linear(1, 1), list[str]()
        getattr(layer, f"register_{kind}")(lambda *_, order=order: order.append("hook"))
        output = layer(torch.ones(1, 1, requires_grad=True))
        behind, before = nodes_behind(output)
        assert behind is output.grad_fn
        before.register_prehook(lambda grads, order=order: order.append("before the inputs"))
        output.sum().backward()
        full = kind == "full_backward_hook"
        assert order == (["before the inputs", "hook"] if full else ["hook", "before the inputs"])
    plain = nn.Linear(1, 1)
    plain.register_full_backward_hook(lambda *_: None)
    assert len(nodes_behind(plain(torch.ones(1, 1)))) == 1, "no input requires grad"


def test_where_the_hook_does_not_fire_the_pre_hook_does_not_either(says):
    says("In the three cases without a hook call, a pre-hook does not fire, either.")

    class Returns(nn.Module):
        def __init__(self, form: Any) -> None:
            super().__init__()
            self.form = form

        def forward(self, x: torch.Tensor) -> Any:
            return self.form(2 * x)

    fired = list[nn.Module]()
    for module, pick, fires in (
        (Returns(lambda y: y), lambda result: result, True),
        (Returns(lambda y: (y, y + 1)), lambda result: result[0], True),
        (Returns(lambda y: [y, y + 1]), lambda result: result[0], False),
        (Returns(lambda y: {"y": y}), lambda result: result["y"], False),
        (nn.LSTM(1, 1), lambda result: result[0], True),
        (nn.LSTM(1, 1), lambda result: result[1][0], False),
    ):
        fired.clear()
        module.register_full_backward_pre_hook(lambda module, grads: fired.append(module))
        with catch_warnings(action="ignore"):
            pick(module(torch.ones(2, 1, requires_grad=True))).sum().backward()
        assert bool(fired) == fires


def test_the_output_of_node_1_is_a_view(says):
    says(
        "`RuntimeError: Output 0 of BackwardHookFunction is a view and is being modified inplace`.",
        "A tensor hook adds no node, so a tensor hook is the workaround here, too.",
        "The workaround is a forward hook that puts a tensor hook on `h_n`",
    )
    layer, x, relu = nn.Linear(1, 1), torch.ones(1, 1), nn.ReLU(inplace=True)
    with layer.register_full_backward_hook(lambda *_: None):
        for write in (relu, lambda out: out.add_(1)):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                write(layer(x))
    seen = list[torch.Tensor]()
    with layer.register_forward_hook(lambda module, args, output: output.register_hook(seen.append) and None):
        relu(layer(x)).sum().backward()
    lstm = nn.LSTM(1, 1, batch_first=True)
    with lstm.register_forward_hook(lambda module, args, output: output[1][0].register_hook(seen.append) and None):
        lstm(torch.ones(1, 2, 1))[1][0].sum().backward()
    assert len(seen) == 2


def test_the_gradient_of_the_weight_comes_too_late_for_a_hook_of_the_layer(says):
    says("So do not read `weight.grad` in a hook of the layer, because it can still be `None`.")

    def seen_in(calls: int, plain: bool) -> list[bool]:
        layer, there = nn.Linear(1, 1, bias=False), list[bool]()
        layer.register_full_backward_hook(lambda module, *_: there.append(module.weight.grad is not None))
        y = torch.ones(1, 1, requires_grad=not plain)
        with catch_warnings(action="ignore"):
            for _ in range(calls):
                y = layer(y)
            y.backward()
        return there

    assert seen_in(1, plain=False) == [True]
    assert seen_in(2, plain=False) == [False, True]
    assert seen_in(1, plain=True) == [False]


def test_the_hook_waits_only_for_inputs_by_position(says):
    says("With `module(x=x)` or `module([x])`, the hook does not wait.")

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, x: Any) -> torch.Tensor:
            return self.inner(x[0] if isinstance(x, list) else x)

    def order(call: Any) -> list[str]:
        module, fired = Named(), list[str]()
        module.register_full_backward_hook(lambda *_: fired.append("outer"))
        module.inner.register_full_backward_hook(lambda *_: fired.append("inner"))
        with catch_warnings(action="ignore"):
            call(module, torch.ones(1, 1, requires_grad=True)).sum().backward()
        return fired

    assert order(lambda module, x: module(x)) == ["inner", "outer"]
    assert order(lambda module, x: module(x=x)) == ["outer", "inner"]
    assert order(lambda module, x: module([x])) == ["outer", "inner"]


def test_the_hook_waits_for_a_gradient_that_nobody_asks_for(says):
    says("If the input requires grad, the hook of the root waits for this gradient, so the hook does not fire.")
    nest, fired = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1)), list[str]()
    nest.register_full_backward_hook(lambda *_: fired.append("root"))
    x = torch.ones(1, 1, requires_grad=True)
    torch.autograd.grad(nest(x).sum(), [nest[1].weight])
    assert fired == [], "it waits for what never comes"
    nest(x).sum().backward()
    assert fired == ["root"]


def test_a_hook_without_a_gradient_to_replace_returns_none(says):
    says("If the hook then returns one, torch raises an error.")
    layer = nn.Linear(1, 1)
    with (
        layer.register_full_backward_hook(lambda *_: (torch.zeros(1, 1),)),
        catch_warnings(action="ignore"),
        pytest.raises(RuntimeError, match="should always return None"),
    ):
        layer(torch.ones(1, 1)).sum().backward()


def test_a_layer_called_twice_fires_twice_and_its_weight_once(says):
    says(
        "the hook of the layer fires twice: first for the second call, then for the first call.",
        "torch adds up the gradients of both calls, and calls a tensor hook on the weight once.",
    )
    layer, log = nn.Linear(1, 1, bias=False), list[Any]()
    nn.init.constant_(layer.weight, 2.0)
    layer.register_full_backward_hook(lambda module, given, arrives: log.append(("layer", arrives[0].item())))
    layer.weight.register_hook(lambda grad: log.append(("weight", grad.item())))
    layer(layer(torch.tensor([[3.0]], requires_grad=True))).backward()
    assert [value for kind, value in log if kind == "layer"] == [1, 2]
    assert [value for kind, value in log if kind == "weight"] == [12]


def test_torch_warns_of_a_hook_without_inputs_that_require_grad(says):
    says('torch warns here that a "full backward hook is firing" although "no inputs require gradients".')
    layer = nn.Linear(1, 1)
    layer.register_full_backward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="[Ff]ull backward hook is firing .* no inputs require gradients"):
        layer(torch.ones(1, 1)).sum().backward()


def test_adam_moves_a_weight_whose_gradient_is_zero_and_skips_none(says):
    says(
        "Adam also uses the gradients of earlier steps, so it moves a weight whose gradient is 0.",
        "It skips a parameter whose `.grad` is `None`.",
    )
    for grad, moves in ((torch.zeros(1), True), (None, False)):
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.Adam([weight])
        weight.grad = torch.ones(1)
        optimizer.step()
        before, weight.grad = weight.item(), grad
        optimizer.step()
        assert (weight.item() != before) == moves
