"""Find out whether the variants of a batch can reach each other, by following a change through a pass."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hookscope.pytree import find_tensors

__all__ = ["MixingDetector"]

_READ = "Python reads values that the change reaches, as for an early exit"
_READERS = ("numpy", "tolist")  # methods of a tensor that no dispatch mode sees
# Prefixes of operations that use only the shape or dtype of a tensor; histc counts the tokens of each expert.
_UNRELATED = ("new_", "empty", "zeros", "ones", "full", "rand", "histc")


class MixingDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors that a change reaches, in a pass with several variants in one batch.

    A variant gives the same result in a batch as alone if two conditions hold. First, Python reads no values that the
    change reaches, and no shape depends on them, so an `if` takes one branch for all variants. Second, every tensor
    that the change reaches grows with the batch. A maximum over all samples does not, because it combines variants.

    Args:
        names: the modules of the model, with their names.
        count: the number of variants.
        other: the detector of a pass with another number of variants, to compare the sizes.

    Attributes:
        why: why variants cannot share a batch; "" if nothing was found.
        count: as given.
        pausing: if true, nothing is followed.
        sizes: the operations on tensors that the change reaches, with the number of elements that each returned.

    Example:
        >>> net, x = nn.Linear(2, 2), torch.ones(2, 2)
        >>> with MixingDetector({net: "net"}, 2).follow() as detector:
        ...     detector.begin(x)
        ...     _ = bool(x.amax() > 0)
        ...     detector.why
        'Python reads values that the change reaches, as for an early exit (aten::_local_scalar_dense)'

    """

    def __init__(self, names: Mapping[nn.Module, str], count: int, other: MixingDetector | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.why, self.count, self._names, self.pausing = "", count, names, False
        self.sizes: list[tuple[Any, int]] = []
        self._other = other
        self._tracked: dict[int, weakref.ref[Any]] = {}  # storages, by id

    @contextmanager
    def follow(self) -> Iterator[MixingDetector]:
        """Follow all operations in the block."""

        def watch(name: str) -> Any:
            plain = getattr(Tensor, name)

            def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                if self._is_tracked(tensor):
                    self._set_reason(f"{_READ} (Tensor.{name})")
                return plain(tensor, *args, **kwargs)

            return read

        with ExitStack() as stack:
            for name in _READERS:  # Tensor inherits them, so deleting the attribute restores them
                setattr(Tensor, name, watch(name))
                stack.callback(delattr, Tensor, name)
            stack.enter_context(self)
            yield self

    def begin(self, tensor: Tensor) -> None:
        """Follow a tensor from now on."""
        storage = _get_storage(tensor)
        key = id(storage)
        self._tracked[key] = weakref.ref(storage, lambda _: self._tracked.pop(key, None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.pausing or not self._any_tracked(args if not kwargs else tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = func._schema.name
        if torch.Tag.data_dependent_output in func.tags or _has_dynamic_size(func, args):
            self._set_reason(f"{_READ} ({name})")
        returned = func(*args, **kwargs)
        if not name.partition("::")[2].startswith(_UNRELATED):
            made = [returned] if isinstance(returned, Tensor) else find_tensors(returned)
            for each in made:
                self.begin(each)
            if made and not self.why:
                self._compare_sizes(func, made[0].numel())
        return returned

    def _is_tracked(self, tensor: Tensor) -> bool:
        return id(_get_storage(tensor)) in self._tracked

    def _any_tracked(self, given: Any) -> bool:
        # Most arguments are tensors and numbers; flattening a tree takes longer.
        for each in given:
            if isinstance(each, Tensor):
                if self._is_tracked(each):
                    return True
            elif isinstance(each, (list, tuple)) and self._any_tracked(each):
                return True
        return False

    def _compare_sizes(self, func: Any, size: int) -> None:
        number = len(self.sizes)
        self.sizes.append((func, size))
        if self._other is None:
            return
        known, name = self._other.sizes, func._schema.name
        if number >= len(known) or known[number][0] is not func:
            self._set_reason(f"{self.count} variants run different operations than {self._other.count} do ({name})")
        elif size * self._other.count != known[number][1] * self.count:
            self._set_reason(f"the output of {name} does not grow in step with the batch, so samples might mix")

    def _set_reason(self, why: str) -> None:
        """Set the first reason, and name the layer that is running: the innermost `self` on the stack."""
        frame, layer = sys._getframe(), ""
        while frame is not None and not layer and not self.why:
            module = frame.f_locals.get("self")
            layer = self._names.get(module, "") if isinstance(module, nn.Module) else ""
            frame = frame.f_back  # type: ignore[assignment]
        self.why = self.why or why + (f", in layer {layer!r}" if layer else "")


def _has_dynamic_size(func: Any, args: Any) -> bool:
    """Return whether the size of the result depends on values; in indexing, only a mask has this effect."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func is not torch.ops.aten.index.Tensor:
        return True
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])


def _get_storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a tensor subclass without a storage
        return tensor
