"""Look inside the tensors that the transforms of `torch.func` wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["is_wrapped", "unwrap"]

is_wrapped: Callable[[Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False
)


@contextmanager
def unwrap(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor inside a tensor of `torch.func`, with all transforms switched off.

    The wrapper itself is of no use once its transform is over. Under `torch.vmap` what is inside are all samples at
    once; their axis comes first.

    Example:
        >>> shapes = []
        >>> def look(x):
        ...     with unwrap(x) as inside:
        ...         shapes.append(inside.shape)
        ...     return x
        >>> _ = torch.vmap(look, in_dims=1)(torch.ones(2, 3))
        >>> shapes
        [torch.Size([3, 2])]

    """
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    axes: list[int] = list(range(tensor.dim()))
    mapped = 0
    while is_wrapped(tensor):
        axis = torch._C._functorch.maybe_get_bdim(tensor)
        if axis >= 0:
            mapped += 1
            axes.insert(axis, -mapped)
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with temporarily_clear_interpreter_stack():
        yield tensor.permute(sorted(range(len(axes)), key=axes.__getitem__)) if mapped else tensor
