"""Find every attention call of a pass in the operations that torch runs, without a hook on the model."""

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
from hookscope.interp.attentions.axes import is_all, is_view
from hookscope.interp.attentions.operations import (
    ELEMENTWISE,
    POOLINGS,
    PRODUCTS,
    SOFTMAXES,
    get_op_name,
    is_composite,
    name_arguments,
)
from hookscope.interp.attentions.tensor_tags import (
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

__all__ = ["AttentionCall", "AttentionMode", "OtherFindings"]

SDPA = "scaled_dot_product_attention"
SOFTMAX = "softmax, then a product"

Rule = Callable[["AttentionMode", Any, Sequence[Any], Mapping[str, Any], Any], None]


@dataclass
class AttentionCall:
    """One attention call: its weights, [batch, heads, queries, keys], and the result of the check."""

    layer: str
    weights: Tensor
    error: float | None
    bound: float
    by: str
    dropped: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass
class OtherFindings:
    """Operations that are not attention between tokens, each with its layer."""

    channels: Counter[str] = field(default_factory=Counter)
    softmaxes: Counter[str] = field(default_factory=Counter)  # not of a product of two activations
    unused: dict[int, str] = field(default_factory=dict)  # by number: softmaxes of such a product without values
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)


class AttentionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation of a pass and finds SDPA calls and softmaxes between two products.

    A dispatch mode runs below autograd, so it also sees operations that C++ calls. The layer of an operation is the
    innermost `self` on the stack, so nothing is registered on the model.

    Args:
        names: module -> name.
        parameters: the model's parameters and buffers.
        max_bytes: the memory limit of all maps.
        samples: the number of samples in the inputs; 0 if it is unknown.

    Attributes:
        calls: the attention calls.
        other: other operations, which explain why there is no map.

    """

    supports_higher_order_operators = True  # flex attention is one, and would raise (since torch 2.9)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing the compiler, which is not used in the pass."""
        return False

    def __init__(
        self, names: Mapping[nn.Module, str], parameters: Iterable[Tensor], max_bytes: float, samples: int = 0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _register_higher_order_operators()
        self.calls: list[AttentionCall] = []
        self.other = OtherFindings()
        self._names, self._max_bytes, self._samples = names, max_bytes, samples
        self._bytes = 0
        self._softmaxes: list[int] = []  # the number of weights of each
        self._by_softmax: dict[int, list[Tensor]] = {}  # the maps of each
        self._inverted: set[int] = set()
        self._tags = Tags(parameters)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            rule = _RULES[id(func)][0]
        except KeyError:
            rule = _choose_rule(func)
            _RULES[id(func)] = rule, func
        if rule is None:  # look at the operations that it is made of, which inference mode keeps together
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            rule = AttentionMode._see_other
            _RULES[id(func)] = rule, func
        out = func(*args, **kwargs)
        try:
            rule(self, func, args, kwargs, out)
        except MemoryError:
            raise
        except Exception as error:  # an error of this mode must not stop the model
            self.other.failed[(self._find_layer(), f"{get_op_name(func)}: {type(error).__name__}: {error}")] += 1
        return out

    def _see_other(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        self._tags.update_other(args, out)

    # -- a softmax between two products -------------------------------------------------------------------------

    def _see_product(self, left: Tensor, right: Tensor, out: Tensor, biased: bool) -> None:
        a, b = self._tags.get(left), self._tags.get(right)
        if b.kind == "parameter" and not a.kind:  # most products
            self._tags.update_product(a, b, out, False)
            return
        # A layer can project learned queries; other products of two parameters compute a weight.
        if a.kind == b.kind == "parameter" and (biased or type(self._find_module()).forward is nn.Linear.forward):
            self._tags.update_features(out, -1)
            return
        mixed = True
        if a.kind == b.kind == "weights":
            # Not weights and values, but the beginning of a pseudo-inverse (Nyströmformer).
            self._inverted |= {a.softmax, b.softmax}
        elif a.softmax in self._inverted or b.softmax in self._inverted:
            pass
        elif a.kind == "weights" and _are_keys(a.axes[-1]):
            self._add_product(a, left, right, out)
        elif b.kind == "weights" and _are_keys(b.axes[-2]):  # values @ weights.mT
            self._add_product(b._replace(axes=transpose_last(b.axes)), right.mT, left.mT, out.mT)
        else:
            mixed = False
        self._tags.update_product(a, b, out, mixed)

    def _see_softmax(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        tag, count, layer = self._tags.get(args[0]), args[0].dim(), self._find_layer()
        scores = tag.kind == "scores" and count > 1
        if scores and (axes := name_softmax_axes(tag.axes, args[1] % count)) is not None:
            self._softmaxes.append(out.numel())
            number = len(self._softmaxes)
            self._tags.set(out, Tag(axes, "weights", softmax=number))
            self.other.unused[number] = layer
            return
        (self.other.channels if tag.kind == "channels" else self.other.softmaxes)[layer] += 1
        self._tags.set(out, None)

    def _add_product(self, tag: Tag, weights: Tensor, v: Tensor, out: Tensor) -> None:
        layer = self._find_layer()
        self.other.unused.pop(tag.softmax, None)
        self._check_bytes(layer, weights.numel() * weights.dtype.itemsize)
        ordered, notes = arrange_weights(tag.axes, weights, True, self._samples)
        before, whole = self._by_softmax.setdefault(tag.softmax, []), self._softmaxes[tag.softmax - 1]
        if weights.numel() < whole:
            notes += (f"a piece of a softmax, with {weights.numel():,} of {whole:,} weights",)
        elif any(torch.equal(each.nan_to_num(-1), ordered.nan_to_num(-1)) for each in before):
            return  # the same weights with other values
        wide = weights.float() if weights.dtype.itemsize <= 2 else weights
        error = recompute.measure_gap(wide @ v.to(wide.dtype), out)
        kept = ordered.clone()  # the model can write to the weights later
        before.append(kept)
        bound = recompute.bound_rounding(out.dtype, v)
        self.calls.append(AttentionCall(layer, kept, error, bound, SOFTMAX, tag.dropped, notes))

    # -- one operation ------------------------------------------------------------------------------------------

    def _see_sdpa(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        given = name_arguments(func, args, kwargs)
        call, layer = recompute.read_sdpa(given), self._find_layer()
        if call.q.is_nested:
            self.other.unknown[(layer, f"{SDPA} of nested tensors")] += 1
            return
        tag, keys = self._tags.get(call.q), self._tags.get(call.k)
        if are_channels(tag.axes) and are_channels(keys.axes):
            self.other.channels[layer] += 1
            return
        self._check_bytes(layer, torch.Size(call.shape).numel() * call.q.dtype.itemsize)
        checked = call.check(out[0] if isinstance(out, (tuple, list)) else out)
        error, dropped = checked.error, float(given.get("dropout_p") or 0.0)
        notes: tuple[str, ...] = ()
        if dropped:
            error = None
            notes = (f"dropout of {dropped:g} inside one operation: these are the weights before it, not checked",)
        unbatched = tag.lifted and all(what != FEATURES for what, _ in tag.axes[1])
        *lead, row = name_axes(tag.axes[:-1])
        if are_merged(tag.axes[-2], keys.axes[-2]):
            row = tuple([(name if name.startswith("heads") else QUERIES, size) for name, size in row])
        else:
            row = ((QUERIES, call.shape[-2]),)
        axes = (*lead, row, ((KEYS, call.shape[-1]),))
        ordered, more = arrange_weights(axes, checked.weights, not unbatched, self._samples)
        weights = ordered.to(call.q.dtype)
        self.calls.append(AttentionCall(layer, weights, error, checked.bound, SDPA, dropped, notes + more))

    def _see_unknown(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        if not get_op_name(func).endswith("choice"):  # that operation only chooses a kernel
            self.other.unknown[(self._find_layer(), get_op_name(func))] += 1
        self._tags.update_other(args, out)

    # -- layer and memory ---------------------------------------------------------------------------------------

    def _find_module(self) -> nn.Module:
        """Return the innermost module on the stack. It looks for methods, so a direct call of `.forward()` counts."""
        frame: Any = sys._getframe(1)
        own = globals()
        while frame is not None:
            if frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "self":
                # Not in this file: reading one local variable of a frame makes a dict of all.
                module = frame.f_locals.get("self") if frame.f_globals is not own else None
                if isinstance(module, nn.Module) and module in self._names:
                    return module
            frame = frame.f_back
        return next(iter(self._names))

    def _find_layer(self) -> str:
        return self._names[self._find_module()]

    def _check_bytes(self, layer: str, size: int) -> None:
        """Raise an error before a map is made that exceeds the limit."""
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise MemoryError(
                f"the attention maps up to that of {layer or 'the model itself'} take {self._bytes:,} bytes, more than "
                f"max_bytes={self._max_bytes:,}. Pass fewer samples, a shorter text, or a larger max_bytes"
            )


# The rule for each operation, by id, because the hash of an operation is slow. The operation is held, so that its id
# is not used again.
_RULES: dict[int, tuple[Rule | None, Any]] = {}


def _choose_rule(func: Any) -> Rule | None:
    """Choose the rule for an operation; None for one that is made up of other operations."""
    name = get_op_name(func)
    if name.startswith("_scaled_dot_product_") and not name.endswith(("_math", "backward")):
        return AttentionMode._see_sdpa
    if isinstance(func, torch._ops.OpOverload) and is_composite(func):
        return None
    if name in PRODUCTS:
        at = PRODUCTS[name]
        biased = name == "addmm"
        return lambda mode, func, args, kwargs, out: mode._see_product(args[at], args[at + 1], out, biased)
    if name in SOFTMAXES:
        return AttentionMode._see_softmax
    if name == "bernoulli" and func._overloadname == "float":
        return lambda mode, func, args, kwargs, out: mode._tags.update_noise(args, out)
    if name == "native_dropout":
        return lambda mode, func, args, kwargs, out: mode._tags.update_dropout(args, out)
    if is_view(name):
        return lambda mode, func, args, kwargs, out: mode._tags.update_view(name, args, out)
    if name in ELEMENTWISE:
        return lambda mode, func, args, kwargs, out: mode._tags.update_elementwise(args, out)
    if any(word in name for word in POOLINGS):
        return lambda mode, func, args, kwargs, out: mode._tags.update_other(args, out, resized=True)
    if "attention" in name or "attn" in name or name == "_transformer_encoder_layer_fwd":
        return AttentionMode._see_unknown
    if "linear" in name or "convolution" in name or name in ("embedding", "_addmm_activation", "_scaled_mm"):
        axis = 1 if "convolution" in name else -1
        return lambda mode, func, args, kwargs, out: mode._tags.update_features(out, axis)
    return AttentionMode._see_other


def _register_higher_order_operators() -> None:
    """Let operators that take functions, such as flex attention, run in this mode before torch 2.9.

    In these releases, each of them needs a rule for each class of modes and raises an error without one.
    """
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in torch._ops._higher_order_ops.values():
        if AttentionMode not in operator.python_key_table:
            operator.py_impl(AttentionMode)(partial(_dispatch, operator))


def _dispatch(operator: Any, mode: AttentionMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)


def _are_keys(axis: tuple[tuple[str, int], ...]) -> bool:
    return not axis or is_all(axis, KEYS)  # an axis of length 1 has no parts
