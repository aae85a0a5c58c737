"""Tags for the tensors of a pass: scores, weights or parameters, and the names of their axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor

from hookscope.interp.attentions.axes import FEATURES, SHAPE_ONLY, Axes, follow_view, is_all, make_axes, resize_axis
from hookscope.pytree import find_tensors

__all__ = [
    "FEATURES",
    "KEYS",
    "QUERIES",
    "Tag",
    "Tags",
    "are_channels",
    "are_merged",
    "arrange_weights",
    "name_axes",
    "name_softmax_axes",
    "transpose_last",
]

LEFT, RIGHT, QUERIES, KEYS = "left", "right", "queries", "keys"
_KINDS = ("weights", "scores", "channels", "noise")  # the result of several tensors gets the first kind of these


class Tag(NamedTuple):  # not a dataclass, which takes three times as long to make
    """The facts about one tensor.

    Attributes:
        axes: the parts of its axes.
        kind: "scores", a product of two activations; "weights", a softmax of scores; "channels", a product of features;
            "noise" of a dropout; a "parameter"; or "".
        dropped: the share of weights that dropout has set to 0.
        lifted: whether `unsqueeze(0)` added a leading axis to three others.
        softmax: the number of the softmax in the pass that made the weights, from 1.

    """

    axes: Axes
    kind: str = ""
    dropped: float = 0.0
    lifted: bool = False
    softmax: int = 0


class Tags:
    """The tags of the tensors of one pass, by id; every operation sets or removes the tags of its results.

    A weak reference tells a tensor from a later one with the same id, such as one by `torch.from_numpy`.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._held = list(parameters)  # so that no other tensor gets their ids
        self._parameters = set(map(id, self._held))
        self._tags: dict[int, tuple[Callable[[], Any], Tag]] = {}

    def get(self, tensor: Any) -> Tag:
        """Return the tag of a tensor, or a tag without a kind if it has none."""
        held = self._tags.get(id(tensor))
        if held is not None and held[0]() is tensor:
            if len(held[1].axes) == tensor.dim():
                return held[1]
            kind = ""
        else:
            kind = "parameter" if id(tensor) in self._parameters else ""
        return Tag((), kind) if tensor.is_nested else _make_tag(tensor.shape, kind)

    def set(self, tensor: Any, tag: Tag | None) -> None:
        """Set or remove the tag of a tensor."""
        if tag is None:
            self._tags.pop(id(tensor), None)
        elif isinstance(tensor, Tensor):
            self._tags[id(tensor)] = ref(tensor), tag

    def _find(self, tensor: Any) -> Tag | None:
        held = self._tags.get(id(tensor))
        return held[1] if held is not None and held[0]() is tensor else None

    def update_other(self, args: Sequence[Any], out: Any, resized: bool = False) -> None:
        """Set tags after any other operation: axes stay if the shape stays, or if some are only `resized`."""
        first = args[0] if args else None
        old = self._find(first)
        shape = first.shape if isinstance(first, Tensor) and not first.is_nested else None
        # The result of parameters alone counts as one: a norm of weights, a weight made of others.
        computed = self._is_parameter(first) and all(map(self._is_parameter, find_tensors(args)))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(each, Tensor):
                continue
            stays = not each.is_nested and (each.shape == shape or (resized and each.dim() == len(shape or ())))
            if computed and not each.is_nested:
                self.set(each, Tag(make_axes(each.shape), "parameter"))
            else:
                self.set(each, Tag(_fit_axes(old.axes, each.shape)) if stays and old is not None else None)

    def _is_parameter(self, tensor: Any) -> bool:
        if (tag := self._find(tensor)) is not None:
            return tag.kind == "parameter"
        return id(tensor) in self._parameters

    def update_elementwise(self, args: Sequence[Any], out: Any) -> None:
        """Set tags after an elementwise operation: scores stay scores, and weights stay weights."""
        known = marked = computed = False
        for arg in args:
            held = self._tags.get(id(arg))
            if held is not None and held[0]() is arg:
                known = True
                marked |= bool(held[1].kind or held[1].lifted)
            elif id(arg) in self._parameters:
                computed = True
        if not (known or computed):
            self.set(out, None)
            return
        if not marked and (first := self._find(args[0])) is not None and args[0].shape == out.shape:
            self.set(out, first)  # the common case
            return
        tags = [self.get(arg) for arg in args if isinstance(arg, Tensor) and arg.dim()]
        kind = _choose_kind(tags)
        if kind == "noise" and len(tags) > 1:
            kind = ""
        same = [tag for tag in tags if len(tag.axes) == out.dim()]
        lead = next((tag for tag in same if tag.kind == kind), same[0] if same else None)
        if lead is None:
            self.set(out, None)
            return
        axes = _fit_axes(lead.axes, out.shape)
        dropped = max([tag.dropped for tag in tags if kind and tag.kind in (kind, "noise")], default=0.0)
        self.set(out, Tag(axes, kind, dropped, softmax=_get_softmax(kind, tags)))

    def update_view(self, name: str, args: Sequence[Any], out: Any) -> None:
        """Set the tag after a view or a reshape."""
        first = args[0]
        if name == "cat":
            # torch.cat accepts an empty tensor with one axis beside any other, such as an empty cache.
            tags = [self.get(each) for each in first if each.dim() == out.dim()] or [Tag(make_axes(out.shape))]
            tag = tags[0]
            if len(tags) > 1 or tag.kind or tag.dropped or tag.lifted:
                kind = _choose_kind(tags)
                axes = next(tag for tag in tags if tag.kind == kind or not kind).axes
                tag = Tag(axes, kind, softmax=_get_softmax(kind, tags))
        else:
            tag = self.get(first)
        wanted = () if name in SHAPE_ONLY else tuple(map(_make_hashable, args[1:]))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if not each.is_nested:
                self.set(each, _view_tag(name, tag, each.shape, wanted))

    def update_features(self, out: Tensor, axis_number: int) -> None:
        """Set the tag after a linear layer or a convolution: one axis holds features."""
        self.set(out, _make_feature_tag(out.shape, axis_number))

    def update_product(self, a: Tag, b: Tag, out: Tensor, mixed: bool) -> None:
        """Set the tag after a matrix product: features with a parameter, else scores, unless weights `mixed` values."""
        if a.kind == b.kind == "parameter":
            self.set(out, Tag(make_axes(out.shape), "parameter"))
            return
        if "parameter" in (a.kind, b.kind) or mixed:
            self.set(out, _mix_tag(a.axes, None if b.kind == "parameter" else b.axes[-1], out.shape[-1]))
            return
        channels = are_channels(a.axes) and are_channels(transpose_last(b.axes))
        rows = [*a.axes[-2]]
        if len(a.axes) == 3 and are_merged(a.axes[-2], b.axes[-1]):
            rows = [(what if what == FEATURES else LEFT, size) for what, size in rows]
        elif len(a.axes) == 3:
            rows = [(LEFT, out.shape[-2])]
        elif rows:  # with two axes, samples and queries can share one
            rows[-1] = (LEFT, rows[-1][1])
        axes = (*a.axes[:-2], tuple(part for part in rows if part[1] != 1), resize_axis(((RIGHT, 0),), out.shape[-1]))
        self.set(out, Tag(axes, "channels" if channels else "scores"))

    def update_dropout(self, args: Sequence[Any], out: Any) -> None:
        """Set the tag after a dropout."""
        tag = self.get(args[0])
        self.set(out[0], Tag(tag.axes, tag.kind, args[1] if args[2] is not False else 0.0, softmax=tag.softmax))
        self.set(out[1], None)

    def update_noise(self, args: Sequence[Any], out: Tensor) -> None:
        """Set the tag after `bernoulli_`, which makes random zeros and ones."""
        kept = args[1] if len(args) > 1 else 0.5  # default arguments are not passed
        self.set(out, Tag(make_axes(out.shape), "noise", 1 - kept))


