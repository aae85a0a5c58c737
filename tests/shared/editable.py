"""What of a model could be edited: the tensors of each call of each layer, found with plain hooks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tests.shared.awkward import Case, tensors_in


@dataclasses.dataclass
class Seen:
    """One call of a layer: the paths and shapes of its tensors; None for the shape of what takes no fractions."""

    layer: str
    number: int
    to: str
    tensors: list[tuple[tuple[Any, ...], tuple[int, ...] | None]]


def calls_of(case: Case) -> list[Seen]:
    """Run once, and list what could be edited; of gradients, where grad is enabled, those that come in backward."""
    model, args, kwargs = case
    seen: list[Seen] = []
    handles = []
    for name, layer in model.named_modules():
        count: list[int] = []

        def after(module, args, kwargs, output, name=name, count=count) -> None:
            count.append(1)
            inputs, found = paths({**dict(enumerate(args)), **kwargs}), paths(output)
            grads = [(path, None) for path, _ in found] if torch.is_grad_enabled() else list(found)

            def came(grad: Tensor | None, place: int) -> None:
                if grad is not None:
                    grads[place] = found[place]

            seen.append(Seen(name, len(count), "input", inputs))
            seen.append(Seen(name, len(count), "output", found))
            seen.append(Seen(name, len(count), "grad", grads))
            for place, tensor in enumerate(tensors_in(output)):
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad, place=place: came(grad, place))

        handles.append(layer.register_forward_hook(after, with_kwargs=True))
    try:
        backward(model(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], tuple[int, ...] | None]]:
    """List path and shape of the tensors of a structure, in the order in which `tensor_map` meets them."""
    if isinstance(value, Tensor):
        plain = value.is_floating_point() and value.layout is torch.strided
        return [(path, tuple(value.shape) if plain else None)]
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    else:
        items = list(vars(value).items()) if hasattr(value, "__dict__") and not callable(value) else []
    return [found for key, item in items for found in paths(item, (*path, key))]


def backward(output: Any) -> None:
    """Run backward from all there is in an output, if anything needs it."""
    loss = sum(t.abs().double().sum() for t in tensors_in(output) if t.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()
