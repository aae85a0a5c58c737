"""Small models to record, and a look at everything that a recording could leave behind."""

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer

from hookscope.recordings.record import record

HOOK_DICTS = [
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
]
GLOBAL_DICTS = [
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_with_kwargs",
    "_global_forward_hooks_always_called",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
]


def list_hooks(*models):
    """Every hook dictionary with its ids and callables in order, and the latches."""
    state = [list(getattr(torch_module, name, {}).items()) for name in GLOBAL_DICTS]
    state.append(list(optimizer._global_optimizer_pre_hooks.items()))
    state.append(list(optimizer._global_optimizer_post_hooks.items()))
    for module in (m for model in models for m in model.modules()):
        state += [list(getattr(module, name).items()) for name in HOOK_DICTS]
        state.append(module._is_full_backward_hook)
        for p in module.parameters(recurse=False):
            state.append(list((p._backward_hooks or {}).items()))
            state.append(list((p._post_accumulate_grad_hooks or {}).items()))
    return state


def make_ones(*shape, grad=True):
    return torch.ones(*shape, requires_grad=grad)


def make_nested():
    return nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))


def record_pass(model=None, *, grad=True, **options):
    """The recording of one pass forward and backward."""
    model = make_nested() if model is None else model
    with record(model, **options) as recording:
        model(make_ones(1, 4, grad=grad)).sum().backward()
    return recording


NESTED_FORWARD = [
    "forward_pre (root)",
    "forward_pre 0",
    "forward_pre 0.0",
    "forward 0.0",
    "forward_pre 0.1",
    "forward 0.1",
    "forward 0",
    "forward_pre 1",
    "forward 1",
    "forward (root)",
]
