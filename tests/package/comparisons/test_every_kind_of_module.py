"""A legacy and a full backward hook side by side: what each sees, on every kind of module."""

import copy
import warnings

import pytest
import torch
from torch import nn

from hookscope.comparisons.compare import compare_backward_hooks
from tests.package.comparisons.backward_hook_rows import ROWS, list_shapes, x
from tests.shared.awkward_models import Net


@pytest.mark.parametrize("row", ROWS)
def test_every_kind_of_module(row):
    module, args, kwargs, *expected = ROWS[row]
    both = compare_backward_hooks(module, *args, kwargs=kwargs)
    assert [*list_shapes(both.legacy), both.legacy.node, *list_shapes(both.full)] == expected
    assert both.legacy.error == both.full.error == ""
    assert both.legacy.called == (expected[0] != "no")
    assert both.full.called == (expected[3] != "no")
    if both.full.called:
        assert both.full.node == "BackwardHookFunctionBackward"
    # What is shown is deterministic and names no address.
    assert repr(both) == repr(compare_backward_hooks(module, *args, kwargs=kwargs))
    assert "0x" not in repr(both)


def test_entries_are_the_real_gradients():
    module, given = nn.Linear(4, 5), x(3, 4)
    both = compare_backward_hooks(module, given)
    module(given).sum().backward()
    bias, inputs, weight = both.legacy.grad_input
    assert torch.equal(bias, module.bias.grad)
    assert torch.equal(inputs, given.grad)
    assert torch.equal(weight, module.weight.grad.T)
    assert torch.equal(both.full.grad_input[0], given.grad)
    assert torch.equal(both.full.grad_output[0], torch.ones(3, 5))
    assert both.legacy.next_nodes == ("AccumulateGrad", "AccumulateGrad", "TBackward0")
    assert "grad_input[0] is bias.grad, grad_input[1] is input.grad and grad_input[2] is weight.grad.T" in (
        both.explanation
    )
    assert both.explanation.endswith("one entry per positional argument: grad_input[0] is input.grad.")


def test_in_place_module_fails_with_a_full_hook_only():
    both = compare_backward_hooks(nn.ReLU(inplace=True), x(2, 3) * 1)
    assert both.legacy.error == ""
    assert both.legacy.shapes["grad_input"] == ((2, 3),)
    assert not both.full.called
    assert both.full.error.startswith("RuntimeError: Output 0 of BackwardHookFunction")
    assert "With the full hook, the module fails: RuntimeError: Output 0" in both.explanation
    assert both.full.error.count(".") > 1
    assert not both.explanation.endswith("..")
    assert "error" in repr(both)
    assert repr(both.full).startswith("full hook: stopped by RuntimeError")


def test_unused_argument_gets_zeros_from_the_full_hook():
    module = nn.Identity()
    module.forward = lambda used, unused: used * 2
    both = compare_backward_hooks(module, x(2), x(2))
    assert torch.equal(both.full.grad_input[1], torch.zeros(2))
    assert "grad_input[1] is unused.grad." in both.explanation
    assert both.explanation.endswith("Without a hook, unused.grad would be None.")


def test_module_that_calls_itself_fires_several_times():
    both = compare_backward_hooks(
        Net(lambda self, value, depth=2: self(value * 2, depth - 1) if depth else value * 3), x(2)
    )
    assert both.full.firings == 3
    assert both.legacy.firings == 3
    assert "It was called 3 times" in both.explanation
    assert "3 times" in repr(both)


def test_node_is_the_one_that_fires():
    """The node is found by torch's rule; the node that runs the hook says the same."""
    current = getattr(torch._C, "_current_autograd_node", None)
    if current is None:
        pytest.skip("this torch does not say which node runs")
    for row in ("linear 2-D", "tuple", "dict", "nested", "lstm", "attention", "x+y+z"):
        module, args, kwargs, *_ = ROWS[row]
        fired = []
        copied = copy.deepcopy(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied.register_backward_hook(lambda *a, fired=fired: fired.append(current().name()))
            out = copied(*args, **kwargs)
            while not isinstance(out, torch.Tensor):
                out = out["a"] if isinstance(out, dict) else out[0]
            out.sum().backward()
        assert fired == [compare_backward_hooks(module, *args, kwargs=kwargs).legacy.node]
