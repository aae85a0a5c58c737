"""Read a clock or a counter around each call of a layer and each backward node of one pass."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.layers import call_id

__all__ = ["CallSpan", "CallSpans", "bytes_of", "nodes_of", "sequence_number"]

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class CallSpan:
    """One call of a layer.

    Attributes:
        module: the layer.
        parent: the call around it, or None.
        call: its ID while it runs; see `call_id`.
        forward: the increase of the reading during the call.
        backward: the increase during the backward nodes of this call, without those of calls inside.
        gradients: the bytes of the gradients that these nodes made.

    """

    __slots__ = ("backward", "call", "forward", "gradients", "module", "outputs", "parent", "start")

    def __init__(self, module: nn.Module, parent: CallSpan | None, call: int = 0) -> None:
        self.module, self.parent, self.call = module, parent, call
        self.forward = self.backward = self.gradients = self.start = 0
        self.outputs: Any = None

    def enclosing(self) -> Iterator[CallSpan]:
        """Yield this call and the calls around it, from the inside out."""
        span: CallSpan | None = self
        while span is not None:
            yield span
            span = span.parent


class CallSpans:
    """The calls of one pass.

    Attributes:
        calls: the calls, in the order in which they began.
        outside: the increase during backward nodes that no layer made.

    """

    def __init__(self, modules: Iterable[nn.Module], read: Callable[[], int], *, keep_outputs: bool = False) -> None:
        """Store the layers and the reading; the hooks come later.

        Args:
            modules: the layers.
            read: returns the reading of a clock or counter.
            keep_outputs: keep outputs until the pass ends, and count the bytes of gradients. This takes time.

        """
        self._modules, self._read, self._keep_outputs = list(modules), read, keep_outputs
        self.calls: list[CallSpan] = []
        self.outside = CallSpan(nn.Identity(), None)
        self._running: list[CallSpan] = []
        # Nodes with this sequence number or a later one belong to the call at the same index of _owners.
        self._numbers: list[int] = []
        self._owners: list[CallSpan | None] = []
        self._thread = threading.get_ident()
        self._handles: list[Any] = []

    @property
    def running(self) -> CallSpan | None:
        """The innermost call that has not returned."""
        return self._running[-1] if self._running else None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Hook the layers while the block runs."""
        with ExitStack() as stack:
            for module in self._modules:
                stack.callback(module.register_forward_pre_hook(self._before).remove)
                # always_call, because a call also ends when it raises and the model catches the exception.
                stack.callback(module.register_forward_hook(self._after, prepend=True, always_call=True).remove)
            yield

    @contextmanager
    def backward(self, root: Tensor) -> Iterator[None]:
        """Hook the nodes behind a tensor while the block runs.

        A recomputation, as in `torch.utils.checkpoint`, counts for the node that starts it.
        """
        try:
            for node, owner in self._nodes_with_owner(root):
                self._hook(node, self.outside if owner is None else owner)
            yield
        finally:
            while self._handles:
                self._handles.pop().remove()

    def _before(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "the model runs layers in several threads, and hooks cannot separate their times. Profile a part that "
                "runs in one thread, such as the .module of an nn.DataParallel"
            )
        span = CallSpan(module, self.running, call_id(sys._getframe(1)))
        self.calls.append(span)
        self._running.append(span)
        self._numbers.append(sequence_number())
        self._owners.append(span)
        span.start = self._read()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        now = self._read()
        this = call_id(sys._getframe(1))
        places = range(len(self._running))[::-1]
        place = next((i for i in places if self._running[i].call == this), None)
        if place is None:
            return
        span = self._running[place]
        span.forward = now - span.start
        if self._keep_outputs:
            span.outputs = output
        del self._running[place:]  # and calls inside that ended by an exception
        self._numbers.append(sequence_number())
        self._owners.append(self.running)

    def _nodes_with_owner(self, root: Tensor) -> Iterator[tuple[Any, CallSpan | None]]:
        """Yield the autograd nodes of a tensor, each with the call that made it."""
        for node, user in nodes_of(root):
            # AccumulateGrad has no useful number, so it counts for the node that uses the parameter.
            number = (user if type(node).__name__ == "AccumulateGrad" and user is not None else node)._sequence_nr()
            place = bisect_right(self._numbers, number) - 1
            yield node, self._owners[place] if place >= 0 else None

    def _hook(self, node: Any, owner: CallSpan) -> None:
        read, start = self._read, 0

        def before(grads: Any) -> None:
            nonlocal start
            start = read()

        def after(made: Any, given: Any) -> None:
            owner.backward += read() - start
            if self._keep_outputs:
                owner.gradients += _new_bytes(made, given)

        self._handles.append(node.register_prehook(before))
        self._handles.append(node.register_hook(after))


def nodes_of(root: Tensor) -> Iterator[tuple[Any, Any]]:
    """Yield each autograd node of a tensor once, with a node that uses it; None for the first."""
    waiting: list[tuple[Any, Any]] = [(root.grad_fn, None)] if root.grad_fn is not None else []
    seen = {root.grad_fn}
    while waiting:
        node, user = waiting.pop()
        yield node, user
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append((following, node))


def _new_bytes(made: Iterable[Any], given: Iterable[Any]) -> int:
    """Return the bytes of the tensors in `made` whose memory is not in `given`."""
    known = {_storage_key(tensor) for tensor in given if isinstance(tensor, Tensor)}
    total = 0
    for tensor in made:
        if isinstance(tensor, Tensor) and (place := _storage_key(tensor)) not in known:
            known.add(place)
            total += bytes_of(tensor)
    return total


def bytes_of(tensor: Tensor) -> int:
    """Count the bytes of a tensor, sparse ones too."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    try:
        return tensor.nbytes
    except RuntimeError:  # another sparse layout
        return int(tensor.values().nbytes)


def _storage_key(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse
        return id(tensor)
