"""Leave out the layers before a change: they return again what they returned, once for each sample of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.interp.sweeps.passes import Span
from hookscope.layers.modules import collect_submodules
from hookscope.pytree import find_tensors, tree_map

__all__ = ["Replays", "replaying"]

_NONE = object()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor that a layer returned, and whether it has the samples of the batch along its first axis."""

    tensor: Tensor
    batched: bool


class Replays:
    """What layers returned in a pass that was watched, and which of them need not run again.

    A layer need not run again if its call had returned before the change was made, for then the change cannot have
    reached it; if it was called once; if it wrote to nothing that it was given and returned something of its own
    (`Span.alone`); if no hooks of others are on it or in it; and if what it returns grows with the batch, or not at
    all, as a pass with twice the samples has shown. What it does beside, such as filling a cache, cannot be seen: so
    what comes out is compared with plain hooks.

    Args:
        spans: the calls of a pass.
        hooked: the modules that had hooks before the sweep.

    """

    def __init__(self, spans: Iterable[Span], hooked: set[nn.Module]) -> None:
        self._spans = list(spans)
        times = Counter(span.module for span in self._spans)
        self._usable = {
            span.module: span
            for span in self._spans
            if span.alone and times[span.module] == 1 and not (hooked and hooked & collect_submodules([span.module]))
        }
        self._kept: dict[nn.Module, Any] = {}

    def before(self, time: float) -> list[nn.Module]:
        """List the layers that need not run if what is changed is changed at a time; the outermost ones only."""
        chosen: dict[Span, None] = {}
        for span in self._spans:
            if span.end <= time and self._usable.get(span.module) is span:
                parent = span.parent
                while parent is not None and parent not in chosen:
                    parent = parent.parent
                if parent is None:
                    chosen[span] = None
        return [span.module for span in chosen]

    def keep(self, module: nn.Module, shapes: list[torch.Size] | None, double: Any) -> None:
        """Keep what a layer returned, or forget the layer if that does not tell where the samples are.

        Args:
            module: the layer.
            shapes: of the tensors in what it returned; None if one of them has none.
            double: what it returned in a pass with all samples twice.

        """
        found = find_tensors(double) if shapes is not None else []
        known = shapes is not None and len(found) == len(shapes)
        kept: dict[int, _Kept] = {}
        for tensor, shape in zip(found, shapes or (), strict=False):
            if tensor.shape == shape:
                kept[id(tensor)] = _Kept(tensor.clone(), False)
            elif shape and tensor.shape == (2 * shape[0], *shape[1:]):
                kept[id(tensor)] = _Kept(tensor[: shape[0]].clone(), True)
            else:
                known = False
        if known:
            self._kept[module] = tree_map(lambda tensor: kept[id(tensor)], double)
        else:
            self._usable.pop(module, None)

    def forget(self) -> None:
        """Let every layer run again, and give the memory of what is kept free."""
        self._usable.clear()
        self._kept.clear()

    @property
    def bytes(self) -> int:
        """How many bytes are kept."""
        found: list[int] = []

        def count(kept: _Kept) -> _Kept:
            found.append(kept.tensor.nbytes)
            return kept

        tree_map(count, list(self._kept.values()), _Kept)
        return sum(found)

    def forwards(self, time: float, times: int) -> dict[nn.Module, Callable[..., Any]]:
        """Make a `forward` for each layer that need not run, which returns the samples so many times."""

        def again(kept: _Kept) -> Tensor:
            # A copy for each call: whoever gets it may write to it.
            tensor = kept.tensor
            return tensor.repeat(times, *[1] * (tensor.dim() - 1)) if kept.batched else tensor.clone()

        def forward(module: nn.Module) -> Callable[..., Any]:
            return lambda *args, **kwargs: tree_map(again, self._kept[module], _Kept)

        return {module: forward(module) for module in self.before(time) if module in self._kept}


@contextmanager
def replaying(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Put other `forward`s in the place of those of some modules, and put them back in the end."""
    before = [(module, module.__dict__.get("forward", _NONE)) for module in forwards]
    try:
        try:
            for module, forward in forwards.items():
                module.__dict__["forward"] = forward
            yield
        finally:
            _preserve_state(before)
    finally:  # an interrupt may have come in there, at the first line, too
        _preserve_state(before)


def _preserve_state(before: list[tuple[nn.Module, Any]]) -> None:
    for module, forward in before:
        if forward is _NONE:
            module.__dict__.pop("forward", None)
        else:
            module.__dict__["forward"] = forward
