"""Memory into which captures that are gone had copied waits for the next capture of their model, within bounds."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call, Slot, Wanted
from hookscope.captures.pool import Pool
from hookscope.captures.writes import expected

__all__ = ["give", "held", "pool_of", "release_memory"]

_MOST = 1 << 30  # bytes that all pools together hold
_FREE = 0.1  # of the machine's memory that must stay available
_pools: weakref.WeakKeyDictionary[nn.Module, Pool] = weakref.WeakKeyDictionary()


def pool_of(model: nn.Module) -> Pool:
    """Return the pool that all captures of a model share; it goes with the model."""
    return _pools.setdefault(model, Pool())


def held() -> int:
    """Count the bytes that all pools together hold."""
    return sum(pool.nbytes() for pool in list(_pools.values()))


def release_memory() -> int:
    """Give back the memory into which captures that are gone had copied; it waits for the next one of their model.

    At most 1 GiB waits so, until the next block of a capture of the same model ends or the model is gone, and none
    where less than a tenth of the machine's memory, or of the container's, would stay available.

    Returns:
        How many bytes were given back.

    Example:
        >>> from hookscope import capture
        >>> net = nn.Linear(4, 1000)
        >>> with torch.no_grad(), capture(net, keep="copies") as seen:
        ...     _ = net(torch.ones(2, 4))
        >>> del seen
        >>> release_memory(), release_memory()
        (8000, 0)

    """
    found = held()
    for pool in list(_pools.values()):
        pool.clear()
    return found


def _watched() -> bool:
    """Whether operations go to something else than torch now: this may run in the middle of anything."""
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    return bool(
        torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        or torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        or retrieve_all_functorch_interpreters()
    )


def _available() -> float:
    """Count the bytes that may be held before memory gets short; infinite where the machine does not say."""
    room = float("inf")
    with suppress(OSError, ValueError):
        words = _read("/proc/meminfo").split()
        total, free = (1024 * int(words[words.index(name) + 1]) for name in (b"MemTotal:", b"MemAvailable:"))
        room = free - _FREE * total
    with suppress(OSError, ValueError):  # a container's
        limit, used = int(_read("/sys/fs/cgroup/memory.max")), int(_read("/sys/fs/cgroup/memory.current"))
        room = min(room, (1 - _FREE) * limit - used)
    return room


def _read(file: str) -> bytes:
    # At once, and of /proc/meminfo, which is long, the beginning: this is asked after each block.
    with Path(file).open("rb", buffering=0) as opened:
        return opened.read(256)


def give(calls: Iterable[Call], wanted: Wanted, into: weakref.ref[nn.Module]) -> None:
    """Offer to the pool what a capture has kept that nobody holds any more and a next pass will copy again.

    What it will share is freed: the model's own next pass writes there.

    Args:
        calls: what it has kept.
        wanted: what it was to keep.
        into: the model that was captured, to whose pool it goes.

    """
    if (model := into()) is None or _watched():
        return
    at_once, pool = expected(model), pool_of(model)
    copied = list(calls) if wanted.copies else [call for call in calls if call.label in at_once] if at_once else []
    room = min(_MOST - held(), _available()) if copied else 0
    with torch.inference_mode(False), suppress(RuntimeError):
        for call in copied:
            for slot in call.slots():
                if not isinstance(slot.value, Tensor) or _holders(slot) > _ALONE:
                    continue  # it is no tensor, or somebody has asked for it and kept it
                value = slot.value
                if value.nbytes <= room:
                    room -= value.nbytes
                    pool.offer(value)


def _holders(slot: Slot) -> int:
    """Count who holds a slot's value, with the slot and what it takes to count them: less since Python 3.14."""
    value = slot.value
    return sys.getrefcount(value)


_ALONE = _holders(Slot(torch.empty(0, device="cpu"), False, None))
