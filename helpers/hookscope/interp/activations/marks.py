"""Tell by a short mark whether a model, or a batch of data, is the one of last time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.layers.offloaded import named_tensors
from hookscope.pytree import find_tensors

__all__ = ["mark_of_batch", "mark_of_model", "mark_of_tensor", "state_of"]


def mark_of_tensor(tensor: Tensor) -> str:
    """Return the SHA-256 of a dense tensor: of its dtype, its shape and its bytes.

    Example:
        >>> mark_of_tensor(torch.ones(2)) == mark_of_tensor(torch.ones(1, 2))
        False

    """
    return _mark([("", tensor)])


def mark_of_batch(batch: Any) -> str:
    """Return the SHA-256 of all numbers in a batch, of where they are in it, and of the plain values beside them.

    Example:
        >>> one, other = ({"a": torch.ones(1), "scale": scale} for scale in (1, 2))
        >>> mark_of_batch(one) == mark_of_batch(other)
        False

    """
    return hashlib.sha256(repr(_outline(batch, ())).encode()).hexdigest()


def _outline(value: Any, around: tuple[int, ...]) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Tensor):
        return mark_of_tensor(value)
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
    # Of other objects: the tensors that are found in them, and what their attributes are.
    return [kind, *map(mark_of_tensor, find_tensors(value)), within(getattr(value, "__dict__", None))]


_HASHED = 1 << 16  # elements of a parameter; of larger ones sums are taken


def state_of(model: nn.Module) -> dict[str, object]:
    """Return what tells whether the passes of a model change it: for each buffer a mark, for each parameter signs.

    The numbers of a large parameter are added along its first axis and along its last, not hashed: this is asked again
    and again.
    """
    # What accelerate has offloaded has no values now, and is loaded anew for each pass.
    buffers, parameters = (
        [(name, tensor) for name, tensor in named if not tensor.is_meta]
        for named in (model.named_buffers(), model.named_parameters())
    )
    found: dict[str, object] = {f"buffer {name!r}": mark_of_tensor(tensor) for name, tensor in buffers}
    for name, tensor in parameters:
        signs: list[str] = []
        with suppress(RuntimeError, NotImplementedError), torch.no_grad():  # a dtype that cannot be added
            whole = tensor.detach()
            for sign in (whole,) if whole.numel() <= _HASHED else (whole.sum(0), whole.sum(-1)):
                signs.append(mark_of_tensor(sign))
        found[f"parameter {name!r}"] = (tuple(tensor.shape), *signs)
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
        # A classifier's pass
        # writes its problem_type there if it is given labels; only the loss reads that.
        said += re.sub(r'\n *"problem_type": .*', "", str(config.to_json_string()))
    return _mark(named_tensors(model), said)


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
