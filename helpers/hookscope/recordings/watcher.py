"""Log the hooks of tensors, and of the nodes that made them."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parameter import UninitializedParameter

from hookscope.recordings.event_buffer import EventBuffer
from hookscope.recordings.wrapped_hook import Hook, Hooks, OwnHook, WrappedHook, short_name, unwrap

# The hook dictionary of a tensor, and the method that registers a hook.
_ON_TENSORS = {
    "tensor": ("_backward_hooks", "register_hook"),
    "post_accumulate_grad": ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook"),
}
PARAMETER_KINDS = tuple(_ON_TENSORS)


class Watcher:
    """Register logging hooks on tensors and autograd nodes.

    Args:
        buffer: stores the events, and removes the hooks at the end.

    """

    def __init__(self, buffer: EventBuffer) -> None:
        self._buffer = buffer
        buffer.flush = self.flush
        self._fired: Counter[tuple[str, str, str]] = Counter()  # by kind, name and type
        # Gradients that retain_grad is about to fill.
        self._retained: list[_RetainedGrad] = []
        # torch frees an AccumulateGrad node and its hooks if nothing refers to it.
        self._nodes: list[Node] = []

    def forget(self) -> None:
        """Drop all references."""
        self._retained, self._nodes = [], []

    def add_parameters(self, layers: Mapping[nn.Module, str], kinds: Iterable[str]) -> None:
        """Log hooks of these kinds on the parameters that require grad."""
        seen: set[nn.Parameter] = set()
        for layer, prefix in layers.items():
            for name, parameter in layer.named_parameters(prefix=prefix):
                if parameter in seen or not parameter.requires_grad:
                    continue
                if isinstance(parameter, UninitializedParameter):
                    raise ValueError(
                        f"parameter {name!r} has no shape yet, because its layer is lazy. Call the model once before "
                        "record"
                    )
                seen.add(parameter)
                self.add_tensor(parameter, name, [kind for kind in PARAMETER_KINDS if kind in kinds])

    def add_tensor(self, tensor: torch.Tensor, name: str, kinds: Iterable[str]) -> None:
        """Log the hooks on `tensor`: those that are there, and one of hookscope's."""
        for kind in kinds:
            log = functools.partial(self._log_tensor, kind, name, type(tensor).__name__)
            attribute, register = _ON_TENSORS[kind]
            self._wrap_all(getattr(tensor, attribute) or {}, log)
            self._register(tensor, register, functools.partial(log, ""))
            hooks: Hooks = getattr(tensor, attribute)
            self._buffer.cleanup.callback(self._buffer.note_new, hooks, set(hooks), f"on tensor {name!r}")

    def add_grad(self, tensor: torch.Tensor, name: str) -> None:
        """Log when `.grad` of `tensor` is filled. torch calls no hook then."""
        if tensor.is_leaf:
            self.add_tensor(tensor, name, ["post_accumulate_grad"])
            return
        tensor.retain_grad()
        retained = _RetainedGrad(tensor, name)

        def about_to_fill(grad: torch.Tensor) -> None:
            if not self._buffer.running or (watched := retained.tensor()) is None:
                return
            if watched.grad is not None and watched.grad is not retained.known and watched._version != retained.version:
                self._buffer.note(
                    f"Tensor {name!r} was changed in place after watch. torch then fills its .grad earlier, so "
                    "retain_grad is not logged. Watch the tensor after the in-place operation."
                )
                return
            retained.known = watched.grad
            with self._buffer.lock:
                retained.by = self._buffer.names.get()
                if retained not in self._retained:
                    self._retained.append(retained)
            # Needed if no other hook fires after this one.
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)

        self._register(tensor, "register_hook", about_to_fill)

    def add_node(self, tensor: torch.Tensor, name: str) -> None:
        """Log when the node that made `tensor`, or accumulates its gradient, runs in backward."""
        with torch.enable_grad():  # otherwise older versions of torch find no node for a leaf
            node = get_gradient_edge(tensor).node
        if tensor.is_leaf:
            self._nodes.append(node)
        log = functools.partial(self._log, name=name, of=node.name().rpartition("::")[2])
        for kind, register in (("node_pre", node.register_prehook), ("node_post", node.register_hook)):
            handle = register(self._own_hook(functools.partial(_first, functools.partial(log, kind))))
            self._buffer.cleanup.callback(handle.remove)

    def flush(self) -> None:
        """Log the gradients that retain_grad has filled since the last event.

        torch fills them right after the hooks of the tensor, so they are logged before the next event or when the
        backward pass ends.
        """
        with self._buffer.lock:
            done = [retained for retained in self._retained if retained.is_done()]
            self._retained = [retained for retained in self._retained if retained not in done]
        for retained in done:
            if (tensor := retained.tensor()) is not None and self._buffer.running:
                retained.known = tensor.grad
                self._log("retain_grad", tensor.grad, name=retained.name, of=type(tensor).__name__, by=retained.by)

    def _own_hook(self, run: Hook) -> OwnHook:
        return OwnHook(self._buffer, run)

    def _register(self, holder: Any, register: str, run: Hook) -> None:
        handle = getattr(holder, register)(self._own_hook(run))
        self._buffer.cleanup.callback(handle.remove)

    def _wrap_all(self, hooks: Hooks, log: Callable[..., None], where: str = "") -> None:
        for key, hook in list(hooks.items()):
            if not isinstance(hook, OwnHook):
                self._buffer.cleanup.callback(unwrap, hooks, key)
                hooks[key] = WrappedHook(self._buffer, hook, functools.partial(log, short_name(hook)))
        if where:
            self._buffer.cleanup.callback(self._buffer.note_new, hooks, set(hooks), where)

    def _log(self, kind: str, value: Any, *, name: str, of: str, by: str = "") -> None:
        self._log_tensor(kind, name, of, "", value, by)

    def _log_tensor(self, kind: str, name: str, of: str, hook: str, value: Any, by: str = "") -> None:
        with self._buffer.lock:
            call = self._fired[kind, name, of] + 1
            self._buffer.log(kind, name, of, call, value, hook, by=by)
            if not hook:  # hookscope's hook is the last
                self._fired[kind, name, of] = call


class _RetainedGrad:
    """A tensor whose `.grad` torch fills because of `retain_grad()`."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.tensor = weakref.ref(tensor)  # a strong reference from the hook to its tensor would leak both
        self.name = name
        self.version = tensor._version
        self.known = tensor.grad
        self.by = ""  # the thread that fills it

    def is_done(self) -> bool:
        tensor = self.tensor()
        return tensor is None or (tensor.grad is not None and tensor.grad is not self.known)


def _first(log: Hook, value: Any, *_: Any) -> None:
    log(value)
