"""Run the passes of one profile: plain ones, timed ones, and those that count FLOPs, bytes and what autograd saves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.profiles.spans import Span, Spans
from hookscope.structures import map_tensors, tensors_in
from hookscope.unchanged import take_mode_off

__all__ = ["Job", "Sums"]


class _NoTracker:
    """Stands where torch's counter of FLOPs follows modules, which spans do: for small layers it costs a good deal."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


class Job:
    """The passes of one profile.

    Attributes:
        notes: what there is to say about them.

    """

    def __init__(
        self,
        model: nn.Module,
        hooked: list[nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        backward: bool,
        loss: Callable[[Any], Tensor] | None,
    ) -> None:
        self.model, self._hooked, self._given = model, hooked, (args, kwargs)
        self.backward, self._loss = backward, loss
        self.notes: list[str] = []

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for parameter in self.model.parameters():
            parameter.grad = None
        args, kwargs = map_tensors(lambda t: t.detach().clone().requires_grad_(t.requires_grad), self._given)
        return args, kwargs

    def _scalar(self, output: Any) -> Tensor | None:
        """Return where backward begins; None where it cannot."""
        if not self.backward:
            return None
        if self._loss is not None:
            scalar = self._loss(output)
            if not (isinstance(scalar, Tensor) and scalar.numel() == 1 and scalar.requires_grad):
                what = f"{scalar!r:.80}"
                if isinstance(scalar, Tensor):
                    grad = "" if scalar.requires_grad else ", which does not require grad"
                    what = f"a tensor of shape {tuple(scalar.shape)}{grad}"
                raise ValueError(
                    f"loss returned {what}; it has to return one number that requires grad, as "
                    "loss=lambda output: output.mean()"
                )
            return scalar
        sums = [t.sum() for t in tensors_in(output) if t.requires_grad]
        if not sums:
            self.backward = False
            self.notes.append("no backward: the output does not require grad")
            return None
        return torch.stack([part.real.double() if part.is_complex() else part.double() for part in sums]).sum()

    def plain(self) -> tuple[float, float]:
        """Time a pass without hooks."""
        args, kwargs = self._inputs()
        start = time.perf_counter_ns()
        output = self.model(*args, **kwargs)
        forward = time.perf_counter_ns() - start
        if (scalar := self._scalar(output)) is None:
            return forward / 1e9, 0.0
        start = time.perf_counter_ns()
        scalar.backward()  # type: ignore[no-untyped-call]
        return forward / 1e9, (time.perf_counter_ns() - start) / 1e9

    def timed(self) -> tuple[float, float, Sums]:
        """Time a pass with hooks."""
        args, kwargs = self._inputs()
        spans = Spans(self._hooked, time.perf_counter_ns)
        with spans.forward():
            start = time.perf_counter_ns()
            output = self.model(*args, **kwargs)
            forward = time.perf_counter_ns() - start
        if (scalar := self._scalar(output)) is None:
            return forward / 1e9, 0.0, Sums(spans)
        with spans.backward(scalar):
            start = time.perf_counter_ns()
            scalar.backward()  # type: ignore[no-untyped-call]
            backward = time.perf_counter_ns() - start
        return forward / 1e9, backward / 1e9, Sums(spans)

    def counted(self) -> tuple[Spans, bool]:
        """Count FLOPs and bytes in a pass; whether torch could count FLOPs."""
        from torch.utils.flop_counter import FlopCounterMode

        counter = FlopCounterMode(display=False)
        counter.mod_tracker = _NoTracker()  # type: ignore[assignment]
        try:
            return self._counted(counter.get_total_flops, counter), True
        except Exception as error:  # a mode sees every operation, and some do not bear it
            self.notes.append(f"FLOPs not counted: torch.utils.flop_counter raised {type(error).__name__}")
            return self._counted(lambda: 0, None), False

    def _counted(self, read: Callable[[], int], mode: Any) -> Spans:
        args, kwargs = self._inputs()
        spans = Spans(self._hooked, read, look=True)
        stack, own = ExitStack(), None
        try:
            with stack:
                if mode is not None:
                    stack.enter_context(mode)
                    own = mode.mode  # the counter's, which it forgets as it leaves
                with spans.forward():
                    output = self.model(*args, **kwargs)
                if (scalar := self._scalar(output)) is not None:
                    with spans.backward(scalar):
                        scalar.backward()  # type: ignore[no-untyped-call]
        finally:
            stack.close()  # for an interrupt that came just before the block would have
            take_mode_off(own or getattr(mode, "mode", None))
        return spans

    def saved(self) -> tuple[dict[nn.Module, int], Spans] | None:
        """Count the bytes that autograd saves, for the layers that save them; None if torch does not let us."""
        if not self.backward:
            return None
        args, kwargs = self._inputs()
        known = {
            id(s): s
            for s in map(_memory, (*self.model.parameters(), *self.model.buffers(), *tensors_in((args, kwargs))))
        }
        held = {_key(storage): storage for storage in known.values()}
        spans, found = Spans(self._hooked, lambda: 0), dict.fromkeys(self._hooked, 0)

        def pack(tensor: Tensor) -> Tensor:
            memory = _memory(tensor)
            if _key(memory) not in held:
                held[_key(memory)] = memory  # held, so that no other gets its place
                for module in {span.module for span in _around(spans.running)}:
                    found[module] += memory.nbytes() if isinstance(memory, torch.UntypedStorage) else tensor.nbytes
            return tensor.detach()  # not itself: an output that its own node holds would never be freed

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), spans.forward():
                self.model(*args, **kwargs)
        except RuntimeError as error:  # torch.func has no such hooks
            self.notes.append(f"memory saved for backward not counted ({type(error).__name__})")
            return None
        return found, spans


def _around(span: Span | None) -> Iterator[Span]:
    return iter(()) if span is None else span.inside()


def _memory(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse
        return tensor


def _key(memory: Any) -> int:
    return int(memory._cdata) if isinstance(memory, torch.UntypedStorage) else id(memory)


class Sums:
    """What the calls of each layer add up to in one pass: totals, and parts of their own."""

    def __init__(self, spans: Spans) -> None:
        self.calls = Counter(span.module for span in spans.calls)
        self.forward: dict[nn.Module, int] = {}
        self.forward_self: dict[nn.Module, int] = {}
        self.backward: dict[nn.Module, int] = {}
        self.backward_self: dict[nn.Module, int] = {}
        self.gradients: dict[nn.Module, int] = {}
        self.outside = spans.outside.backward
        for span in spans.calls:
            around = list(span.inside())[1:]
            if span.module not in {outer.module for outer in around}:  # inside itself it has been counted
                _add(self.forward, span.module, span.forward)
            _add(self.forward_self, span.module, span.forward)
            if span.parent is not None:
                _add(self.forward_self, span.parent.module, -span.forward)
            _add(self.backward_self, span.module, span.backward)
            for module in {each.module for each in span.inside()}:
                _add(self.backward, module, span.backward)
                _add(self.gradients, module, span.gradients)


def _add(into: dict[nn.Module, int], module: nn.Module, number: int) -> None:
    into[module] = into.get(module, 0) + number
