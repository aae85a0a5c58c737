"""Run the passes of a profile: without hooks, with timing hooks, and to count FLOPs and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hookscope.interp.profiles.spans import CallSpan, CallSpans, nodes_of, sequence_number
from hookscope.layers import ModuleMap, Modules
from hookscope.preserve import ModelState
from hookscope.pytree import find_tensors, tree_map

__all__ = ["LayerTotals", "PassRunner"]

_T = TypeVar("_T")


class _GraphFreedError(ValueError):
    """Backward would go through a graph that an earlier pass has already freed."""


class PassRunner:
    """Runs the passes of one profile.

    Attributes:
        before: the state of the model before the first pass.
        notes: remarks about the passes.
        gradients: parameters and other leaf tensors that backward can reach, with their `.grad` from before.

    """

    def __init__(
        self,
        modules: Modules,
        hooked: list[nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        backward: bool,
        loss: Callable[[Any], Tensor] | None,
    ) -> None:
        self.model, self._names, self._hooked, self._passed = modules.model, modules.names, hooked, (args, kwargs)
        self.backward, self._loss = backward, loss
        self.before, self._restores = ModelState(self.model, attributes=True), False
        self._first = self._start = sequence_number()  # of autograd nodes: of all passes, and of this one
        self.notes: list[str] = []
        self.gradients: list[tuple[Tensor, Tensor | None]] = [(leaf, leaf.grad) for leaf in self.model.parameters()]

    def _run_pass(self, run: Callable[[], _T]) -> _T:
        """Run a pass. If the model keeps the graph of an earlier pass, restore the model before each later pass."""
        try:
            return run()
        except _GraphFreedError:
            self._restores = True
            return run()

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._restores:
            self.before.restore()
        self._start = sequence_number()
        for parameter in self.model.parameters():
            parameter.grad = None
        args, kwargs = tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad), self._passed)
        return args, kwargs

    def _scalar(self, output: Any) -> Tensor | None:
        """Return the scalar that backward starts from; None if nothing requires grad."""
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
                    f"loss returned {what}. It must return a scalar that requires grad, for example "
                    "loss=lambda output: output.mean()"
                )
            return scalar
        sums = [t.sum() for t in find_tensors(output) if t.requires_grad]
        if not sums:
            self.backward = False
            self.notes.append("backward was not measured, because the output does not require grad")
            return None
        return torch.stack([part.real.double() if part.is_complex() else part.double() for part in sums]).sum()

    def _backward(self, scalar: Tensor) -> Callable[[], None]:
        """Return a function that runs backward and keeps graphs from before the first pass.

        Raises:
            _GraphFreedError: backward would go through a graph that an earlier pass has freed.

        """
        nodes = [node for node, _ in nodes_of(scalar)]
        old = {number: node for node in nodes if (number := node._sequence_nr()) < self._start}
        if old and max(old) >= self._first:
            raise _GraphFreedError(
                f"the model keeps a tensor with its graph ({type(old[max(old)]).__name__}) from one pass to the next, "
                "so a second backward would go through a graph that is already freed. Detach the tensor that the model "
                "keeps, or pass backward=False"
            )
        if old:
            leaves = [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]
            known = {id(leaf) for leaf, _ in self.gradients}
            self.gradients += [(leaf, leaf.grad) for leaf in leaves if id(leaf) not in known]
            self.notes.append(
                "the model kept tensors with their graph from an earlier pass. Backward runs through it, but it "
                "counts for no layer"
            )

        def run() -> None:
            try:
                scalar.backward(retain_graph=bool(old))  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if not old or "second time" not in str(error):
                    raise
                raise ValueError(
                    f"the model keeps a tensor with its graph ({type(old[max(old)]).__name__}), and an earlier "
                    "backward has freed that graph. Delete the tensor (model.train() or model.eval() often does), or "
                    "pass backward=False"
                ) from error

        return run

    def time_plain(self) -> tuple[float, float]:
        """Time a pass without hooks."""
        return self._run_pass(self._time_plain)

    def time_hooked(self) -> tuple[float, float, LayerTotals]:
        """Time a pass with hooks."""
        return self._run_pass(self._time_hooked)

    def _time_plain(self) -> tuple[float, float]:
        args, kwargs = self._inputs()
        start = time.perf_counter_ns()
        output = self.model(*args, **kwargs)
        forward = time.perf_counter_ns() - start
        if (scalar := self._scalar(output)) is None:
            return forward / 1e9, 0.0
        backward = self._backward(scalar)
        start = time.perf_counter_ns()
        backward()
        return forward / 1e9, (time.perf_counter_ns() - start) / 1e9

    def _time_hooked(self) -> tuple[float, float, LayerTotals]:
        args, kwargs = self._inputs()
        spans = CallSpans(self._hooked, time.perf_counter_ns)
        with spans.forward():
            start = time.perf_counter_ns()
            output = self.model(*args, **kwargs)
            forward = time.perf_counter_ns() - start
        if (scalar := self._scalar(output)) is None:
            return forward / 1e9, 0.0, LayerTotals(spans)
        backward = self._backward(scalar)
        with spans.backward(scalar):
            start = time.perf_counter_ns()
            backward()
            took = time.perf_counter_ns() - start
        return forward / 1e9, took / 1e9, LayerTotals(spans)

    def count_flops(self) -> tuple[CallSpans, ModuleMap[None] | None]:
        """Count FLOPs and bytes in a pass; return the layers where an operation was not counted, too."""
        from hookscope.interp.profiles.flops import FlopCounter

        counter = FlopCounter()
        try:
            spans = self._count(counter.get_total_flops, counter)
            self.notes += counter.notes(self._names)
            left_out = [span for found in counter.left_out.values() for span in found if span is not None]
            return spans, ModuleMap((span.module, None) for span in left_out)
        except Exception as error:  # some operations fail under a dispatch mode
            self.notes.append(f"FLOPs were not counted, because torch.utils.flop_counter raised {type(error).__name__}")
            return self._count(lambda: 0, None), None

    def _count(self, read: Callable[[], int], mode: Any) -> CallSpans:
        args, kwargs = self._inputs()
        spans = CallSpans(self._hooked, read, keep_outputs=True)
        if mode is not None:
            mode.running = lambda: spans.running
        with nullcontext() if mode is None else mode:
            with spans.forward():
                output = self.model(*args, **kwargs)
            if (scalar := self._scalar(output)) is not None:
                backward = self._backward(scalar)
                with spans.backward(scalar):
                    backward()
        return spans

    def count_saved(self) -> tuple[ModuleMap[int], CallSpans] | None:
        """Return the bytes that autograd saves in each layer; None if torch allows no saved-tensor hooks here."""
        if not self.backward:
            return None
        args, kwargs = self._inputs()
        known = {
            id(s): s
            for s in map(_storage_of, (*self.model.parameters(), *self.model.buffers(), *find_tensors((args, kwargs))))
        }
        held = {_key(storage): storage for storage in known.values()}
        spans, found = CallSpans(self._hooked, lambda: 0), ModuleMap((module, 0) for module in self._hooked)

        def pack(tensor: Tensor) -> Tensor:
            memory = _storage_of(tensor)
            if _key(memory) not in held:
                held[_key(memory)] = memory  # a reference, so that no other storage gets its address
                for module in ModuleMap((span.module, None) for span in _enclosing_spans(spans.running)):
                    found[module] += memory.nbytes() if isinstance(memory, torch.UntypedStorage) else tensor.nbytes
            return tensor.detach()  # detached, because a node that holds its own output is never freed

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), spans.forward():
                self.model(*args, **kwargs)
        except RuntimeError as error:  # torch.func forbids saved-tensor hooks
            self.notes.append(
                f"the memory that autograd saves was not counted, because torch raised {type(error).__name__}"
            )
            return None
        return found, spans


def _enclosing_spans(span: CallSpan | None) -> Iterator[CallSpan]:
    return iter(()) if span is None else span.enclosing()


def _storage_of(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse
        return tensor


def _key(memory: Any) -> int:
    return int(memory._cdata) if isinstance(memory, torch.UntypedStorage) else id(memory)


class LayerTotals:
    """The sums over all calls of each layer in one pass: totals, and the layer's own parts."""

    def __init__(self, spans: CallSpans) -> None:
        self.calls = ModuleMap[int]()
        self.forward = ModuleMap[int]()
        self.forward_self = ModuleMap[int]()
        self.backward = ModuleMap[int]()
        self.backward_self = ModuleMap[int]()
        self.gradients = ModuleMap[int]()
        self.outside = spans.outside.backward
        for span in spans.calls:
            _add(self.calls, span.module, 1)
            if all(
                outer.module is not span.module for outer in list(span.enclosing())[1:]
            ):  # a layer that calls itself counts once
                _add(self.forward, span.module, span.forward)
            _add(self.forward_self, span.module, span.forward)
            if span.parent is not None:
                _add(self.forward_self, span.parent.module, -span.forward)
            _add(self.backward_self, span.module, span.backward)
            for module in ModuleMap((each.module, None) for each in span.enclosing()):
                _add(self.backward, module, span.backward)
                _add(self.gradients, module, span.gradients)


def _add(into: ModuleMap[int], module: nn.Module, number: int) -> None:
    into[module] = into.get(module, 0) + number
