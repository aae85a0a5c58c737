"""Tell by a short mark whether a model, or a batch of data, is the one of last time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.structures import tensors_in

__all__ = ["mark_of_batch", "mark_of_model", "mark_of_tensor", "state_of"]


def mark_of_tensor(tensor: Tensor) -> str:
    """Return the SHA-256 of a dense tensor: of its dtype, its shape and its bytes.

    Example:
        >>> mark_of_tensor(torch.ones(2)) == mark_of_tensor(torch.ones(1, 2))
        False

    """
    return _mark([("", tensor)])


def mark_of_batch(batch: Any) -> str:
    """Return the SHA-256 of all tensors in a batch, of where they are in it, and of the plain values beside them.

    Example:
        >>> one, other = ({"a": torch.ones(1), "scale": scale} for scale in (1, 2))
        >>> mark_of_batch(one) == mark_of_batch(other)
        False

    """
    return _mark((("", tensor) for tensor in tensors_in(batch)), repr(_outline(batch)))


def _outline(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Mapping):
        return [type(value).__name__, *((_outline(key), _outline(item)) for key, item in value.items())]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_outline, value)]
    return type(value).__name__  # of other objects the tensors must do


def state_of(model: nn.Module) -> dict[str, object]:
    """Return what tells whether the passes of a model change it: for each buffer a mark, for each parameter signs.

    A parameter's numbers are added, not hashed: this is asked again and again.
    """
    found: dict[str, object] = {f"buffer {name!r}": mark_of_tensor(tensor) for name, tensor in model.named_buffers()}
    for name, tensor in model.named_parameters():
        total: object = None
        with suppress(RuntimeError, NotImplementedError), torch.no_grad():  # a dtype that cannot be added
            total = mark_of_tensor(tensor.detach().sum())
        found[f"parameter {name!r}"] = (tuple(tensor.shape), total)
    return found


def mark_of_model(model: nn.Module) -> str:
    """Return the SHA-256 of all that a model says of itself: class, modules, options, parameters, buffers.

    What its code does is not part of it.
    """
    # Whatever a class of somebody's own prints may have an address in it, which is another in each process.
    said = re.sub(r"0x[0-9a-fA-F]+", "", f"{type(model).__module__}.{type(model).__qualname__} {model!r}")
    config = getattr(model, "config", None)
    if config is not None and hasattr(
        config, "to_json_string"
    ):  # of transformers, whose activations and scales it does not always print
        said += str(config.to_json_string())
    return _mark([*model.named_parameters(), *model.named_buffers()], said)


def _mark(tensors: Iterable[tuple[str, Tensor]], said: str = "") -> str:
    found = hashlib.sha256(said.encode())
    for name, tensor in tensors:
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        with torch.no_grad():
            if tensor.is_quantized:
                tensor = tensor.dequantize()
            dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
            dense = dense.resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
            found.update(dense.view(torch.uint8).numpy().data)
    return found.hexdigest()
