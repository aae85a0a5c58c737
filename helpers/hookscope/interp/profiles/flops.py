"""Count the FLOPs of a pass, including fused operations, and note the operations without a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from torch import ops
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hookscope.interp.profiles.spans import CallSpan
from hookscope.layers import ModuleMap
from hookscope.pictures.words import count_text

__all__ = ["FlopCounter"]

Shape = Sequence[int]

_NAMED = 4  # operations in a note, and layers for each


class FlopCounter(FlopCounterMode):
    """A `FlopCounterMode` with more formulas, which notes matrix products that it cannot count.

    Attributes:
        running: a function that returns the running call of a layer; None in backward.
        left_out: maps each operation that was not counted to the calls of layers that ran it.

    Example:
        >>> import torch
        >>> with FlopCounter() as counter:
        ...     _ = torch.ones(2, 3) @ torch.ones(3), torch.fft.rfft(torch.ones(4))
        >>> counter.get_total_flops(), list(counter.left_out)
        (12, ['aten::_fft_r2c'])

    """

    def __init__(self) -> None:
        # The formulas of torch and of the user take precedence.
        more = {operation: count for operation, count in _formulas() if operation not in flop_registry}
        super().__init__(display=False, custom_mapping=more)
        self.mod_tracker = _NoTracker()  # type: ignore[assignment]
        self.running: Callable[[], CallSpan | None] = lambda: None
        self.left_out: dict[str, list[CallSpan | None]] = {}

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func_packet, "_qualified_op_name", str(func_packet))
        if func_packet in self.flop_registry:
            try:
                return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
            except Exception:  # a formula can fail for some tensors, such as nested ones
                self.left_out.setdefault(name, []).append(self.running())
        elif _has_products(name):
            self.left_out.setdefault(name, []).append(self.running())
        return out

    def notes(self, names: ModuleMap[str]) -> Iterator[str]:
        """Yield a note that names the operations that were not counted."""
        if not self.left_out:
            return
        parts = []
        for operation, spans in list(self.left_out.items())[:_NAMED]:
            layers = dict.fromkeys(repr(names[span.module] or "(root)") for span in spans if span is not None)
            where = ", ".join([*layers][:_NAMED]) + (", …" if len(layers) > _NAMED else "")
            parts.append(
                f"{operation} ({count_text(len(spans), 'call')}, {f'in {where}' if layers else 'in backward'})"
            )
        more = (
            f" and {count_text(len(self.left_out) - _NAMED, 'other operation')}" if len(self.left_out) > _NAMED else ""
        )
        yield (
            f"FLOPs do not include {', '.join(parts)}{more}, because there is no formula. Register one with "
            "torch.utils.flop_counter.register_flop_formula"
        )


class _NoTracker:
    """Replaces torch's module tracker, which is slow for small layers. `CallSpans` tracks the modules."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


# -- products that have no formula ------------------------------------------------------------------------------------

_TORCH_NAMESPACES = {
    "aten", "prim", "prims", "profiler", "quantized", "mkldnn", "mkldnn_prepacked", "onednn", "sparse", "inductor",
    "c10d", "_c10d_functional", "rngprims", "debugprims",
}  # fmt: skip
"""Namespaces of torch's own operations. Any other operation, such as one of an extension, can hold a product."""
_WORDS = (
    "conv", "fft", "rnn", "lstm", "gru", "attention", "linear", "linalg", "cholesky", "solve", "cdist", "euclidean",
    "matmul",
)  # fmt: skip
_WITHOUT = (
    "upsample", "convert", "thnn_fused", "linalg_vector_norm", "linalg_cross", "linalg_check", "linalg__powsum",
    "fft_fftfreq", "fft_rfftfreq",
)  # fmt: skip
"""Operations whose names contain one of these words, although they compute no products."""


def _has_products(name: str) -> bool:
    """Return whether an operation is likely to compute matrix products.

    Example:
        >>> [_has_products(f"aten::{name}") for name in ("_sparse_addmm", "conv_tbc", "digamma", "upsample_bilinear2d")]
        [True, True, False, False]

    """
    space, _, name = name.rpartition("::")
    if space not in _TORCH_NAMESPACES:
        return True
    name = name.strip("_")
    parts = name.split("_")
    return not name.startswith(_WITHOUT) and any(p.endswith("mm") or any(w in p for w in _WORDS) for p in parts)


