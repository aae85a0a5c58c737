"""Save the state of a model and of the random number generators, and restore it after a block."""

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
    """Restore training flags and buffers when the block ends.

    Args:
        model: the model.
        attributes: also restore the attributes of the modules, see `ModuleAttributes`.
        modules: the modules of the model, if you have them already. This saves time.

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
    """A snapshot of the training flags and buffers of a model, which you can restore several times.

    Args:
        model: the model.
        attributes: also save the attributes of the modules, see `ModuleAttributes`.
        given: the modules of the model, if you have them already.

    Attributes:
        attributes: the saved attributes; empty if they were not requested.

    """

    def __init__(self, model: nn.Module, attributes: bool = False, given: Iterable[nn.Module] | None = None) -> None:
        # A scripted module stores its buffers in C++, and returns a new tensor for each access.
        scripted = torch.jit.ScriptModule
        modules = list(model.modules() if given is None else given)
        self._training = [(module, module.training) for module in modules]
        owning = [module for module in modules if module._buffers]
        self._owned = [(module, dict(module._buffers)) for module in owning if not isinstance(module, scripted)]
        # Like model.buffers(), but without another walk through the modules, which takes most of the time.
        buffers = {buffer: None for _, owned in self._owned for buffer in owned.values() if buffer is not None}
        if any(issubclass(kind, scripted) for kind in set(map(type, modules))):
            buffers = dict.fromkeys(model.buffers())
        held = (each for each in buffers if not (is_lazy(each) or each.is_inference() or each.is_meta))
        self._values = [(each, each.clone()) for each in held]
        self.attributes = ModuleAttributes(modules if attributes else ())

    def restore(self) -> None:
        """Restore the flags, the buffers and the attributes."""
        self.attributes.restore()
        for module, was in self._training:
            if module.training is not was:  # setting it takes ten times as long as reading it
                module.training = was
        for module, owned in self._owned:
            module._buffers.update(owned)
        for buffer, value in self._values:
            # Compare values, because batch norm writes its running mean without increasing _version. Write only if
            # they differ, because a graph of the caller might have saved the buffer for backward.
            if not torch.equal(buffer, value):
                if buffer.shape != value.shape:  # resized, as an observer of quantization does
                    buffer.resize_(value.shape)
                buffer.detach().copy_(value)

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore the state when the block ends."""
        try:
            yield
        finally:
            self.restore()


class ModuleAttributes:
    """A snapshot of the attributes of modules, without the values of parameters and buffers.

    It saves the attributes, and the contents of lists, dicts, sets, deques, tensors, arrays and random number
    generators among them, but not the contents of other objects. It includes hooks, submodules and a replaced
    `forward`, because a model that registers hooks in its first pass sets a flag then, and both must be restored
    together. A lazy layer that has been initialized stays initialized.

    Args:
        modules: the modules.

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
        # Most are empty, such as the dicts of hooks.
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
        """The size of the copies, plus one more copy of the largest, which a comparison needs."""
        sizes = [before.nbytes for _, _, before in self._inside if isinstance(before, (Tensor, np.ndarray))]
        return sum(sizes) + max(sizes, default=0)

    def restore(self) -> bool:
        """Restore all changes, and return whether there were any."""
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


# The dicts of parameters, buffers, submodules and hooks. Their values are compared by identity.
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
    """Return whether `clone` and `torch.equal` do not work for a tensor."""
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
"""Type of a value -> a function that copies its contents, and one that restores them."""


@lru_cache(1024)
def _kinds_of(kind: type) -> tuple[tuple[type, Callable[[Any], Any]], ...]:
    """Return the types in `_CONTENTS` that a class is derived from; cached, as it runs for every attribute."""
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
    """Restore the state of the random number generators of torch, NumPy and Python when the block ends.

    Args:
        *used: modules and inputs. For each GPU that they are on, its generator is restored, too.

    """
    gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # otherwise no tensor is on a GPU
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