def are_merged(rows: tuple[tuple[str, int], ...], keys: tuple[tuple[str, int], ...]) -> bool:
    """Return whether heads and queries are merged into one axis, as in multi-query attention.

    Example:
        >>> are_merged(((FEATURES, 4), ("", 5)), (("", 5),))
        True

    """
    return len({what == FEATURES for what, _ in rows}) == 2 and all(what != FEATURES for what, _ in keys)


@lru_cache(1024)
def name_axes(axes: Axes) -> Axes:
    """Give each part of the leading axes a unique name, because later operations can reorder them."""
    return tuple(
        [
            tuple(
                [(f"{'heads' if what == FEATURES else 'batch'} {at}.{n}", size) for n, (what, size) in enumerate(axis)]
            )
            for at, axis in enumerate(axes)
        ]
    )


def name_softmax_axes(axes: Axes, axis_number: int) -> Axes | None:
    """Name the axes of a softmax of scores along one axis; None if queries cannot be told from keys."""
    sides = {what for what, _ in axes[axis_number] if what != FEATURES}
    if sides in ({LEFT}, {RIGHT}):
        (ours,) = sides
        theirs = RIGHT if ours == LEFT else LEFT
    elif axis_number == len(axes) - 1:  # without names: assume the usual layout
        ours = theirs = ""
    else:
        return None
    result = []
    for number, (axis, named) in enumerate(zip(axes, name_axes(axes), strict=True)):
        if number == axis_number:
            result.append(tuple((KEYS, size) for _, size in axis))
        elif not theirs and number == len(axes) - 2:
            result.append(tuple((QUERIES, size) for _, size in axis))
        else:
            pairs = zip(axis, named, strict=True)
            result.append(tuple((QUERIES, part[1]) if theirs and part[0] == theirs else name for part, name in pairs))
    return tuple(result)


def are_channels(axes: Axes) -> bool:
    """Return whether features attend to features, as in XCiT and other channel attention."""
    return is_all(axes[-2], FEATURES) and all(what != FEATURES for what, _ in axes[-1])


def transpose_last(axes: Axes) -> Axes:
    """Swap the last two axes."""
    return (*axes[:-2], axes[-1], axes[-2])


