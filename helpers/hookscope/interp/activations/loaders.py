"""Find out whether a loader shuffles, and how many samples it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hookscope.interp.activations.sample_axes import count_samples

__all__ = ["chain_batches", "count_loader_samples", "shuffles"]


def shuffles(drawing: object) -> bool:
    """Return whether a loader or sampler shuffles, either itself or through the sampler inside it.

    Example:
        >>> data = list(range(4))
        >>> shuffles(DataLoader(data)), shuffles(DataLoader(data, shuffle=True))
        (False, True)

    """
    if isinstance(drawing, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        return True
    inside = (getattr(drawing, name, None) for name in ("sampler", "batch_sampler"))
    return any(shuffles(each) for each in inside if each is not None)


def count_loader_samples(loader: Any) -> int | None:
    """Return how many samples a loader has, or None if this is unknown.

    Example:
        >>> count_loader_samples(DataLoader(list(range(5)), batch_size=2)), count_loader_samples(iter([1, 2]))
        (5, None)

    """
    try:
        if isinstance(loader, DataLoader) and loader.batch_size is not None:
            return len(loader) * loader.batch_size if loader.drop_last else len(loader.sampler)  # type: ignore[arg-type]
        if isinstance(loader, tuple | list):
            return sum(map(count_samples, loader))
    except TypeError:
        pass
    return None


def chain_batches(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    """Yield the first batch and then the others, without keeping a reference to the first."""
    yield first
    del first  # a batch can be large
    yield from others
