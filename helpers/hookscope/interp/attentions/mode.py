"""See every attention call of a pass in what torch computes, without a hook on the model."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hookscope.interp.attentions import recompute
from hookscope.interp.attentions.axes import Axes, is_all, is_view
from hookscope.interp.attentions.operations import (
    ELEMENTWISE,
    POOLINGS,
    PRODUCTS,
    SOFTMAXES,
    get_op_name,
    is_composite,
    name_arguments,
)
from hookscope.interp.attentions.recompute import CheckedWeights
from hookscope.interp.attentions.tags import (
    FEATURES,
    KEYS,
    QUERIES,
    Tag,
    Tags,
    are_channels,
    are_merged,
    arrange_weights,
    name_axes,
    name_softmax_axes,
    transpose_last,
)

__all__ = ["AttentionCall", "AttentionMode", "HeavyError", "OtherFindings", "format_bytes"]

SDPA = "scaled_dot_product_attention"
BY_HAND = "softmax, then a product"
FUSED = "fused nn.MultiheadAttention"
FUSED_LAYER = "fused nn.TransformerEncoderLayer"

Rule = Callable[["AttentionMode", Any, Sequence[Any], Mapping[str, Any], Any], None]


class HeavyError(Exception):
    """More maps than there is room for may come; raised before the first of them is made."""


@dataclass
class AttentionCall:
    """One attention call: its weights, [batch, heads, queries, keys], and how far they were checked."""

    layer: str
    weights: Tensor
    error: float | None
    bound: float
    by: str
    dropped: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass
class OtherFindings:
    """What was seen besides attention of tokens, each with the layer: it says why there may be no map."""

    channels: Counter[str] = field(default_factory=Counter)
    softmaxes: Counter[str] = field(default_factory=Counter)  # of what is no product of two activations
    unused: dict[int, str] = field(default_factory=dict)  # by number, of such a product, but it met no values
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)


class AttentionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation of a pass; finds attention, in one operation or in a softmax between two products.

    It stands below autograd. So it sees what C++ calls, too, and does not switch a fused path off, as hooks or a
    `TorchFunctionMode` would. Nothing is registered on a model: the name of a layer is that of the innermost `self` on
    the stack.

    Args:
        names: module -> name.
        held: the model's parameters and buffers.
        max_bytes: how much the maps may take.
        samples: how many go into the model; 0 if that is not known.
        counting: only add up the bytes, as with fake tensors.
        heavy: given the bytes of the first map and its module, say whether all may be too many.

    """

    supports_higher_order_operators = True  # flex attention is one, and would raise (asked since torch 2.9)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Let torch not import the compiler, and not ask it at every operation: nothing is compiled meanwhile."""
        return False

    def __init__(
        self,
        names: Mapping[nn.Module, str],
        held: Iterable[Tensor],
        max_bytes: float,
        samples: int = 0,
        counting: bool = False,
        heavy: Callable[[int, nn.Module], bool] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _see_higher_order_operators()
        self.found: list[AttentionCall] = []
        self.seen = OtherFindings()
        self.bytes = 0
        self._names, self._max_bytes, self._counting, self._heavy = names, max_bytes, counting, heavy
        self._samples = samples
        self._softmaxes: list[int] = []  # how many weights each has
        self._by_softmax: dict[int, list[Tensor]] = {}  # the maps of each
        self._inverted: set[int] = set()
        self._later: dict[Any, Tensor] = {}  # masks that its calls share
        self._tags = Tags(held)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            rule = _RULES[id(func)][0]
        except KeyError:
            rule = _choose_rule(func)
            _RULES[id(func)] = rule, func
        if rule is None:  # several operations: those are looked at. Inference mode does not take them apart.
            with self:
                apart = func.decompose(*args, **kwargs)
            if apart is not NotImplemented:
                return apart
            rule = AttentionMode._see_other
            _RULES[id(func)] = rule, func
        out = func(*args, **kwargs)
        try:
            rule(self, func, args, kwargs, out)
        except (HeavyError, MemoryError):
            raise
        except Exception as error:  # looking must not be the reason why a forward fails
            self.seen.failed[(self._find_layer()[0], f"{get_op_name(func)}: {type(error).__name__}: {error}")] += 1
        return out

    def _see_other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        self._tags.update_other(args, out)

    # -- softmax by hand ----------------------------------------------------------------------------------------

    def _see_product(self, left: Tensor, right: Tensor, out: Tensor, biased: bool) -> None:
        a, b = self._tags.get(left), self._tags.get(right)
        if b.kind == "parameter" and not a.kind:  # as nearly always
            self._tags.update_product(a, b, out, False)
            return
        # Of parameters alone a weight may be computed, or a layer is given queries that are learned.
        if a.kind == b.kind == "parameter" and (biased or type(self._find_layer()[1]).forward is nn.Linear.forward):
            self._tags.update_features(out, -1)
            return
        mixed = True
        if a.kind == b.kind == "weights":
            # Two weights are no weights and values: a pseudo-inverse begins like this (Nyströmformer).
            self._inverted |= {a.softmax, b.softmax}
        elif a.softmax in self._inverted or b.softmax in self._inverted:
            pass
        elif a.kind == "weights" and _are_keys(a.axes[-1]):
            self._see_product_of_weights(a, left, right, out)
        elif b.kind == "weights" and _are_keys(b.axes[-2]):  # values from the left
            self._see_product_of_weights(b._replace(axes=transpose_last(b.axes)), right.mT, left.mT, out.mT)
        else:
            mixed = False
        self._tags.update_product(a, b, out, mixed)

    def _see_softmax(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if (axes := self._name_axes(args)) is not None:
            self._tag_weights(axes, out)
            return
        channels = self._tags.get(args[0]).kind == "channels"
        (self.seen.channels if channels else self.seen.softmaxes)[self._find_layer()[0]] += 1
        self._tags.set(out, None)

    def _see_log_softmax(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        self._tags.update_other(args, out)
        if (axes := self._name_axes(args)) is not None:
            self._tags.set(out, Tag(axes, "logarithms"))

    def _see_exp(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        tag = self._tags.get(args[0])
        self._tags.update_other(args, out)
        if tag.kind == "logarithms":
            self._tag_weights(tag.axes, out)

    def _name_axes(self, args: Sequence[Any]) -> Axes | None:
        """Name the axes of what a softmax makes of scores; None if it is given something else."""
        tag, count = self._tags.get(args[0]), args[0].dim()
        return name_softmax_axes(tag.axes, args[1] % count) if tag.kind == "scores" and count > 1 else None

    def _tag_weights(self, axes: Axes, out: Tensor) -> None:
        self._softmaxes.append(out.numel())
        number = len(self._softmaxes)
        self._tags.set(out, Tag(axes, "weights", softmax=number))
        self.seen.unused[number] = self._find_layer()[0]

    def _see_product_of_weights(self, tag: Tag, weights: Tensor, v: Tensor, out: Tensor) -> None:
        layer, module = self._find_layer()
        self.seen.unused.pop(tag.softmax, None)
        self._check_bytes(layer, module, weights.numel() * weights.dtype.itemsize)
        if self._counting:
            return
        ordered, notes = arrange_weights(tag.axes, weights, True, self._samples)
        before, whole = self._by_softmax.setdefault(tag.softmax, []), self._softmaxes[tag.softmax - 1]
        if weights.numel() < whole:
            notes += (f"a piece of a softmax, {weights.numel():,} of {whole:,} weights: counted within the piece",)
        elif any(torch.equal(each.nan_to_num(-1), ordered.nan_to_num(-1)) for each in before):
            return  # the same weights meet other values
        wide = weights.float() if weights.dtype.itemsize <= 2 else weights
        error = recompute.measure_gap(wide @ v.to(wide.dtype), out)
        # A copy: the product may go on with the very same memory.
        kept = ordered.clone()
        before.append(kept)
        self.found.append(
            AttentionCall(layer, kept, error, recompute.bound_rounding(out.dtype, v), BY_HAND, tag.dropped, notes)
        )

    # -- one operation ------------------------------------------------------------------------------------------

    def _see_sdpa(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        given = name_arguments(func, args, kwargs)
        call = recompute.read_sdpa(given, self._later)
        layer, module = self._find_layer()
        if call.q.is_nested:
            self.seen.unknown[(layer, f"{SDPA} of nested tensors")] += 1
            return
        tag, keys = self._tags.get(call.q), self._tags.get(call.k)
        if are_channels(tag.axes) and are_channels(keys.axes):
            self.seen.channels[layer] += 1
            return
        self._check_bytes(layer, module, call.elements * call.q.dtype.itemsize)
        if self._counting:
            return
        weighed = call.check(out[0] if isinstance(out, (tuple, list)) else out)
        error, dropped = weighed.error, float(given.get("dropout_p") or 0.0)
        notes: tuple[str, ...] = ()
        if dropped:
            error = None
            notes = (f"dropout of {dropped:g} inside one operation: the weights are those before it, not checked",)
        batched = tag.lifted and all(what != FEATURES for what, _ in tag.axes[1])
        *lead, row = name_axes(tag.axes[:-1])
        if are_merged(tag.axes[-2], keys.axes[-2]):
            row = tuple([(name if name.startswith("heads") else QUERIES, size) for name, size in row])
        else:
            row = ((QUERIES, call.shape[-2]),)
        axes = (*lead, row, ((KEYS, call.shape[-1]),))
        ordered, more = arrange_weights(axes, weighed.weights, not batched, self._samples)
        self._add(layer, CheckedWeights(ordered, error, weighed.bound), SDPA, call.q.dtype, dropped, notes + more)

    def _fused(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        given = name_arguments(func, args, kwargs)
        layer, module = self._find_layer()
        if given["query"].is_nested:
            self.seen.unknown[(layer, f"{FUSED}, of nested tensors")] += 1
            return
        call = recompute.multi_head(given, given["query"], given["key"], given["value"])
        self._check_bytes(layer, module, call.elements * call.q.dtype.itemsize)
        if not self._counting:
            note = "the error is that of what the layer returned, after out_proj"
            self._add(layer, recompute.projected(call, given, out[0]), FUSED, call.q.dtype, 0.0, (note,))

    def _fused_layer(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        given = name_arguments(func, args, kwargs)
        layer, module = self._find_layer()
        source = given["src"]
        lengths = [len(sample) for sample in source.unbind()]
        self._check_bytes(layer, module, len(lengths) * given["num_heads"] * max(lengths) ** 2 * source.dtype.itemsize)
        if not self._counting:
            weighed, note = recompute.encoder_layer(given, out)
            notes = ("the error is that of what the whole layer returned", *((note,) if note else ()))
            self._add(layer, weighed, FUSED_LAYER, source.dtype, 0.0, notes)

    def _see_unknown(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if not get_op_name(func).endswith("choice"):  # which kernel is to run
            self.seen.unknown[(self._find_layer()[0], get_op_name(func))] += 1
        self._tags.update_other(args, out)

    def _add(
        self, layer: str, weighed: CheckedWeights, by: str, dtype: torch.dtype, dropped: float, notes: tuple[str, ...]
    ) -> None:
        weights = weighed.weights.to(dtype)
        self.found.append(AttentionCall(layer, weights, weighed.error, weighed.bound, by, dropped, notes))

    # -- where, and how much ------------------------------------------------------------------------------------

    def _find_layer(self) -> tuple[str, nn.Module]:
        """Name the innermost module that is being run; by its methods, so that `.forward()` is found, too."""
        frame: Any = sys._getframe(2)
        ours = globals()
        while frame is not None:
            if frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "self":
                # Not ours: to ask a frame for one variable makes a dict of all.
                module = frame.f_locals.get("self") if frame.f_globals is not ours else None
                if isinstance(module, nn.Module) and (name := self._names.get(module)) is not None:
                    return name, module
            frame = frame.f_back
        model = next(iter(self._names))
        return self._names[model], model

    def _check_bytes(self, layer: str, module: nn.Module, size: int) -> None:
        """Raise before a map is made that there is no room for."""
        if self._heavy is not None and not self.bytes and self._heavy(size, module):
            raise HeavyError
        self.bytes += size
        if self.bytes > self._max_bytes:
            where = layer or "the model itself"
            raise MemoryError(
                f"the attention maps up to that of {where} take {format_bytes(self.bytes)}, more than max_bytes="
                f"{self._max_bytes:,}: give fewer samples or a shorter text, or a larger max_bytes"
            )


# What to do after each operation that was met. By id, for an operation's own hash is written in Python; it is held, or
# its id might be used again.
_RULES: dict[int, tuple[Rule | None, Any]] = {}


def _choose_rule(func: Any) -> Rule | None:
    """Say what to do after an operation; None for one that is several."""
    name = get_op_name(func)
    if name.startswith("_scaled_dot_product_") and not name.endswith(("_math", "backward")):
        return AttentionMode._see_sdpa
    if name == "_native_multi_head_attention":
        return AttentionMode._fused
    if name == "_transformer_encoder_layer_fwd":
        return AttentionMode._fused_layer
    if isinstance(func, torch._ops.OpOverload) and is_composite(func):
        return None
    if name in PRODUCTS:
        at = PRODUCTS[name]
        biased = name == "addmm"
        return lambda watch, func, args, kwargs, out: watch._see_product(args[at], args[at + 1], out, biased)
    if name in SOFTMAXES:
        return AttentionMode._see_softmax
    if name == "_log_softmax":
        return AttentionMode._see_log_softmax
    if name == "exp":
        return AttentionMode._see_exp
    if name == "bernoulli" and func._overloadname == "float":
        return lambda watch, func, args, kwargs, out: watch._tags.update_noise(args, out)
    if name == "native_dropout":
        return lambda watch, func, args, kwargs, out: watch._tags.update_dropout(args, out)
    if is_view(name):
        return lambda watch, func, args, kwargs, out: watch._tags.update_view(name, args, out)
    if name in ELEMENTWISE:
        return lambda watch, func, args, kwargs, out: watch._tags.update_elementwise(args, out)
    if any(word in name for word in POOLINGS):
        return lambda watch, func, args, kwargs, out: watch._tags.update_other(args, out, resized=True)
    if "attention" in name or "attn" in name:
        return AttentionMode._see_unknown
    if "linear" in name or "convolution" in name or name in ("embedding", "_addmm_activation", "_scaled_mm"):
        return lambda watch, func, args, kwargs, out: watch._tags.update_features(
            out, 1 if "convolution" in name else -1
        )
    return AttentionMode._see_other


def _see_higher_order_operators() -> None:
    """Let operators that take functions, as flex attention does, come to `AttentionMode` before torch 2.9, too.

    There each of them wants a rule for each class of modes, and raises without one.
    """
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in torch._ops._higher_order_ops.values():
        if AttentionMode not in operator.python_key_table:
            operator.py_impl(AttentionMode)(partial(_dispatch, operator))


def _dispatch(operator: Any, mode: AttentionMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)


def format_bytes(size: int) -> str:
    """Write a number of bytes, exactly and so that it can be read."""
    return f"{size:,} bytes" + (f" ({size / 2**20:,.0f} MiB)" if size >= 2**20 else "")


def _are_keys(axis: tuple[tuple[str, int], ...]) -> bool:
    return not axis or is_all(axis, KEYS)  # an axis of length 1 has no parts
