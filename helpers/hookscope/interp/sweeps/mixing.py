"""Follow what a change reaches in a pass, and see where one variant of a batch may reach another."""

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
_VALUES = ("numpy", "tolist")  # of a tensor, which no dispatch mode sees
_NEW = ("new_", "empty", "zeros", "ones", "full", "rand", "histc")
"""How operations begin that take of a tensor its shape or dtype; and what counts the tokens of each expert."""


class MixingDetector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the tensors that a change reaches, in a pass with several variants in one batch.

    In a batch, a variant gives what it gives alone if two things hold. First, Python reads no values that the change
    reaches, and no length depends on them: an `if` goes one way for all variants. Second, every tensor that the change
    reaches grows with the batch: one that does not, such as a maximum over all samples, is made of all variants.

    Args:
        names: the modules of the model, with their names.
        count: how many variants there are.
        other: the same of a pass with another number of variants, to compare the sizes.

    Attributes:
        why: why variants cannot share a batch; "" if nothing was found.
        count: as given.
        pausing: while it is true, nothing is followed.
        sizes: the operations on what is reached, with the number of elements that each returned.

    Example:
        >>> net, x = nn.Linear(2, 2), torch.ones(2, 2)
        >>> with MixingDetector({net: "net"}, 2).follow() as reach:
        ...     reach.begin(x)
        ...     _ = torch.relu(x) / x.shape[0]
        ...     reach.why
        ...     _ = bool(x.amax() > 0)
        ...     reach.why
        ''
        'Python reads values that the change reaches, as for an early exit (aten::_local_scalar_dense)'

    """

    def __init__(self, names: Mapping[nn.Module, str], count: int, other: MixingDetector | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.why, self.count, self._names, self.pausing = "", count, names, False
        self.sizes: list[tuple[Any, int]] = []
        self._other = other
        self._tracked: dict[int, weakref.ref[Any]] = {}  # memory of tensors, by its identity

    @contextmanager
    def follow(self) -> Iterator[MixingDetector]:
        """Follow while the block runs."""

        def seen(name: str) -> Any:
            plain = getattr(Tensor, name)

            def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                if self._is_tracked(tensor):
                    self._set_reason(f"{_READ} (Tensor.{name})")
                return plain(tensor, *args, **kwargs)

            return read

        with ExitStack() as stack:
            for name in _VALUES:  # Tensor has them from its base class
                setattr(Tensor, name, seen(name))
                stack.callback(delattr, Tensor, name)
            stack.enter_context(self)
            yield self

    def begin(self, tensor: Tensor) -> None:
        """Follow a tensor from here on."""
        memory = _get_storage(tensor)
        key = id(memory)
        self._tracked[key] = weakref.ref(memory, lambda _: self._tracked.pop(key, None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.pausing or not self._any_tracked(args if not kwargs else tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = func._schema.name
        if torch.Tag.data_dependent_output in func.tags or _has_dynamic_size(func, args):
            self._set_reason(f"{_READ} ({name})")
        returned = func(*args, **kwargs)
        if not name.partition("::")[2].startswith(_NEW):
            made = [returned] if isinstance(returned, Tensor) else find_tensors(returned)
            for each in made:
                self.begin(each)
            if made and not self.why:
                self._compare_sizes(func, made[0].numel())
        return returned

    def _is_tracked(self, tensor: Tensor) -> bool:
        return id(_get_storage(tensor)) in self._tracked

    def _any_tracked(self, given: Any) -> bool:
        # Most operations are given tensors and numbers: to take trees apart takes longer.
        for each in given:
            if isinstance(each, Tensor):
                if self._is_tracked(each):
                    return True
            elif isinstance(each, (list, tuple)) and self._any_tracked(each):
                return True
        return False

    def _compare_sizes(self, func: Any, size: int) -> None:
        place = len(self.sizes)
        self.sizes.append((func, size))
        if self._other is None:
            return
        known = self._other.sizes
        if place >= len(known) or known[place][0] is not func:
            self._set_reason(
                f"{self.count} variants make other operations than {self._other.count} ({func._schema.name})"
            )
        elif size * self._other.count != known[place][1] * self.count:
            self._set_reason(
                f"what {func._schema.name} returns does not grow in step with the batch, so samples may mix"
            )

    def _set_reason(self, why: str) -> None:
        """Note the first reason, with the layer that runs, by the frames that do."""
        frame, where = sys._getframe(), ""
        while frame is not None and not where and not self.why:
            module = frame.f_locals.get("self")
            where = self._names.get(module, "") if isinstance(module, nn.Module) else ""
            frame = frame.f_back  # type: ignore[assignment]
        self.why = self.why or why + (f", in layer {where!r}" if where else "")


def _has_dynamic_size(func: Any, args: Any) -> bool:
    """Whether values decide how long the result is; of an index only a mask does."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func is not torch.ops.aten.index.Tensor:
        return True
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])


def _get_storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a kind of tensor without
        return tensor
