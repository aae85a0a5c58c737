"""Leave a model, and the random numbers of its owner, as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hookscope.structures import tensors_in

__all__ = ["afterwards", "model_unchanged", "same_random_numbers"]


@contextmanager
def model_unchanged(model: nn.Module) -> Iterator[None]:
    """Put back training flags and buffers, whatever happens to them inside the block.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with model_unchanged(norm):
        ...     _ = norm(torch.ones(3, 2))
        ...     norm.eval().running_mean
        tensor([0.1000, 0.1000])
        >>> norm.running_mean, norm.training
        (tensor([0., 0.]), True)

    """
    # What torch has scripted holds its buffers elsewhere, and makes a new tensor of each whenever it is asked.
    scripted = torch.jit.ScriptModule
    modules, grad = list(model.modules()), torch.is_grad_enabled()
    training = [(module, module.training) for module in modules]
    before = [(m, dict(m._buffers)) for m in modules if m._buffers and not isinstance(m, scripted)]
    # As model.buffers() does, without another walk through the modules, which takes longer than all the rest.
    buffers = {buffer: None for module in modules for buffer in module._buffers.values() if buffer is not None}
    if any(isinstance(module, scripted) for module in modules):
        buffers = dict.fromkeys(model.buffers())
    values = [(buffer, buffer.clone()) for buffer in buffers if not buffer.is_inference()]

    def put_back() -> None:
        for module, was in training:
            if module.training is not was:  # to set it takes ten times as long as to look
                module.training = was
        for module, owned in before:
            module._buffers.update(owned)
        for buffer, value in values:
            # Not by _version: batch norm writes its running mean without counting. And not for nothing: a graph of
            # the owner's may have saved the buffer, and would not bear a write.
            if not torch.equal(buffer, value):
                torch.set_grad_enabled(False)  # not `with`: an interrupt at its end would leave it so
                if buffer.shape != value.shape:  # resized, as an observer of quantization does
                    buffer.resize_(value.shape)
                buffer.copy_(value)
        torch.set_grad_enabled(grad)

    with afterwards(put_back):
        yield


@contextmanager
def afterwards(put_back: Callable[[], None]) -> Iterator[None]:
    """Put something back in the end, and once more if an interrupt came in there."""
    done = False
    try:
        try:
            yield
        finally:
            put_back()
            done = True
    finally:
        if not done:
            put_back()


def _gpus(used: Iterable[object]) -> list[int]:
    found = [tensor for each in used if isinstance(each, nn.Module) for tensor in (*each.parameters(), *each.buffers())]
    found += tensors_in([each for each in used if not isinstance(each, nn.Module)])
    return sorted({tensor.device.index or 0 for tensor in found if tensor.device.type == "cuda"})


@contextmanager
def same_random_numbers(*used: object) -> Iterator[None]:
    """Put back the state of the random number generators of torch, NumPy and Python.

    Args:
        *used: modules and inputs; where they are on a GPU, its generator is put back, too.

    """
    gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # else no tensor can be on one
    devices = _gpus(used) if gpus else []
    numpy = sys.modules.get("numpy")
    pythons, numpys = random.getstate(), numpy.random.get_state() if numpy else None
    torchs, on_gpus = torch.get_rng_state(), [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def put_back() -> None:
        random.setstate(pythons)
        if numpy is not None:
            numpy.random.set_state(numpys)
        torch.set_rng_state(torchs)
        for device, state in on_gpus:
            torch.cuda.set_rng_state(state, device)

    with afterwards(put_back):
        yield
