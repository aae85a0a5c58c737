"""Hooks that torch registered itself are listed, marked, and left alone."""

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from hookscope.censuses.census import census, removing_new_hooks
from tests.package.censuses.census_helpers import do_nothing


def with_pruning():
    layer = nn.Linear(2, 2)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


def with_old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(2, 2))


TORCHS_OWN = {
    "prune": with_pruning,
    "weight_norm": with_old_weight_norm,
    "spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(2, 2)),
    "parametrized weight_norm": lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
    "lazy": lambda: nn.LazyLinear(2),
}


# --- torch's own hooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", TORCHS_OWN)
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
def test_hooks_that_torch_registered_are_listed_and_left_alone(how):
    model = nn.Sequential(TORCHS_OWN[how]())
    theirs = census(model)
    assert len(theirs) >= 1
    assert all(entry.by_torch for entry in theirs)
    assert "(torch's own)" in repr(theirs)
    theirs.assert_none()
    with pytest.raises(AssertionError, match="torch/nn/"):
        theirs.assert_none(include_torch=True)
    model[0].register_forward_hook(do_nothing)
    assert census(model).remove_all() == 1
    assert list(census(model)) == list(theirs)
    assert model(torch.ones(1, 2)).shape == (1, 2)
    left = census(model)
    assert left.remove_all(include_torch=True) == len(left)
    assert len(census(model)) == 0


def test_public_functions_of_torch_and_modules_are_the_users_hooks():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(functools.partial(nn.functional.normalize, dim=0))
    x.register_hook(nn.Identity())
    x.register_hook(torch.nan_to_num)
    x.register_hook(torch._C._log_api_usage_once)
    assert not any(entry.by_torch for entry in census(x))
    assert census(x).remove_all() == 4


# --- removing_new_hooks -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", TORCHS_OWN)
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:`torch.nn.utils")
def test_what_torch_registers_inside_stays(how):
    model = nn.Sequential()
    with removing_new_hooks(model) as removed:
        model.append(TORCHS_OWN[how]())
        model[0].register_forward_hook(do_nothing)
    assert len(removed) == 1
    assert len(census(model)) >= 1
    assert model(torch.ones(1, 2)).shape == (1, 2)
