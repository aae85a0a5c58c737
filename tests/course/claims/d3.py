"""Demonstrations of the claims of document D3: a notebook on understanding hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hookscope import compare_backward_hooks, graph
from hookscope_course.history.records import history
from tests.course.claims import Found, d0, shows
from tests.course.claims.parts import THREE, doubling


def five_ones(*hooks: Callable[[torch.Tensor], object]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `a` (five ones) and `b = 2 * a`, with these hooks on `b`, after the mean of `b` has gone backward."""
    a = torch.ones(5, requires_grad=True)
    b = 2 * a
    b.retain_grad()
    for hook in hooks:
        b.register_hook(hook)
    b.mean().backward()
    return a, b


FIVE = torch.ones(5)


class Sum(nn.Module):
    """Three arguments, two additions."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y + z


class LinearUpToTwo(nn.Linear):
    """A Linear layer in the steps that torch 1.0 to 2.0 took for 1-D input (recorded there)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unsqueeze(0) @ self.weight.T).squeeze(0) + self.bias


def own_nodes(output: torch.Tensor) -> list[str]:
    return [node.name for node in graph(output).nodes if not node.leaf]


def grad_inputs(kind: str, module: nn.Module, *inputs: torch.Tensor) -> list[object]:
    """The grad_input that a backward hook gets: "legacy" or "full"."""
    seen: list[tuple[torch.Tensor | None, ...]] = []
    register = module.register_backward_hook if kind == "legacy" else module.register_full_backward_hook
    with register(lambda module, grad_input, grad_output: seen.append(grad_input)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module(*inputs).sum().backward()
    return [None if grad is None else (*grad.shape,) for grad in seen[0]]


def needing(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


@shows("D3.1")
def a_forward_hook_fires_without_any_autograd_node() -> None:
    fired: list[object] = []
    for module, args in ((Sum(), (THREE, THREE, THREE)), (nn.Linear(1, 1), (THREE,))):
        with torch.no_grad(), module.register_forward_hook(lambda module, args, output: fired.append(output.grad_fn)):
            module(*args)
    assert fired == [None, None], "once per call, however many operations"


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


@shows("D3.3")
def a_linear_layer_is_one_addmm_unless_its_input_is_strided() -> Found:
    layer = nn.Linear(160, 5)
    assert own_nodes(layer(torch.ones(7, 160))) == ["AddmmBackward0", "TBackward0"]
    assert own_nodes(layer(torch.ones(160))) == ["UnsafeViewBackward0", "AddmmBackward0", "TBackward0"]
    needs = own_nodes(layer(needing(160)))
    assert needs == ["UnsafeViewBackward0", "AddmmBackward0", "ViewBackward0", "TBackward0"]
    nodes = {
        "2-D": own_nodes(layer(torch.ones(7, 160))),
        "3-D": own_nodes(layer(torch.ones(2, 7, 160))),
        "2-D, transposed": own_nodes(layer(torch.ones(160, 7).T)),
        "3-D, transposed": own_nodes(layer(torch.ones(2, 160, 7).transpose(1, 2))),
        "1-D, strided": own_nodes(layer(torch.ones(320)[::2])),
    }
    two = {what for what, names in nodes.items() if {"MmBackward0", "AddBackward0"} <= {*names}}
    one = {what for what, names in nodes.items() if "AddmmBackward0" in names}
    assert two == {"3-D, transposed", "1-D, strided"}
    assert grad_inputs("legacy", nn.Linear(160, 5), torch.ones(320, requires_grad=True)[::2]) == [(5,), (5,)]
    return Found(holds=bool(two), fails=bool(one))


@shows("D3.4")
def only_a_legacy_hook_catches_a_step() -> Found:
    blocks = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    assert grad_inputs("legacy", blocks, needing(3, 4)) == [(3, 5)]
    assert grad_inputs("full", nn.Sequential(nn.Linear(4, 5), nn.ReLU()), needing(3, 4)) == [(3, 4)]
    # The hook is on the node of the output: a hook put there by hand gets the very same tensors.
    layer, seen = nn.Linear(160, 5), []
    layer.register_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
    with pytest.warns(FutureWarning, match="This hook will be missing some grad_input"):
        output = layer(torch.ones(160))
    output.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.append(grad_inputs))
    output.sum().backward()
    assert [grad.data_ptr() for (grad,) in seen] == [seen[0][0].data_ptr()] * 2
    # "Not the whole layer's input and output", says the document; a forward hook is given just these.
    ends: list[torch.Tensor] = []
    x = needing(3, 4)
    with blocks.register_forward_hook(lambda module, args, output: ends.extend((*args, output))):
        result = blocks(x)
    return Found(holds=True, fails=ends[0] is x and ends[1] is result)


@shows("D3.5")
def args_are_the_positional_arguments() -> None:
    outputs: list[torch.Tensor] = []
    summed = Sum()
    summed.register_forward_hook(lambda module, args, output: outputs.append(output))
    assert summed(THREE, THREE, THREE) is outputs[0], "what forward returned, after both additions"
    assert outputs[0].item() == 9
    lengths = []
    for module, args in ((Sum(), (THREE, THREE, THREE)), (nn.Linear(1, 1), (THREE,)), (nn.Identity(), (THREE,))):
        with module.register_forward_hook(lambda module, args, output: lengths.append((type(args), len(args)))):
            module(*args)
    assert lengths == [(tuple, 3), (tuple, 1), (tuple, 1)]


@shows("D3.6")
def the_hooks_of_a_tensor_come_going_back() -> None:
    registers = [name for name in dir(torch.Tensor) if name.startswith("register")]
    assert registers == ["register_hook", "register_post_accumulate_grad_hook"]
    seen: list[str] = []
    x = torch.tensor(3.0, requires_grad=True)
    x.register_hook(lambda grad: seen.append("hook"))
    x.register_post_accumulate_grad_hook(lambda x: seen.append("post-accumulate"))
    y = 2 * x
    assert seen == []
    y.backward()
    assert seen == ["hook", "post-accumulate"]
    with pytest.raises(RuntimeError, match="cannot be registered on non-leaf tensors"):
        y.register_post_accumulate_grad_hook(print)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        FIVE.register_hook(print)


@shows("D3.7")
def a_returned_tensor_flows_on() -> Found:
    for hook, factor in ((lambda grad: None, 1), (lambda grad: 2 * grad, 2)):
        a, b = five_ones(hook)
        torch.testing.assert_close(a.grad, factor * 0.4 * FIVE)
        torch.testing.assert_close(b.grad, factor * 0.2 * FIVE)
    # What takes its place has the same shape and dtype, and is a new tensor.
    for wrong, message in (
        (lambda grad: grad[:1], "changed the size"),
        (lambda grad: grad.double(), "changed the type"),
        (lambda grad: 2.0, "expected Variable, but hook returned 'float'"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=message):
            five_ones(wrong)
    a, b = five_ones(lambda grad: grad.mul_(2))
    torch.testing.assert_close(a.grad, 0.8 * FIVE)
    b = 2 * a
    b.register_hook(lambda grad: grad.mul_(2))
    with pytest.raises(RuntimeError, match="single memory location"):
        b.sum().backward()
    # The document says that the hook gets what .grad will hold: a leaf has a total there.
    leaf, seen = torch.ones(1, requires_grad=True), []
    leaf.register_hook(lambda grad: seen.append(grad.item()))
    same = []
    for _ in range(2):
        (2 * leaf).sum().backward()
        same.append(seen[-1] == leaf.grad.item())
    assert [seen, leaf.grad.item()] == [[2, 2], 4]
    return Found(holds=any(same), fails=not all(same))


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


@shows("D3.9")
def means_by_hand() -> None:
    seen: list[torch.Tensor] = []
    a, b = five_ones(seen.append)
    torch.testing.assert_close(a.grad, 0.4 * FIVE)
    torch.testing.assert_close(b.grad, 0.2 * FIVE)
    assert torch.equal(seen[0], b.grad)


@shows("D3.10")
def too_late_after_backward() -> None:
    a, b = five_ones()
    b.grad *= 2
    torch.testing.assert_close(b.grad, 0.4 * FIVE)
    torch.testing.assert_close(a.grad, 0.4 * FIVE)


@shows("D3.12")
def none_is_an_input_that_requires_no_gradient() -> None:
    parameters = [(10, 3, 2, 2), (10,)]
    assert grad_inputs("legacy", nn.Conv2d(3, 10, 2, stride=2), torch.randn(1, 3, 8, 8)) == [None, *parameters]
    assert grad_inputs("legacy", nn.Conv2d(3, 10, 2, stride=2), needing(1, 3, 8, 8)) == [(1, 3, 8, 8), *parameters]
    # And it is None also behind another layer, if nothing there requires a gradient.
    conv = nn.Conv2d(3, 10, 2, stride=2)
    assert grad_inputs("legacy", conv, nn.ReLU()(torch.randn(1, 3, 8, 8))) == [None, *parameters]


@shows("D3.13")
def print_and_explanation_are_of_two_versions() -> None:
    assert grad_inputs("legacy", nn.Linear(160, 5), needing(160)) == [(1, 5)]
    assert grad_inputs("legacy", LinearUpToTwo(160, 5), needing(160)) == [(5,), (5,)]
    for kind in (nn.Linear, LinearUpToTwo):
        assert grad_inputs("full", kind(160, 5), needing(160)) == [(160,)]
    names = [node and node.name() for node, _ in LinearUpToTwo(160, 5)(needing(160)).grad_fn.next_functions]
    assert [name.rstrip("0123456789").split("::")[-1] for name in names] == ["SqueezeBackward", "AccumulateGrad"]


@shows("D3.14")
def the_weight_is_outputs_by_inputs() -> None:
    layer = nn.Linear(160, 5)
    assert layer.weight.shape == (5, 160)
    both = compare_backward_hooks(layer, needing(7, 160))
    assert both.legacy.shapes["grad_input"] == ((5,), (7, 160), (160, 5))
    assert "grad_input[2] is weight.grad.T" in both.explanation


@shows("D3.15")
def a_convolution_is_one_node() -> None:
    assert own_nodes(nn.Conv2d(3, 10, 2, stride=2)(needing(1, 3, 8, 8))) == ["ConvolutionBackward0"]


@shows("D3.16")
def a_full_hook_has_one_entry_per_argument() -> None:
    cases: list[tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...], int]] = [
        (lambda: nn.Linear(4, 5), (needing(4),), 1),
        (lambda: nn.Linear(4, 5), (needing(3, 4),), 3),
        (lambda: nn.Linear(4, 5), (needing(2, 3, 4),), 1),
        (lambda: nn.Linear(4, 5, bias=False), (needing(4),), 1),
        (lambda: nn.Linear(4, 5, bias=False), (needing(3, 4),), 2),
        (lambda: nn.Linear(4, 5, bias=False), (needing(2, 3, 4),), 1),
        (lambda: nn.BatchNorm2d(3), (needing(2, 3, 4, 4),), 3),
        (Sum, (needing(2), needing(2), needing(2)), 2),
    ]
    for make, inputs, legacy in cases:
        assert grad_inputs("full", make(), *inputs) == [(*value.shape,) for value in inputs]
        assert len(grad_inputs("legacy", make(), *inputs)) == legacy
    assert grad_inputs("full", nn.Embedding(7, 3), torch.tensor([1, 2])) == [None]
    assert grad_inputs("legacy", nn.Embedding(7, 3), torch.tensor([1, 2])) == [(7, 3)]


