"""Follow through views what each axis of a tensor is made of, so that heads, tokens and features are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "FEATURES",
    "SHAPE_ONLY",
    "Axes",
    "follow_view",
    "is_all",
    "is_view",
    "make_axes",
    "reshape_axes",
    "resize_axis",
]

# An axis is made of parts, outermost first: (what it is, how long). Axes of length 1 have none.
Axes = tuple[tuple[tuple[str, int], ...], ...]
FEATURES = "features"  # what a linear layer, a convolution or an embedding has computed; heads are cut out of it


def make_axes(shape: Sequence[int]) -> Axes:
    """Return axes of which nothing is known."""
    return tuple([(("", size),) if size != 1 else () for size in shape])


def reshape_axes(axes: Axes, shape: Sequence[int]) -> Axes:
    """Follow a reshape: parts are joined or cut as the new sizes want it; where they do not fit, nothing is known.

    Example:
        >>> x = (("", 2),), (("", 5),), ((FEATURES, 12),)
        >>> reshape_axes(x, (2, 5, 3, 4))[2:]
        ((('features', 3),), (('features', 4),))
        >>> reshape_axes(x, (10, 12))[0]
        (('', 2), ('', 5))

    """
    if 0 in shape:
        return make_axes(shape)
    parts = [part for axis in axes for part in axis]
    at, result = 0, []
    for size in shape:
        here, left = [], size
        while left > 1:
            if at == len(parts):
                return make_axes(shape)
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
                return make_axes(shape)
        result.append(tuple(here))
    return tuple(result)


def resize_axis(axis: tuple[tuple[str, int], ...], size: int) -> tuple[tuple[str, int], ...]:
    """Return what an axis is made of after it was made shorter or longer."""
    kinds = {what for what, _ in axis}
    return ((kinds.pop() if len(kinds) == 1 else "", size),) if size != 1 else ()


def is_all(axis: tuple[tuple[str, int], ...], what: str) -> bool:
    """Whether an axis is made of nothing else."""
    return bool(axis) and all(kind == what for kind, _ in axis)


def _permute(axes: Axes, shape: Sequence[int], order: Sequence[int], *_: Any) -> Axes:
    return tuple([axes[place] for place in order])


def _transpose(axes: Axes, shape: Sequence[int], first: int = 0, second: int = 1) -> Axes:
    swapped = list(axes)
    if swapped:
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _expand(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    new = len(shape) - len(axes)
    old = ((),) * new + axes
    return tuple([was or ((("", size),) if size != 1 else ()) for was, size in zip(old, shape, strict=True)])


def _unsqueeze(axes: Axes, shape: Sequence[int], place: int) -> Axes:
    place %= len(shape)
    return (*axes[:place], (), *axes[place:])


def _select(axes: Axes, shape: Sequence[int], place: int = 0, *_: Any) -> Axes:
    place %= len(axes)
    return axes[:place] + axes[place + 1 :]


def _slice(axes: Axes, shape: Sequence[int], place: int = 0, *_: Any) -> Axes:
    place %= len(shape)
    return (*axes[:place], resize_axis(axes[place], shape[place]), *axes[place + 1 :])


def _split(axes: Axes, shape: Sequence[int], _: Any = None, place: int = 0) -> Axes:
    return _slice(axes, shape, place)


def _reshape(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    return reshape_axes(axes, shape)


def _forget(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    return make_axes(shape)


_VIEWS: dict[str, Callable[..., Axes]] = {
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "unsqueeze": _unsqueeze,
    "squeeze": _reshape,
    "select": _select,
    "unbind": _select,
    "slice": _slice,
    "cat": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "_reshape_alias": _reshape,
    "repeat_interleave": _forget,
}
SHAPE_ONLY = {name for name, through in _VIEWS.items() if through in (_reshape, _expand, _forget)}


def is_view(name: str) -> bool:
    """Whether an operation of that name in aten is_view axes, and does no more."""
    return name in _VIEWS


def follow_view(name: str, axes: Axes, shape: Sequence[int], *rest: Any) -> Axes:
    """Say what the axes are after an operation that is_view them.

    Args:
        name: its name in aten.
        axes: before it.
        shape: after it.
        *rest: what else it was called with; nothing is needed of what is `SHAPE_ONLY`.

    """
    return _VIEWS[name](axes, shape, *rest)
