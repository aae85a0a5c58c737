"""Fingerprint a model or a batch, to see whether it is the same as in an earlier run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.layers.offloaded import named_tensors
from hookscope.pytree import find_tensors

__all__ = ["fingerprint_batch", "fingerprint_model", "fingerprint_state", "fingerprint_tensor"]


def fingerprint_tensor(tensor: Tensor) -> str:
    """Return the SHA-256 of the dtype, shape and bytes of a dense tensor.

    Example:
        >>> fingerprint_tensor(torch.ones(2)) == fingerprint_tensor(torch.ones(1, 2))
        False

    """
    return _fingerprint([("", tensor)])


def fingerprint_batch(batch: Any) -> str:
    """Return the SHA-256 of all values in a batch and of their positions in it.

    Example:
        >>> one, other = ({"a": torch.ones(1), "scale": scale} for scale in (1, 2))
        >>> fingerprint_batch(one) == fingerprint_batch(other)
        False

    """
    return hashlib.sha256(repr(_outline(batch, ())).encode()).hexdigest()


def _outline(value: Any, around: tuple[int, ...]) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Tensor):
        return fingerprint_tensor(value)
    if id(value) in around:  # it contains itself
        return kind
    within = partial(_outline, around=(*around, id(value)))
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return [kind, value.shape, *map(within, value.reshape(-1).tolist())]
        data = np.ascontiguousarray(value).tobytes()
        return [kind, str(value.dtype), value.shape, hashlib.sha256(data).hexdigest()]
    if isinstance(value, Mapping):
        return [kind, *((within(key), within(item)) for key, item in value.items())]
    if isinstance(value, list | tuple):
        return [kind, *map(within, value)]
    # Any other object counts by the tensors inside it and by its attributes.
    return [kind, *map(fingerprint_tensor, find_tensors(value)), within(getattr(value, "__dict__", None))]


_HASHED = 1 << 16  # elements; larger parameters are summed first, which is faster than hashing them


def fingerprint_state(model: nn.Module) -> dict[str, object]:
    """Return a fingerprint of each buffer and parameter, to see whether a pass changes the model.

    It runs once per shard, so large parameters are summed along their first and last axes before they are hashed.
    """
    # Offloaded tensors have no values now; accelerate loads them again for each pass.
    buffers, parameters = (
        [(name, tensor) for name, tensor in named if not tensor.is_meta]
        for named in (model.named_buffers(), model.named_parameters())
    )
    found: dict[str, object] = {f"buffer {name!r}": fingerprint_tensor(tensor) for name, tensor in buffers}
    for name, tensor in _flatten(parameters):
        signs: list[str] = []
        with suppress(RuntimeError, NotImplementedError), torch.no_grad():  # a dtype that torch cannot sum
            whole = tensor.detach()
            for sign in (whole,) if whole.numel() <= _HASHED else (whole.sum(0), whole.sum(-1)):
                signs.append(fingerprint_tensor(sign))
        found[f"parameter {name!r}"] = (tuple(tensor.shape), *signs)
    return found


def fingerprint_model(model: nn.Module) -> str:
    """Return the SHA-256 of a model's class, modules, options, parameters and buffers, but not of its code."""
    # A custom repr can contain an address, which differs between processes.
    said = re.sub(r"0x[0-9a-fA-F]+", "", f"{type(model).__module__}.{type(model).__qualname__} {model!r}")
    config = getattr(model, "config", None)
    # The repr of a transformers model lacks some options, such as activations and scales.
    if config is not None and hasattr(config, "to_json_string"):
        # A classifier writes problem_type into its config in a pass with labels; only the loss reads it.
        said += re.sub(r'\n *"problem_type": .*', "", str(config.to_json_string()))
    return _fingerprint(named_tensors(model), said)


def _flatten(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Replace each wrapper subclass, such as a quantized weight or a DTensor, by the tensors inside it."""
    for name, tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):
            yield from _flatten((f"{name}.{inner}", getattr(tensor, inner)) for inner in tensor.__tensor_flatten__()[0])
        else:
            yield name, tensor


def _fingerprint(tensors: Iterable[tuple[str, Tensor]], said: str = "") -> str:
    found = hashlib.sha256(said.encode())
    for name, tensor in _flatten(tensors):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        with torch.no_grad():
            if tensor.is_quantized:
                tensor = tensor.dequantize()
            dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
            dense = dense.resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
            found.update(dense.view(torch.uint8).numpy().data)
    return found.hexdigest()
