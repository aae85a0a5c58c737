"""Keep a tensor's values as they are now, for the price of a copy only if somebody writes to it later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from hookscope.layers import Modules

__all__ = [
    "Foreign",
    "is_ordinary",
    "is_wrapped",
    "keep",
    "lazy_clone",
    "lazy_clone_works",
    "readable",
    "same_memory",
    "share",
    "shares_memory",
    "storage_of",
    "unwrapped",
]

_PLAIN = (Tensor, nn.Parameter)


def _ask_lazy_clone() -> bool:
    try:
        original = torch.zeros(2, device="cpu")
        kept = original._lazy_clone()
        original.view(-1)[:1].add_(1)
        return bool((kept == 0).all()) and bool((original == torch.tensor([1.0, 0.0], device="cpu")).all())
    except (AttributeError, RuntimeError):
        return False


# Asked as this is imported: in the first pass, torch.func, torch.export or a tracer may stand between us and torch.
_LAZY_CLONE_WORKS = _ask_lazy_clone()


def lazy_clone_works() -> bool:
    """Whether this torch has copy-on-write storages, and they do what they should (torch 2.4 to 2.15 do)."""
    return _LAZY_CLONE_WORKS


is_wrapped: Callable[[Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False
)


class Foreign:
    """Memory whose address must stay what it is, since others know it.

    Of parameters, buffers and tensors in plain attributes, which a NumPy array may share, and of what a caller gave.
    """

    def __init__(self, model: nn.Module, given: Iterable[Tensor] = ()) -> None:
        self._model, self._given, self._alone = model, list(given), _uses_by_two()

    @cached_property
    def _ids(self) -> set[int]:
        found = set(map(id, self._given))
        for module in Modules(self._model).names:  # those of now; faster than parameters() and buffers()
            found.update(map(id, module._parameters.values()), map(id, module._buffers.values()))
        found.update(map(id, self._attributes))
        return found

    @cached_property
    def _attributes(self) -> list[Tensor]:
        held = (module.__dict__ for module in Modules(self._model).names)
        return [value for own in held for value in own.values() if type(value) is Tensor]

    @cached_property
    def _storages(self) -> set[int | None]:
        own = (*self._model.parameters(), *self._model.buffers())
        return {storage_of(tensor) for tensor in (*self._given, *own, *self._attributes)}

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether this is one of them."""
        return storage._cdata in self._storages

    def has_that_of(self, tensor: Tensor, storage: torch.UntypedStorage) -> bool:
        """Whether this is, which is the storage of `tensor` and of one alias of it."""
        # Memory that nobody knows but these two and `storage` is foreign only if the tensor itself is. To ask so is
        # several times cheaper than to look up the storages of all parameters.
        return id(tensor) in self._ids if _use_count(storage._cdata) <= self._alone else self.has(storage)


_use_count: Callable[[int], float] = getattr(torch._C, "_storage_Use_Count", lambda cdata: math.inf)


@cache
def _uses_by_two() -> float:
    """Count, as this torch does, the uses of a storage that a tensor, one alias of it and no other share.

    Returns:
        What `_use_count` says of such a storage; 0, which it says of none, if a third tensor makes no difference to it.

    """
    tensor = torch.zeros(1, device="cpu")
    alias = tensor.detach()
    storage = alias.untyped_storage()
    count = _use_count(storage._cdata)
    third = tensor.detach()
    return count if _use_count(third.untyped_storage()._cdata) > count else 0


_uses_by_two()  # as with `_LAZY_CLONE_WORKS`


def keep(tensor: Tensor, foreign: Foreign | None = None) -> Tensor:
    """Return a tensor that holds today's values of `tensor`, whatever is done to `tensor` afterwards.

    torch marks the storage copy-on-write (`Tensor._lazy_clone`): both tensors share it until an operation, in
    Python or in C++, is about to write to one of them, and only then is it copied. Where that is not possible
    the values are copied at once: storages that torch does not own (NumPy's, shared memory), sparse, quantized
    and nested tensors, subclasses, small parts of a large storage, and `foreign` storages.

    Not seen are writes through an alias that bypasses torch, such as a NumPy array that was made of `tensor`
    before this call.

    Args:
        tensor: any tensor; it is neither changed nor detached.
        foreign: memory that must not be marked, since it would move when it is written to.

    Returns:
        A detached tensor of the same shape, dtype, device and values. One made in `torch.inference_mode` has to
        go through `readable` before autograd can use it.

    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    copy = lazy_clone(tensor, foreign)
    return tensor.clone() if copy is None else copy


def lazy_clone(tensor: Tensor, foreign: Foreign | None = None) -> Tensor | None:
    """Return a copy-on-write copy of a detached tensor, or None where that is not possible, see `keep`."""
    special = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or is_wrapped(tensor)
    if special or type(tensor) not in _PLAIN or not lazy_clone_works():
        return None
    storage = tensor.untyped_storage()
    if foreign is not None and foreign.has(storage):
        return None
    return _lazy_clone_of(tensor, storage)


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is dense, on the CPU and in no way special, as nearly all are.

    Example:
        >>> is_ordinary(torch.ones(1)), is_ordinary(torch.ones(1).to_sparse()), is_ordinary(nn.Linear(1, 1).weight)
        (True, False, False)

    """
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_inference() or is_wrapped(tensor))
    )


def share(tensor: Tensor, alias: Tensor, foreign: Foreign) -> Tensor | None:
    """Do what `lazy_clone` does in fewer steps, where it works and `tensor` is ordinary.

    Args:
        tensor: any tensor that `is_ordinary`.
        alias: `tensor.detach()`, of which there must be no other yet.
        foreign: memory that must not be marked.

    """
    storage = alias.untyped_storage()
    return None if foreign.has_that_of(tensor, storage) else _lazy_clone_of(alias, storage)


def _lazy_clone_of(tensor: Tensor, storage: torch.UntypedStorage) -> Tensor | None:
    if storage.nbytes() > 2 * tensor.nbytes:  # a small part of much memory, which would stay with it
        return None
    try:
        return tensor._lazy_clone()
    except RuntimeError:  # torch does not own this memory
        return None


@contextmanager
def unwrapped(tensor: Tensor) -> Iterator[Tensor]:
    """Give, outside of all transforms, what is inside a tensor of `torch.func`.

    The wrapper itself is of no use once its transform is over. Under `torch.vmap` what is inside are all samples at
    once; their axis comes first.

    Example:
        >>> shapes = []
        >>> def look(x):
        ...     with unwrapped(x) as inside:
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


def readable(tensor: Tensor) -> Tensor:
    """Return an ordinary tensor for one that `keep` made in inference mode; any other as it is."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def shares_memory(kept: object) -> bool:
    """Whether what `keep` returned still shares its memory with the original, as far as torch lets us know."""
    is_cow = getattr(torch._C, "_is_cow_tensor", None)
    return is_cow is not None and isinstance(kept, Tensor) and kept.layout is torch.strided and bool(is_cow(kept))


def same_memory(kept: Tensor, tensor: Tensor) -> bool:
    """Whether a copy-on-write copy and a tensor begin at the same address, so that neither has been written to."""
    if not (shares_memory(kept) and shares_memory(tensor)):
        return False
    address: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]
    return address(kept) == address(tensor)  # not data_ptr(), which would make the copy


def storage_of(tensor: Tensor) -> int | None:
    """Identify the memory behind a tensor, for as long as it lives; None where there is no such thing."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError, ValueError):  # ValueError: an uninitialized parameter
        return None
