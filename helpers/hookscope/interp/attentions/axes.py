"""Follow through views what each axis of a tensor is made of, so that heads, tokens and features are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["BY_SHAPE", "FEATURES", "Axes", "cut", "followed", "is_all", "moves", "plain", "regroup"]

# An axis is made of parts, outermost first: (what it is, how long). Axes of length 1 have none.
Axes = tuple[tuple[tuple[str, int], ...], ...]
FEATURES = "features"  # what a linear layer, a convolution or an embedding has computed; heads are cut out of it


def plain(shape: Sequence[int]) -> Axes:
    """Return axes of which nothing is known."""
    return tuple([(("", size),) if size != 1 else () for size in shape])


def regroup(axes: Axes, shape: Sequence[int]) -> Axes:
    """Follow a reshape: parts are joined or cut as the new sizes want it; where they do not fit, nothing is known.

    Example:
        >>> x = (("", 2),), (("", 5),), ((FEATURES, 12),)
        >>> regroup(x, (2, 5, 3, 4))[2:]
        ((('features', 3),), (('features', 4),))
        >>> regroup(x, (10, 12))[0]
        (('', 2), ('', 5))

    """
    if 0 in shape:
        return plain(shape)
    parts = [part for axis in axes for part in axis]
    at, result = 0, []
    for size in shape:
        here, left = [], size
        while left > 1:
            if at == len(parts):
                return plain(shape)
            what, long = parts[at]
            if left % long == 0:
                here.append((what, long))
                left //= long
                at += 1
            elif long % left == 0:
                here.append((what, left))
                parts[at] = (what, long // left)
                left = 1
            else:
                return plain(shape)
        result.append(tuple(here))
    return tuple(result)


def cut(axis: tuple[tuple[str, int], ...], size: int) -> tuple[tuple[str, int], ...]:
    """Return what an axis is made of after it was made shorter or longer."""
    kinds = {what for what, _ in axis}
    return ((kinds.pop() if len(kinds) == 1 else "", size),) if size != 1 else ()


def is_all(axis: tuple[tuple[str, int], ...], what: str) -> bool:
    """Whether an axis is made of nothing else."""
    return bool(axis) and all(kind == what for kind, _ in axis)


def _permuted(axes: Axes, shape: Sequence[int], order: Sequence[int], *_: Any) -> Axes:
    return tuple([axes[place] for place in order])


def _transposed(axes: Axes, shape: Sequence[int], first: int = 0, second: int = 1) -> Axes:
    swapped = list(axes)
    if swapped:
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _expanded(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    new = len(shape) - len(axes)
    old = ((),) * new + axes
    return tuple([was or ((("", size),) if size != 1 else ()) for was, size in zip(old, shape, strict=True)])


def _unsqueezed(axes: Axes, shape: Sequence[int], place: int) -> Axes:
    place %= len(shape)
    return (*axes[:place], (), *axes[place:])


def _selected(axes: Axes, shape: Sequence[int], place: int = 0, *_: Any) -> Axes:
    place %= len(axes)
    return axes[:place] + axes[place + 1 :]


def _sliced(axes: Axes, shape: Sequence[int], place: int = 0, *_: Any) -> Axes:
    place %= len(shape)
    return (*axes[:place], cut(axes[place], shape[place]), *axes[place + 1 :])


def _split(axes: Axes, shape: Sequence[int], _: Any = None, place: int = 0) -> Axes:
    return _sliced(axes, shape, place)


def _reshaped(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    return regroup(axes, shape)


def _unknown(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    return plain(shape)


_THROUGH: dict[str, Callable[..., Axes]] = {
    "permute": _permuted,
    "transpose": _transposed,
    "t": _transposed,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _reshaped,
    "select": _selected,
    "unbind": _selected,
    "slice": _sliced,
    "cat": _sliced,
    "split": _split,
    "split_with_sizes": _split,
    "view": _reshaped,
    "_unsafe_view": _reshaped,
    "_reshape_alias": _reshaped,
    "repeat_interleave": _unknown,
}
BY_SHAPE = {name for name, through in _THROUGH.items() if through in (_reshaped, _expanded, _unknown)}


def moves(name: str) -> bool:
    """Whether an operation of that name in aten moves axes, and does no more."""
    return name in _THROUGH


def followed(name: str, axes: Axes, shape: Sequence[int], *rest: Any) -> Axes:
    """Say what the axes are after an operation that moves them.

    Args:
        name: its name in aten.
        axes: before it.
        shape: after it.
        *rest: what else it was called with; nothing is needed of what is `BY_SHAPE`.

    """
    return _THROUGH[name](axes, shape, *rest)
