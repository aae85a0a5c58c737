"""A comparison changes nothing of the caller's: no input, no hook, no parameter, no random number."""

import random
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from hookscope.censuses.census import census
from hookscope.comparisons.compare import compare_backward_hooks
from tests.package.comparisons.backward_hook_rows import plain, x


def test_a_non_leaf_input_stays_one_and_the_legacy_hook_is_silent():
    both = compare_backward_hooks(nn.ReLU(), x(2, 3) * 1)
    assert both.legacy.warnings == ()
    assert both.legacy.next_nodes == ("CloneBackward0",)
    assert "grad_input[0] is input.grad" in both.explanation.partition("The full")[0]


def test_no_hook_of_the_callers_runs_and_no_warning_is_shown():
    calls = []
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    module[0].register_forward_hook(lambda *a: calls.append("forward"))
    module.register_full_backward_hook(lambda *a: calls.append("backward"))
    given = x(3, 4)
    given.register_hook(lambda g: calls.append("tensor"))
    module(given).sum().backward()
    calls.clear()
    hooks, given_grad = repr(census(module, given)), given.grad.clone()
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare_backward_hooks(module, given)
    assert caught == []
    assert warnings.filters == filters
    assert calls == []
    assert repr(census(module, given)) == hooks
    assert torch.equal(given.grad, given_grad)
    module(given)
    assert calls == ["forward"]


def test_both_hooks_see_the_same_random_numbers():
    module = nn.Dropout()
    module.forward = lambda value: nn.functional.dropout(value) * random.random()
    both = compare_backward_hooks(module, x(50))
    # The legacy hook sees the factor, the full hook the factor times dropout's 2 or 0.
    assert both.full.grad_input[0].max() == 2 * both.legacy.grad_input[0].max()
    state = random.getstate()
    compare_backward_hooks(module, x(50))
    assert random.getstate() == state
    both = compare_backward_hooks(nn.Dropout(), x(50))
    assert torch.equal(both.legacy.grad_input[0], both.full.grad_input[0])


@pytest.mark.parametrize("register", ["register_backward_hook", "register_full_backward_hook"])
def test_a_module_that_has_or_had_hooks_of_one_kind(register):
    module = nn.Linear(4, 5)
    handle = getattr(module, register)(lambda *a: None)
    assert compare_backward_hooks(module, x(3, 4)).full.error == ""
    handle.remove()
    both = compare_backward_hooks(module, x(3, 4))
    assert both.legacy.called
    assert both.full.called


def test_pruned_lazy_and_shared():
    pruned = prune.random_unstructured(nn.Linear(4, 5), "weight", 0.5)
    pruned(plain(3, 4))  # leaves a weight behind that is no leaf
    both = compare_backward_hooks(pruned, x(3, 4))
    assert "grad_input[0] is bias.grad" in both.explanation
    lazy = nn.LazyLinear(5)
    assert compare_backward_hooks(lazy, x(3, 4)).legacy.shapes["grad_input"] == ((5,), (3, 4), (4, 5))
    assert isinstance(lazy.weight, nn.UninitializedParameter)


def test_a_parameter_as_input_stays_a_parameter_and_the_modules_own():
    class Tied(nn.Linear):
        def forward(self, given):
            seen.append((given is self.weight, isinstance(given, nn.Parameter), isinstance(self.weight, nn.Parameter)))
            return given * 2

    seen = []
    tied = Tied(2, 2)
    both = compare_backward_hooks(tied, tied.weight)
    # A full hook gives forward a view of the argument, in place of the argument.
    assert seen == [(True, True, True), (True, True, True), (False, False, True)]
    assert both.legacy.shapes["grad_input"] == ((2, 2), None)
    assert "grad_input[0] is given.grad = weight.grad" in both.explanation
    assert tied.weight.grad is None
    seen.clear()
    own = nn.Parameter(torch.ones(2, 2))
    assert "grad_input[0] is given.grad and" in compare_backward_hooks(tied, own).explanation
    assert seen[0] == (False, True, True)
    assert own.grad is None


def test_a_hook_that_holds_a_non_leaf_is_no_obstacle():
    class Keep:
        def note(self, module, args, output):
            self.output = output

    keep, module = Keep(), nn.Linear(4, 5)
    module.register_forward_hook(keep.note)
    module(x(3, 4))
    before = keep.output
    assert compare_backward_hooks(module, x(3, 4)).full.called
    assert keep.output is before


@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_other_precisions(dtype):
    module = nn.Linear(4, 5).to(dtype)
    text = compare_backward_hooks(module, torch.randn(3, 4, dtype=dtype, requires_grad=True)).explanation
    assert "grad_input[0] is bias.grad" in text
    assert text.endswith("grad_input[0] is input.grad.")


def test_sparse_gradient():
    module = nn.Embedding(7, 3, sparse=True)
    assert "grad_input[0] is weight.grad" in compare_backward_hooks(module, torch.tensor([1, 1])).explanation


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(context):
    with context():
        assert compare_backward_hooks(nn.Linear(4, 5), torch.randn(3, 4)).legacy.called
        assert not torch.is_grad_enabled()
