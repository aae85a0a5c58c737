"""Know of each tensor of a pass whether it holds scores or weights of an attention, and what its axes are."""

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
_KINDS = ("weights", "scores", "channels", "noise")  # of several, the first that there is goes on


class Tag(NamedTuple):  # not a dataclass: many are made, and a frozen one takes three times as long
    """What is known of a tensor that is on its way.

    Attributes:
        axes: what its axes are made of.
        kind: "scores", products of two activations; "weights", a softmax of such; "logarithms" of weights; "channels",
            products of features; "noise" of a dropout; a "parameter"; or "".
        dropped: the share of weights that dropout has set to 0.
        lifted: whether a leading axis of 1 was put before three.
        softmax: of weights, which softmax of the pass they are, from 1.

    """

    axes: Axes
    kind: str = ""
    dropped: float = 0.0
    lifted: bool = False
    softmax: int = 0


class Tags:
    """The tags of the tensors of one pass, by id: every result of an operation gets a new one, or none.

    A tensor that no operation has made, as by `torch.from_numpy`, may get the id of one that is gone, and has no tag.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._held = list(parameters)  # or their ids might be used again
        self._parameters = set(map(id, self._held))
        self._tags: dict[int, tuple[Callable[[], Any], Tag]] = {}

    def get(self, tensor: Any) -> Tag:
        """Return what is known of a tensor."""
        held = self._tags.get(id(tensor))
        if held is not None and held[0]() is tensor:
            if len(held[1].axes) == tensor.dim():
                return held[1]
            kind = ""
        else:
            kind = "parameter" if id(tensor) in self._parameters else ""
        return Tag((), kind) if tensor.is_nested else _make_tag(tensor.shape, kind)

    def set(self, tensor: Any, tag: Tag | None) -> None:
        """Say what is known of a tensor from now on."""
        if tag is None:
            self._tags.pop(id(tensor), None)
        elif isinstance(tensor, Tensor):
            self._tags[id(tensor)] = ref(tensor), tag

    def _find(self, tensor: Any) -> Tag | None:
        held = self._tags.get(id(tensor))
        return held[1] if held is not None and held[0]() is tensor else None

    def update_other(self, args: Sequence[Any], out: Any, resized: bool = False) -> None:
        """After any other operation: where the shape stays, the axes do; also where one is only `resized`."""
        first = args[0] if args else None
        old = self._find(first)
        shape = first.shape if isinstance(first, Tensor) and not first.is_nested else None
        # What is made of parameters alone is one: a norm of weights, a weight made of others.
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
        """After an operation on each number: a score stays a score, a weight a weight."""
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
            self.set(out, first)  # as nearly always
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
        """After a view or a reshape."""
        first = args[0]
        if name == "cat":
            # An empty tensor of one axis may go with any, as an empty cache does.
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

    def update_features(self, out: Tensor, place: int) -> None:
        """After a linear layer or a convolution: one axis holds features."""
        self.set(out, _make_feature_tag(out.shape, place))

    def update_product(self, a: Tag, b: Tag, out: Tensor, mixed: bool) -> None:
        """After a matrix product: with a parameter it makes features, of two activations scores, unless it `mixed`."""
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
        elif rows:  # two axes: samples and queries may be one
            rows[-1] = (LEFT, rows[-1][1])
        axes = (*a.axes[:-2], tuple(part for part in rows if part[1] != 1), resize_axis(((RIGHT, 0),), out.shape[-1]))
        self.set(out, Tag(axes, "channels" if channels else "scores"))

    def update_dropout(self, args: Sequence[Any], out: Any) -> None:
        """After a dropout in one operation."""
        tag = self.get(args[0])
        self.set(out[0], Tag(tag.axes, tag.kind, args[1] if args[2] is not False else 0.0, softmax=tag.softmax))
        self.set(out[1], None)

    def update_noise(self, args: Sequence[Any], out: Tensor) -> None:
        """After random zeros and ones."""
        kept = args[1] if len(args) > 1 else 0.5  # what is as by default is not handed on
        self.set(out, Tag(make_axes(out.shape), "noise", 1 - kept))


def are_merged(rows: tuple[tuple[str, int], ...], keys: tuple[tuple[str, int], ...]) -> bool:
    """Whether heads and queries are in one axis, as where all heads share their keys.

    Example:
        >>> are_merged(((FEATURES, 4), ("", 5)), (("", 5),))
        True

    """
    return len({what == FEATURES for what, _ in rows}) == 2 and all(what != FEATURES for what, _ in keys)


@lru_cache(1024)
def name_axes(axes: Axes) -> Axes:
    """Name the parts of leading axes, each by a name of its own: what follows may put them into another order."""
    return tuple(
        [
            tuple(
                [(f"{'heads' if what == FEATURES else 'batch'} {at}.{n}", size) for n, (what, size) in enumerate(axis)]
            )
            for at, axis in enumerate(axes)
        ]
    )


def name_softmax_axes(axes: Axes, place: int) -> Axes | None:
    """Name the axes of a softmax of scores along the axis `place`; None if queries cannot be told from keys."""
    sides = {what for what, _ in axes[place] if what != FEATURES}
    if sides in ({LEFT}, {RIGHT}):
        (ours,) = sides
        theirs = RIGHT if ours == LEFT else LEFT
    elif place == len(axes) - 1:  # axes were not followed: by custom
        ours = theirs = ""
    else:
        return None
    result = []
    for number, (axis, named) in enumerate(zip(axes, name_axes(axes), strict=True)):
        if number == place:
            result.append(tuple((KEYS, size) for _, size in axis))
        elif not theirs and number == len(axes) - 2:
            result.append(tuple((QUERIES, size) for _, size in axis))
        else:
            pairs = zip(axis, named, strict=True)
            result.append(tuple((QUERIES, part[1]) if theirs and part[0] == theirs else name for part, name in pairs))
    return tuple(result)


def are_channels(axes: Axes) -> bool:
    """Whether what looks at each other are features, by what they are at all tokens: XCiT, channel attention."""
    return is_all(axes[-2], FEATURES) and all(what != FEATURES for what, _ in axes[-1])


def transpose_last(axes: Axes) -> Axes:
    """Exchange the last two axes."""
    return (*axes[:-2], axes[-1], axes[-2])


def arrange_weights(
    axes: Axes, weights: Tensor, custom: bool = False, samples: int = 0
) -> tuple[Tensor, tuple[str, ...]]:
    """Bring weights into [batch, heads, queries, keys]: heads are what was cut out of features, the rest is batch.

    Args:
        axes: the named axes of `weights`.
        weights: the weights.
        custom: if no axis is known to be heads, take the one before the queries.
        samples: how many went into the model; 0 if that is not known.

    Returns:
        The weights, and what there is to say about it.

    """
    plan = _plan_order(axes, weights.shape, custom, samples)
    if plan is None:
        note = "heads and samples could not be told apart; all are in the batch"
        return weights.reshape(-1, 1, *weights.shape[-2:]), (note,)
    if not plan.in_order:
        weights = weights.reshape(plan.sizes).permute(plan.order)
    return (weights if weights.shape == plan.shape else weights.reshape(plan.shape)), plan.notes


class _Plan(NamedTuple):
    sizes: tuple[int, ...]  # of the parts, in the order in which they are
    order: tuple[int, ...]  # in which they are wanted
    in_order: bool  # whether they are there in it
    shape: tuple[int, ...]
    notes: tuple[str, ...]


@lru_cache(1024)
def _plan_order(axes: Axes, shape: Sequence[int], custom: bool, samples: int) -> _Plan | None:
    """Say how weights of these axes get [batch, heads, queries, keys]; None if axes were not followed all the way."""
    parts = [(what, size) for axis in axes for what, size in axis]
    if multiply_sizes(parts) != math.prod(shape):
        return None
    names = [what for what, _ in parts]
    order = {kind: [n for n, what in enumerate(names) if what.startswith(kind)] for kind in ("batch", "heads")}
    for places in order.values():
        places.sort(key=names.__getitem__)
    last = [n for kind in (QUERIES, KEYS) for n, what in enumerate(names) if what == kind]
    notes: tuple[str, ...] = ()
    if not order["heads"] and custom:
        at = max((int(names[n].split(" ")[1].partition(".")[0]) for n in order["batch"]), default=0)
        if at:
            order["heads"] = [n for n in order["batch"] if names[n].startswith(f"batch {at}.")]
            order["batch"] = [n for n in order["batch"] if n not in order["heads"]]
            first, second = (multiply_sizes(parts[n] for n in order[kind]) for kind in ("batch", "heads"))
            if at > 1 or len(order["batch"]) > 1:
                notes = ("several axes before the queries, and none known to be cut out of features: heads by custom",)
            elif first == second == samples > 1:
                notes = ("as many heads as samples, and none known to be cut out of features: heads by custom",)
            elif second == samples > 1 and first != samples:
                notes = (
                    f"{first} in the batch and {second} heads, by custom, and {samples} samples went in: the model may "
                    "have heads first",
                )
    elif not order["heads"] and order["batch"]:
        notes = ("no axis was cut out of features: read as one head",)
    batch, heads = (multiply_sizes(parts[n] for n in order[kind]) for kind in ("batch", "heads"))
    queries = multiply_sizes(parts[n] for n in last if names[n] == QUERIES)
    sizes = tuple(size for _, size in parts)
    wanted = (*order["batch"], *order["heads"], *last)
    in_order = wanted == tuple(range(len(sizes)))
    return _Plan(sizes, wanted, in_order, (batch, heads, queries, int(shape[-1])), notes)


def multiply_sizes(axis: Iterable[tuple[str, int]]) -> int:
    """Say how long what consists of these parts is."""
    long = 1
    for _, size in axis:
        long *= size
    return long


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


@lru_cache(4096)  # the layers of a model are alike
def _view_tag(name: str, tag: Tag, shape: Sequence[int], rest: tuple[Any, ...]) -> Tag:
    lifted = name == "unsqueeze" and rest[0] == 0 and len(shape) == 4
    return Tag(follow_view(name, tag.axes, shape, *rest), tag.kind, tag.dropped, lifted, tag.softmax)


@lru_cache(1024)
def _mix_tag(axes: Axes, last: tuple[tuple[str, int], ...] | None, size: int) -> Tag:
    """Exchange the last axis for another one, or for features."""
    return Tag((*axes[:-1], last if last is not None else ((FEATURES, size),) if size != 1 else ()))


@lru_cache(1024)
def _make_feature_tag(shape: Sequence[int], place: int) -> Tag:
    axes = list(make_axes(shape))
    axes[place] = ((FEATURES, shape[place]),) if shape[place] != 1 else ()
    return Tag(tuple(axes))


def _make_hashable(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


@lru_cache(1024)
def _make_tag(shape: Sequence[int], kind: str) -> Tag:
    return Tag(make_axes(shape), kind)
