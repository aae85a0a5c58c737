"""Support models whose weights are loaded by accelerate only while a layer runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["execution_devices", "is_offloaded", "named_tensors"]


def is_offloaded(modules: Iterable[nn.Module]) -> bool:
    """Return whether accelerate offloads weights. Between passes they are on the meta device, without values.

    Example:
        >>> is_offloaded(nn.Linear(2, 2).modules())
        False

    """
    return any(getattr(hook, "offload", False) for module in modules for hook in _hooks(module))


def execution_devices(modules: Iterable[nn.Module]) -> set[torch.device]:
    """Return the devices on which accelerate runs the layers."""
    found = (getattr(hook, "execution_device", None) for module in modules for hook in _hooks(module))
    return {torch.device(device) for device in found if device is not None}


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers with their names; offloaded ones with the values that accelerate loads."""
    loaded: dict[str, tuple[Mapping[str, Tensor], str]] = {}
    for prefix, module in model.named_modules():
        for hook in _hooks(module):
            if weights := getattr(hook, "weights_map", None):
                for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
                    loaded[f"{prefix}.{name}" if prefix else name] = weights, name
    once = not loaded  # a pass can untie shared weights
    held = model.named_parameters(remove_duplicate=once), model.named_buffers(remove_duplicate=once)
    for name, tensor in (*held[0], *held[1]):
        weights, own = loaded.get(name, ({}, ""))
        value = weights.get(own) if tensor.is_meta else None
        yield name, tensor if value is None else value


def _hooks(module: nn.Module) -> Iterable[Any]:
    hook = getattr(module, "_hf_hook", None)
    return () if hook is None else getattr(hook, "hooks", (hook,))