# -- formulas over shapes: one multiplication and one addition count as 2 ---------------------------------------------


def _product(a: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape) * a[-1]


def _add_product(to: Shape, a: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape) * a[-1]


def _add_batched_product(to: Shape, a: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape) * a[-1] * a[0]


def _outer_product(*_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape)


def _grouped_product(a: Shape, b: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    # Two matrices are split along the summed axis, so each group sums over a part of it.
    return 2 * prod(a) * b[-1] if len(a) == len(b) == 2 else 2 * prod(out_shape) * a[-1]


def _recurrent(x: Shape, from_input: Shape, from_state: Shape, *_: Any, **__: Any) -> int:
    return 2 * x[0] * x[1] * (prod(from_input) + prod(from_state))


def _recurrent_backward(*args: Any, **kwargs: Any) -> int:
    return 2 * _recurrent(*args, **kwargs)  # gradients of inputs and states, and of the weights


def _attention(q: Shape, k: Shape, v: Shape, size: int, heads: int, weight: Shape, *_: Any, **__: Any) -> int:
    in_and_out = prod(q) + prod(k) + prod(v) + prod(q)
    return 2 * in_and_out * size + 2 * 2 * prod(q) * k[1]


def _encoder_layer(x: Shape, size: int, heads: int, weight: Shape, *args: Any, **kwargs: Any) -> int:
    feed_forward: Shape = args[10] if len(args) > 10 else kwargs["ffn_weight_1"]
    return _attention(x, x, x, size, heads, weight) + 2 * 2 * x[0] * x[1] * prod(feed_forward)


def _trilinear(
    i1: Shape, i2: Shape, i3: Shape, expand1: Shape, expand2: Shape, expand3: Shape, sumdim: Shape, unroll_dim: int = 1,
    **_: Any,
) -> int:  # fmt: skip
    # Two products in sequence, at each position of one axis. Source: aten/src/ATen/native/Linear.cpp, torch 2.15.
    shapes = []
    for shape, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        sides = iter(shape)
        shapes.append([1 if axis in expanded else next(sides) for axis in range(len(shape) + len(expanded))])
    times = max(shape[unroll_dim] for shape in shapes)
    one, two, three = ([*shape[:unroll_dim], 1, *shape[unroll_dim + 1 :]] for shape in shapes)
    first = {axis for axis in sumdim if axis in expand3 and axis != unroll_dim}
    both = [1 if axis in first else max(sides) for axis, sides in enumerate(zip(one, two, strict=True))]
    return times * (_count_pair(one, two, first) + _count_pair(both, three, {*sumdim} - first - {unroll_dim}))


def _count_pair(one: Shape, other: Shape, summed: set[int]) -> int:
    """Return the FLOPs of a product of two tensors that is summed over some axes; 0 without any."""
    sides = enumerate(zip(one, other, strict=True))
    return 2 * prod(min(pair) if axis in summed else max(pair) for axis, pair in sides) if summed else 0


def _formulas() -> Iterator[tuple[Any, Callable[..., int]]]:
    for count, names in _FORMULAS.items():
        for name in names.split():
            if hasattr(ops.aten, name):
                yield getattr(ops.aten, name), count


_FORMULAS: dict[Callable[..., int], str] = {
    _product: "mv dot vdot _int_mm",
    _add_product: "addmv addmv_ addmm_ baddbmm_ _addmm_activation",
    _add_batched_product: "addbmm addbmm_",
    _outer_product: "addr addr_",
    _grouped_product: "_grouped_mm",
    _recurrent: "mkldnn_rnn_layer",
    _recurrent_backward: "mkldnn_rnn_layer_backward",
    _attention: "_native_multi_head_attention",
    _encoder_layer: "_transformer_encoder_layer_fwd",
    _trilinear: "_trilinear",
}
"""Formula -> the aten operations that it counts."""
