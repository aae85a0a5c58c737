"""Count the FLOPs of a pass with torch's counter, and note the operations for which torch has no formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from hookscope.interp.profiles.spans import CallSpan
from hookscope.layers import ModuleMap
from hookscope.pictures.words import count_text

__all__ = ["FlopCounter"]

_NAMED = 4  # operations in a note, and layers for each


class FlopCounter(FlopCounterMode):
    """A `FlopCounterMode` that notes the matrix products that torch cannot count.

    Attributes:
        running: a function that returns the running call of a layer; None in backward.
        left_out: maps each operation that was not counted to the calls of layers that ran it.

    Example:
        >>> import torch
        >>> with FlopCounter() as counter:
        ...     _ = torch.ones(2, 3) @ torch.ones(3, 1), torch.fft.rfft(torch.ones(4))
        >>> counter.get_total_flops(), list(counter.left_out)
        (12, ['aten::_fft_r2c'])

    """

    def __init__(self) -> None:
        super().__init__(display=False)
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
            f"FLOPs do not include {', '.join(parts)}{more}, because torch has no formula. Register one with "
            "torch.utils.flop_counter.register_flop_formula"
        )


class _NoTracker:
    """Replaces torch's module tracker, which is slow for small layers. `CallSpans` tracks the modules."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


_TORCH_NAMESPACES = {
    "aten", "prim", "prims", "profiler", "quantized", "mkldnn", "mkldnn_prepacked", "onednn", "sparse", "inductor",
    "c10d", "_c10d_functional", "rngprims", "debugprims",
}  # fmt: skip
"""Namespaces of torch's own operations. Any other operation, such as one of an extension, can hold a product."""
_WORDS = (
    "conv", "fft", "rnn", "lstm", "gru", "attention", "linear", "linalg", "cholesky", "solve", "cdist", "euclidean",
    "matmul", "transformer",
)  # fmt: skip
_ENDS = ("mm", "mv", "dot", "addr")
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
    return not name.startswith(_WITHOUT) and any(p.endswith(_ENDS) or any(w in p for w in _WORDS) for p in parts)
