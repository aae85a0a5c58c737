"""Leave a model, and the random numbers of its owner, as they were."""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.pytree import find_tensors

__all__ = ["ModelState", "ModuleAttributes", "preserve_model", "preserve_rng_state"]


@contextmanager
def preserve_model(
    model: nn.Module, attributes: bool = False, modules: Iterable[nn.Module] | None = None
) -> Iterator[None]:
    """Put back training flags and buffers, whatever happens to them inside the block.

    Args:
        model: the model.
        attributes: put back what modules hold besides, too, see `ModuleAttributes`.
        modules: those of the model, where they are known: to look for them takes time.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with preserve_model(norm):
        ...     _ = norm(torch.ones(3, 2))
        ...     norm.eval().running_mean
        tensor([0.1000, 0.1000])
        >>> norm.running_mean, norm.training
        (tensor([0., 0.]), True)

    """
    with ModelState(model, attributes, modules).preserve():
        yield


class ModelState:
    """A model as it is when this is made: its training flags and buffers, which can be put back several times.

    Args:
        model: the model.
        attributes: what modules hold besides belongs to it, too, see `ModuleAttributes`.
        given: the modules of the model, where they are known.

    Attributes:
        attributes: what the modules hold; nothing if that was not asked for.

    """

    def __init__(self, model: nn.Module, attributes: bool = False, given: Iterable[nn.Module] | None = None) -> None:
        # What torch has scripted holds its buffers elsewhere, and makes a new tensor of each whenever it is asked.
        scripted = torch.jit.ScriptModule
        modules = list(model.modules() if given is None else given)
        self._training = [(module, module.training) for module in modules]
        owning = [module for module in modules if module._buffers]
        self._owned = [(module, dict(module._buffers)) for module in owning if not isinstance(module, scripted)]
        # As model.buffers() does, without another walk through the modules, which takes longer than all the rest.
        buffers = {buffer: None for _, owned in self._owned for buffer in owned.values() if buffer is not None}
        if any(issubclass(kind, scripted) for kind in set(map(type, modules))):
            buffers = dict.fromkeys(model.buffers())
        held = (each for each in buffers if not (is_lazy(each) or each.is_inference() or each.is_meta))
        self._values = [(each, each.clone()) for each in held]
        self.attributes = ModuleAttributes(modules if attributes else ())

    def restore(self) -> None:
        """Put it back."""
        self.attributes.restore()
        for module, was in self._training:
            if module.training is not was:  # to set it takes ten times as long as to look
                module.training = was
        for module, owned in self._owned:
            module._buffers.update(owned)
        for buffer, value in self._values:
            # Not by _version: batch norm writes its running mean without counting. And not for nothing: a graph of
            # the owner's may have saved the buffer, and would not bear a write.
            if not torch.equal(buffer, value):
                if buffer.shape != value.shape:  # resized, as an observer of quantization does
                    buffer.resize_(value.shape)
                buffer.detach().copy_(value)

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Put it back after a block, whatever happens inside."""
        try:
            yield
        finally:
            self.restore()


class ModuleAttributes:
    """What modules hold, as it is when this is made; the numbers in parameters and buffers are not part of it.

    A value put into an attribute, and what is in lists, dicts, sets, deques, tensors, arrays and generators of random
    numbers there. What lies deeper, in objects of other classes, is not seen. Hooks, submodules and a `forward` of a
    module's own are put back with the rest: a model that registers hooks in its first pass has a flag that says so, and
    with the flag alone put back it would register them again. A lazy layer that a pass has made stays made.

    Args:
        modules: whose attributes.

    Example:
        >>> module = nn.Identity()
        >>> module.calls, module.seen = 0, [1]
        >>> held = ModuleAttributes([module])
        >>> module.calls, module.more = 1, 2
        >>> module.seen.append(2)
        >>> held.restore(), module.calls, module.seen, hasattr(module, "more"), held.restore()
        (True, 0, [1], False, False)

    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._held = [
            (module, dict(module.__dict__))
            for module in modules
            if not isinstance(module, torch.jit.ScriptModule) and not _is_lazy(module)
        ]
        kept = [own[name] for _, own in self._held for name in _DICTS]
        # Most are empty, as those of hooks are.
        self._empty, self._kept = [each for each in kept if not each], [(each, dict(each)) for each in kept if each]
        self._inside = [
            (value, kind, take(value))
            for _, own in self._held
            for name in own.keys() - _DICTS
            for value in (own[name],)
            for kind, take in _kinds_of(type(value))  # type: ignore[arg-type]
            if not (kind is Tensor and _is_odd(value))
        ]

    @property
    def nbytes(self) -> int:
        """How many bytes the copies of tensors and arrays take, with one more of the largest, to compare it."""
        sizes = [before.nbytes for _, _, before in self._inside if isinstance(before, (Tensor, np.ndarray))]
        return sum(sizes) + max(sizes, default=0)

    def restore(self) -> bool:
        """Put back what has changed; return whether anything had."""
        changed = False
        for module, own in self._held:
            now = module.__dict__
            if now.keys() == own.keys() and all(map(operator.is_, now.values(), own.values())):
                continue  # nearly always
            for name in [name for name in now if name not in own]:
                del now[name]
                changed = True
            for name, value in own.items():
                if now.get(name, _HELD) is not value:
                    now[name] = value
                    changed = True
        for new in filter(None, self._empty):
            new.clear()
            changed = True
        for kept, held in self._kept:
            if kept.keys() != held.keys() or any(kept[name] is not value for name, value in held.items()):
                _refill(kept, held)
                changed = True
        for value, kind, before in self._inside:
            take, put = _CONTENTS[kind]
            if not _same(take(value), before):
                put(value, before)
                changed = True
        return changed