@shows("D3.18")
def outputs_and_gradients_can_be_changed() -> None:
    layer, x = doubling(), THREE.clone().requires_grad_()
    layer.register_forward_hook(lambda module, args, output: output + 1)
    layer.register_full_backward_hook(lambda module, gi, go: (10 * gi[0],))
    y = layer(x)
    y.sum().backward()
    assert [y.item(), x.grad.item()] == [7, 20]


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
    layer = doubling()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(THREE).sum().backward()
    assert [layer.weight.grad.item(), layer.weight.item()] == [3, 2]
    optimizer.step()
    assert layer.weight.item() == pytest.approx(2 - 0.1 * 3)
    return Found(holds=layer.weight.grad.item() == 3, fails=True)


@shows("D3.21")
def what_b_was_computed_from_hangs_on_its_gradient() -> Found:
    def run(*hooks: Callable[[torch.Tensor], object]) -> tuple[bool, bool]:
        """Whether the gradients of `a` (`b` is made of it) and of `c` (it is made of `b`) are ten times as large."""
        a = torch.ones(5, requires_grad=True)
        b = 2 * a
        c = 3 * b
        c.retain_grad()
        for hook in hooks:
            b.register_hook(hook)
        c.sum().backward()
        return bool((a.grad == 60).all()), bool((c.grad == 10).all())

    assert run() == (False, False)
    before, after = run(lambda grad: 10 * grad)
    assert before
    return Found(holds=after, fails=not after)


@shows("D3.22")
def a_bare_tensor_is_an_error() -> Found:
    def run(register: str, returned: Callable[[tuple[torch.Tensor, ...]], object]) -> str:
        layer, x = nn.Linear(2, 1, bias=False), torch.ones(3, 2, requires_grad=True)
        getattr(layer, register)(lambda module, gi, go: returned(gi))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            try:
                layer(x).sum().backward()
            except (RuntimeError, TypeError) as error:
                return str(error)
        return ""

    answers = {*history("full_hook_returns_tensor").values()}
    assert {answer.partition(":")[0] for answer in answers} == {"missing", "RuntimeError"}, (
        "in each release that has it"
    )
    kinds = ("register_backward_hook", "register_full_backward_hook")
    none, tensor, whole = (
        [run(kind, returned) for kind in kinds]
        for returned in (lambda gi: None, lambda gi: gi[0], lambda gi: tuple(10 * grad for grad in gi))
    )
    assert none == whole == ["", ""]
    assert tensor[0] == "expected tuple, but hook returned 'Tensor'"
    assert "invalid number of grad_input, got 3, but expected 1" in tensor[1]
    return Found(holds=True, fails=all(tensor))


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


shows("D3.11")(d0.what_a_forward_hook_returns_replaces_the_output)
