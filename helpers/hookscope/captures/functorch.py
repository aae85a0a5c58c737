"""Recognize the tensors that the transforms of `torch.func` wrap, which cannot be used outside the transform."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["UNDER_TRANSFORM", "is_under_vmap", "is_wrapped"]

is_wrapped: Callable[[Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False
)

UNDER_TRANSFORM = (
    "it ran under a transform of torch.func, such as vmap or grad. Its tensors cannot be used outside the transform, "
    "so they are not captured. Call the model with the whole batch instead"
)


def is_under_vmap(tensor: Tensor) -> bool:
    """Return whether `torch.vmap` hides an axis of a tensor."""
    while is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False
