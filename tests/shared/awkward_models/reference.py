"""A naive reference that sees right what flowed through a model, and how two values differ bit for bit.

A plain forward hook on every leaf clones, at the moment the leaf returns, all there is in its output.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import leaves

RAISED = "raised"


@dataclasses.dataclass
class Call:
    """One run of a leaf: what it was given, cloned before; what it returned, cloned then; the gradients of that."""

    layer: str
    number: int
    inputs: Any
    output: Any = RAISED
    grad: Any = None


def tensor_map(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Rebuild `value` with every tensor in it replaced."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple.__new__(type(value), [tensor_map(function, item) for item in value])
    if isinstance(value, (tuple, list)):
        return type(value)([tensor_map(function, item) for item in value])
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, {key: tensor_map(function, item) for key, item in value.items()})
    if isinstance(value, dict):
        return type(value)((key, tensor_map(function, item)) for key, item in value.items())
    if hasattr(value, "__dict__") and not callable(value):  # dataclass, torchvision's ImageList
        rebuilt = copy.copy(value)
        for key, item in vars(value).items():
            object.__setattr__(rebuilt, key, tensor_map(function, item))
        return rebuilt
    return value


def deep_clone(value: Any) -> Any:
    """Copy the structure and the tensors of `value` as they are now, without gradients."""
    return tensor_map(lambda tensor: tensor.detach().clone(), value)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of `value`, in its order."""
    found: list[Tensor] = []
    tensor_map(found.append, value)
    return found


@contextmanager
def cloning(model: nn.Module, gradients: bool = False) -> Iterator[list[Call]]:
    """Collect every call of every leaf inside the block, and for `gradients` a clone of what arrives at its output."""
    calls: list[Call] = []
    running: list[Call] = []
    arriving: list[tuple[Call, dict[int, Tensor]]] = []
    counts: dict[str, int] = defaultdict(int)

    def begin(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            counts[name] += 1
            calls.append(Call(name, counts[name], deep_clone((args, kwargs))))
            running.append(calls[-1])

        return hook

    def end(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            while (call := running.pop()).layer != name:
                pass  # left by an exception
            call.output = deep_clone(output)
            if gradients:
                grads: dict[int, Tensor] = {}
                arriving.append((call, grads))
                for index, tensor in enumerate(tensors_in(output)):
                    watch(tensor, grads, index)

        return hook

    def watch(tensor: Tensor, grads: dict[int, Tensor], index: int) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: grads.__setitem__(index, grad.detach().clone()))

    handles = []

    def hook(name: str, layer: nn.Module) -> None:
        handles.append(layer.register_forward_pre_hook(begin(name), with_kwargs=True))
        handles.append(layer.register_forward_hook(end(name)))

    for name, layer in leaves(model).items():
        hook(name, layer)
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for call, grads in arriving:
            places = iter(range(len(tensors_in(call.output))))
            call.grad = tensor_map(lambda _, grads=grads, places=places: grads.get(next(places)), call.output)


def loss_of(output: Any) -> Tensor:
    """A number to run backward from: everything in `output` that requires grad, each value weighted differently."""
    loss = torch.zeros(())
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
            flat = (dense.abs() if dense.is_complex() else dense).flatten().float()
            loss = loss + (flat * torch.linspace(0.5, 1.5, len(flat))).sum()
    return loss


# --- how two values differ


def difference(actual: Any, expected: Any, where: str = "output") -> str:
    """Say where and how `actual` is not bit for bit `expected`; empty if it is. Strides do not count."""
    if isinstance(expected, Tensor):
        return _tensor_difference(actual, expected, where)
    if type(actual) is not type(expected):
        return f"{where} is a {type(actual).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, (tuple, list)):
        if len(actual) != len(expected):
            return f"{where} has length {len(actual)}, not {len(expected)}"
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(actual, expected, strict=True))]
    elif isinstance(expected, dict):
        if list(actual) != list(expected):
            return f"{where} has keys {list(actual)}, not {list(expected)}"
        pairs = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif hasattr(expected, "__dict__") and not callable(expected):
        if list(vars(actual)) != list(vars(expected)):
            return f"{where} has attributes {list(vars(actual))}, not {list(vars(expected))}"
        pairs = [(f"{where}.{key}", vars(actual)[key], vars(expected)[key]) for key in vars(expected)]
    else:
        return "" if actual is expected or actual == expected else f"{where} is {actual!r}, not {expected!r}"
    return next(filter(None, (difference(a, e, place) for place, a, e in pairs)), "")


def _tensor_difference(actual: Any, expected: Tensor, where: str) -> str:
    if not isinstance(actual, Tensor):
        return f"{where} is a {type(actual).__name__}, not a tensor"
    for quality in ("dtype", "shape", "layout", "device"):
        if getattr(actual, quality) != getattr(expected, quality):
            return f"{where} has {quality} {getattr(actual, quality)}, not {getattr(expected, quality)}"
    if expected.layout == torch.sparse_coo:
        parts = [(t.coalesce().indices(), t.coalesce().values()) for t in (actual.detach(), expected.detach())]
        return difference(*parts, where)
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    if not torch.equal(_bits(actual), _bits(expected)):
        return f"{where} is\n{actual.detach()}\nnot\n{expected.detach()}"
    return ""


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
