"""Run the passes of one profile: plain ones, timed ones, and those that count FLOPs, bytes and what autograd saves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hookscope.interp.profiles.spans import Span, Spans, nodes_of, sequence_number
from hookscope.layers import Modules
from hookscope.preserve import ModelState
from hookscope.pytree import find_tensors, tree_map

__all__ = ["Job", "Sums"]

_T = TypeVar("_T")


class _UsedUpError(ValueError):
    """Backward would go through a graph that an earlier pass made, and has used up."""


class Job:
    """The passes of one profile.

    Attributes:
        before: the model as it was before them.
        notes: what there is to say about them.
        gradients: parameters, and other leaves that backward may reach, with the gradients that they had.

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
        self.model, self._names, self._hooked, self._given = modules.model, modules.names, hooked, (args, kwargs)
        self.backward, self._loss = backward, loss
        self.before, self._resets = ModelState(self.model, attributes=True), False
        self._first = self._begun = sequence_number()  # of the nodes that these passes make, and that this one makes
        self.notes: list[str] = []
        self.gradients: list[tuple[Tensor, Tensor | None]] = [(leaf, leaf.grad) for leaf in self.model.parameters()]

    def _again(self, run: Callable[[], _T]) -> _T:
        """Run a pass; if the model keeps a graph of an earlier one, let this and all others begin as the first did."""
        try:
            return run()
        except _UsedUpError:
            self._resets = True
            return run()

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._resets:
            self.before.restore()
        self._begun = sequence_number()
        for parameter in self.model.parameters():
            parameter.grad = None
        args, kwargs = tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad), self._given)
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
        sums = [t.sum() for t in find_tensors(output) if t.requires_grad]
        if not sums:
            self.backward = False
            self.notes.append("no backward: the output does not require grad")
            return None
        return torch.stack([part.real.double() if part.is_complex() else part.double() for part in sums]).sum()

    def _backward(self, scalar: Tensor) -> Callable[[], None]:
        """Prepare backward, so that it leaves the graphs that were there before the first pass.

        Raises:
            _UsedUpError: it would go through one that an earlier pass has used up.

        """
        nodes = [node for node, _ in nodes_of(scalar)]
        old = {number: node for node in nodes if (number := node._sequence_nr()) < self._begun}
        if old and max(old) >= self._first:
            raise _UsedUpError(
                f"the model keeps a tensor with its graph ({type(old[max(old)]).__name__}) from one pass to the next, "
                "where profile cannot put it back, so a second backward would go through that graph; let the model "
                "detach what it keeps, or write backward=False"
            )
        if old:
            leaves = [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]
            known = {id(leaf) for leaf, _ in self.gradients}
            self.gradients += [(leaf, leaf.grad) for leaf in leaves if id(leaf) not in known]
            self.notes.append("the model kept tensors with their graph: backward goes through it, too, for no layer")

        def run() -> None:
            try:
                scalar.backward(retain_graph=bool(old))  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if not old or "second time" not in str(error):
                    raise
                raise ValueError(
                    f"the model keeps a tensor with its graph ({type(old[max(old)]).__name__}) that a backward before "
                    "this profile has used up, so no other backward can go through it; take what the model keeps away, "
                    "as model.train() and model.eval() often do, or write backward=False"
                ) from error

        return run

    def plain(self) -> tuple[float, float]:
        """Time a pass without hooks."""
        return self._again(self._plain)

    def timed(self) -> tuple[float, float, Sums]:
        """Time a pass with hooks."""
        return self._again(self._timed)

    def _plain(self) -> tuple[float, float]:
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

    def _timed(self) -> tuple[float, float, Sums]:
        args, kwargs = self._inputs()
        spans = Spans(self._hooked, time.perf_counter_ns)
        with spans.forward():
            start = time.perf_counter_ns()
            output = self.model(*args, **kwargs)
            forward = time.perf_counter_ns() - start
        if (scalar := self._scalar(output)) is None:
            return forward / 1e9, 0.0, Sums(spans)
        backward = self._backward(scalar)
        with spans.backward(scalar):
            start = time.perf_counter_ns()
            backward()
            took = time.perf_counter_ns() - start
        return forward / 1e9, took / 1e9, Sums(spans)

    def counted(self) -> tuple[Spans, bool]:
        """Count FLOPs and bytes in a pass; whether torch could count FLOPs."""
        from hookscope.interp.profiles.flops import FlopCounter

        counter = FlopCounter()
        try:
            spans = self._counted(counter.get_total_flops, counter)
            self.notes += counter.notes(self._names)
            return spans, True
        except Exception as error:  # a mode sees every operation, and some do not bear it
            self.notes.append(f"FLOPs not counted: torch.utils.flop_counter raised {type(error).__name__}")
            return self._counted(lambda: 0, None), False

    def _counted(self, read: Callable[[], int], mode: Any) -> Spans:
        args, kwargs = self._inputs()
        spans = Spans(self._hooked, read, look=True)
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

    def saved(self) -> tuple[dict[nn.Module, int], Spans] | None:
        """Count the bytes that autograd saves, for the layers that save them; None if torch does not let us."""
        if not self.backward:
            return None
        args, kwargs = self._inputs()
        known = {
            id(s): s
            for s in map(_memory, (*self.model.parameters(), *self.model.buffers(), *find_tensors((args, kwargs))))
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