def arrange_weights(
    axes: Axes, weights: Tensor, guess: bool = False, samples: int = 0
) -> tuple[Tensor, tuple[str, ...]]:
    """Reorder weights to [batch, heads, queries, keys]: heads are parts of features, the rest is the batch.

    Args:
        axes: the named axes of `weights`.
        weights: the weights.
        guess: if no axis has heads, take the one before the queries.
        samples: the number of samples in the inputs; 0 if it is unknown.

    Returns:
        The weights, and notes about guesses.

    """
    plan = _plan_order(axes, weights.shape, guess, samples)
    if plan is None:
        note = "could not tell heads from samples, so the batch axis holds both"
        return weights.reshape(-1, 1, *weights.shape[-2:]), (note,)
    if not plan.in_order:
        weights = weights.reshape(plan.sizes).permute(plan.order)
    return (weights if weights.shape == plan.shape else weights.reshape(plan.shape)), plan.notes


class _Plan(NamedTuple):
    sizes: tuple[int, ...]  # of the parts
    order: tuple[int, ...]  # their order in the result
    in_order: bool  # whether they have this order already
    shape: tuple[int, ...]
    notes: tuple[str, ...]


@lru_cache(1024)
def _plan_order(axes: Axes, shape: Sequence[int], guess: bool, samples: int) -> _Plan | None:
    """Plan the order of the parts; None if they do not fit the shape."""
    parts = [(what, size) for axis in axes for what, size in axis]
    if multiply_sizes(parts) != math.prod(shape):
        return None
    names = [what for what, _ in parts]
    order = {kind: [n for n, what in enumerate(names) if what.startswith(kind)] for kind in ("batch", "heads")}
    for numbers in order.values():
        numbers.sort(key=names.__getitem__)
    last = [n for kind in (QUERIES, KEYS) for n, what in enumerate(names) if what == kind]
    notes: tuple[str, ...] = ()
    if not order["heads"] and guess:
        at = max((int(names[n].split(" ")[1].partition(".")[0]) for n in order["batch"]), default=0)
        if at:
            order["heads"] = [n for n in order["batch"] if names[n].startswith(f"batch {at}.")]
            order["batch"] = [n for n in order["batch"] if n not in order["heads"]]
            heads = multiply_sizes(parts[n] for n in order["heads"])
            if at > 1 or len(order["batch"]) > 1 or heads == samples > 1:
                layout = "the usual layout, (batch, heads, queries, keys)"
                notes = (f"could not tell which axis holds the heads; assumed {layout}",)
    elif not order["heads"] and order["batch"]:
        notes = ("found no axis for heads, so the weights count as one head",)
    batch, heads = (multiply_sizes(parts[n] for n in order[kind]) for kind in ("batch", "heads"))
    queries = multiply_sizes(parts[n] for n in last if names[n] == QUERIES)
    sizes = tuple(size for _, size in parts)
    wanted = (*order["batch"], *order["heads"], *last)
    in_order = wanted == tuple(range(len(sizes)))
    return _Plan(sizes, wanted, in_order, (batch, heads, queries, int(shape[-1])), notes)


def multiply_sizes(axis: Iterable[tuple[str, int]]) -> int:
    """Return the length of an axis with these parts."""
    length = 1
    for _, size in axis:
        length *= size
    return length


def _get_softmax(kind: str, tags: Sequence[Tag]) -> int:
    return next((tag.softmax for tag in tags if tag.softmax), 0) if kind == "weights" else 0


def _choose_kind(tags: Sequence[Tag]) -> str:
    kinds = {tag.kind for tag in tags}
    return next((kind for kind in _KINDS if kind in kinds), "parameter" if kinds == {"parameter"} else "")


@lru_cache(1024)
def _fit_axes(axes: Axes, shape: Sequence[int]) -> Axes:
    return tuple(
        [
            axis if multiply_sizes(axis) == size else resize_axis(axis, size)
            for axis, size in zip(axes, shape, strict=True)
        ]
    )


@lru_cache(4096)  # most layers of a model have the same shapes
def _view_tag(name: str, tag: Tag, shape: Sequence[int], rest: tuple[Any, ...]) -> Tag:
    lifted = name == "unsqueeze" and rest[0] == 0 and len(shape) == 4
    return Tag(follow_view(name, tag.axes, shape, *rest), tag.kind, tag.dropped, lifted, tag.softmax)


@lru_cache(1024)
def _mix_tag(axes: Axes, last: tuple[tuple[str, int], ...] | None, size: int) -> Tag:
    """Replace the last axis with another one, or with features."""
    return Tag((*axes[:-1], last if last is not None else ((FEATURES, size),) if size != 1 else ()))


@lru_cache(1024)
def _make_feature_tag(shape: Sequence[int], axis_number: int) -> Tag:
    axes = list(make_axes(shape))
    axes[axis_number] = ((FEATURES, shape[axis_number]),) if shape[axis_number] != 1 else ()
    return Tag(tuple(axes))


def _make_hashable(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


@lru_cache(1024)
def _make_tag(shape: Sequence[int], kind: str) -> Tag:
    return Tag(make_axes(shape), kind)