# Parameters, buffers, submodules and hooks of all kinds; another one that is equal is not the same.
_DICTS = frozenset(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict))
_HELD = object()


def _is_lazy(module: nn.Module) -> bool:
    held = (*module._parameters.values(), *module._buffers.values())
    return any(is_lazy(tensor) for tensor in held if tensor is not None)


def _numpy_state(generator: np.random.Generator) -> Any:
    return generator.bit_generator.state


def _set_numpy_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


def _set_torch_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _refill(container: Any, before: Any) -> None:
    container.clear()
    (container.extend if hasattr(container, "extend") else container.update)(before)


def _write(tensor: Tensor, before: Tensor) -> None:
    if tensor.shape != before.shape:
        tensor.data = before
    else:
        tensor.detach().copy_(before)


def _is_odd(tensor: Tensor) -> bool:
    """Whether a tensor cannot be copied and compared as most can."""
    special = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return type(tensor) is not Tensor or special or tensor.is_inference()


_CONTENTS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    list: (list, _refill),
    dict: (dict, _refill),
    set: (set, _refill),
    deque: (list, _refill),
    Tensor: (lambda tensor: tensor.detach().clone(), _write),
    np.ndarray: (np.copy, lambda array, before: np.copyto(array, before)),
    torch.Generator: (torch.Generator.get_state, _set_torch_state),
    np.random.Generator: (_numpy_state, _set_numpy_state),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}
"""Kind of a value -> what takes its contents, and what puts them back."""


@lru_cache(1024)
def _kinds_of(kind: type) -> tuple[tuple[type, Callable[[Any], Any]], ...]:
    """List of which of these kinds values of a class are; asked for every attribute of every module."""
    return tuple((each, take) for each, (take, _) in _CONTENTS.items() if issubclass(kind, each))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and bool((one == other).all())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(a is b or _same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] or _same(one[key], other[key]) for key in one)
    return type(one) in _EASY and bool(one == other)


_EASY = (int, float, str, bool, set)


def _gpus(used: Iterable[object]) -> list[int]:
    found = [tensor for each in used if isinstance(each, nn.Module) for tensor in (*each.parameters(), *each.buffers())]
    found += find_tensors([each for each in used if not isinstance(each, nn.Module)])
    return sorted({tensor.device.index or 0 for tensor in found if tensor.device.type == "cuda"})


@contextmanager
def preserve_rng_state(*used: object) -> Iterator[None]:
    """Put back the state of the random number generators of torch, NumPy and Python.

    Args:
        *used: modules and inputs; where they are on a GPU, its generator is put back, too.

    """
    gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # else no tensor can be on one
    devices = _gpus(used) if gpus else []
    numpy = sys.modules.get("numpy")
    pythons, numpys = random.getstate(), numpy.random.get_state() if numpy else None
    torchs, on_gpus = torch.get_rng_state(), [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore() -> None:
        random.setstate(pythons)
        if numpy is not None:
            numpy.random.set_state(numpys)
        torch.set_rng_state(torchs)
        for device, state in on_gpus:
            torch.cuda.set_rng_state(state, device)

    try:
        yield
    finally:
        restore()
