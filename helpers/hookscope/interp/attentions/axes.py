"""Follow axes through views and reshapes, to find heads, tokens and features."""

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

# An axis has parts, outermost first: (name, size). An axis of length 1 has none.
Axes = tuple[tuple[tuple[str, int], ...], ...]
FEATURES = "features"  # the output of a linear layer, a convolution or an embedding; heads are parts of it


def make_axes(shape: Sequence[int]) -> Axes:
    """Return axes without names."""
    return tuple([(("", size),) if size != 1 else () for size in shape])


def reshape_axes(axes: Axes, shape: Sequence[int]) -> Axes:
    """Follow a reshape: join or split parts to get the new sizes; if they do not fit, return axes without names.

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
        parts_of_axis, left = [], size
        while left > 1:
            if at == len(parts):
                return make_axes(shape)
            what, length = parts[at]
            if left % length == 0:
                parts_of_axis.append((what, length))
                left //= length
                at += 1
            elif length % left == 0:
                parts_of_axis.append((what, left))
                parts[at] = (what, length // left)
                left = 1
            else:
                return make_axes(shape)
        result.append(tuple(parts_of_axis))
    return tuple(result)


def resize_axis(axis: tuple[tuple[str, int], ...], size: int) -> tuple[tuple[str, int], ...]:
    """Return the parts of an axis whose length changed."""
    kinds = {what for what, _ in axis}
    return ((kinds.pop() if len(kinds) == 1 else "", size),) if size != 1 else ()


def is_all(axis: tuple[tuple[str, int], ...], what: str) -> bool:
    """Return whether all parts of an axis have this name."""
    return bool(axis) and all(kind == what for kind, _ in axis)


def _permute(axes: Axes, shape: Sequence[int], order: Sequence[int], *_: Any) -> Axes:
    return tuple([axes[axis] for axis in order])


def _transpose(axes: Axes, shape: Sequence[int], first: int = 0, second: int = 1) -> Axes:
    swapped = list(axes)
    if swapped:
        swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _expand(axes: Axes, shape: Sequence[int], *_: Any) -> Axes:
    new = len(shape) - len(axes)
    old = ((),) * new + axes
    return tuple([was or ((("", size),) if size != 1 else ()) for was, size in zip(old, shape, strict=True)])


def _unsqueeze(axes: Axes, shape: Sequence[int], axis: int) -> Axes:
    axis %= len(shape)
    return (*axes[:axis], (), *axes[axis:])


def _select(axes: Axes, shape: Sequence[int], axis: int = 0, *_: Any) -> Axes:
    axis %= len(axes)
    return axes[:axis] + axes[axis + 1 :]


def _slice(axes: Axes, shape: Sequence[int], axis: int = 0, *_: Any) -> Axes:
    axis %= len(shape)
    return (*axes[:axis], resize_axis(axes[axis], shape[axis]), *axes[axis + 1 :])


def _split(axes: Axes, shape: Sequence[int], _: Any = None, axis: int = 0) -> Axes:
    return _slice(axes, shape, axis)


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
    """Return whether an operation, by its name in aten, only moves axes."""
    return name in _VIEWS


def follow_view(name: str, axes: Axes, shape: Sequence[int], *rest: Any) -> Axes:
    """Return the axes after an operation that moves them.

    Args:
        name: the name of the operation in aten.
        axes: the axes before it.
        shape: the shape after it.
        *rest: its other arguments; operations in `SHAPE_ONLY` need none.

    """
    return _VIEWS[name](axes, shape, *rest)
