"""Run a model while global hooks note each call, and wrappers note what the hooks of one layer do."""

from __future__ import annotations

import io
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from hookscope.captures.inplace import VersionWatch, watch
from hookscope.censuses import HookEntry
from hookscope.censuses.entry import locate
from hookscope.compiler import run_eagerly
from hookscope.layers import Modules
from hookscope.layers.modules import kind_of
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors, tree_map

__all__ = ["HookRun", "ModuleCall", "WatchedPass"]


@dataclass
class ModuleCall:
    """One call of a module, and the modes that were on."""

    module: nn.Module
    name: str | None  # None: it is not in the model
    parent: ModuleCall | None
    grad_mode: bool
    inputs: dict[int, bool]  # the address of each floating-point input -> whether it requires grad
    backward: bool
    error: BaseException | None = None
    returned: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} ({kind_of(self.module)})" if self.name else f"the {kind_of(self.module)}"


@dataclass
class HookRun:
    """What a hook of the layer did in the pass."""

    entry: HookEntry
    fired: int = 0
    returned: str = ""
    wrote: bool = False
    error: BaseException | None = None
    place: str = ""  # of this error; "" if the call of the hook raised it
    no_grad_input: bool = False


@dataclass
class WatchedPass:
    """A pass forward and, where the result requires grad, backward."""

    modules: Modules
    layer: nn.Module
    hooks: list[HookRun]
    calls: list[ModuleCall] = field(default_factory=list)
    error: BaseException | None = None
    in_backward: bool = False
    outputs: list[Any] = field(default_factory=list)  # of the layer, only its structure and flags
    addresses: set[int] = field(default_factory=set)  # of these outputs
    end: int = 0  # number of calls when the layer returned
    keywords: tuple[str, ...] = ()  # of the inputs, if there were no positional ones
    reached: bool = False
    has_goal: bool = False
    overwritten: str = ""
    kept: bool = False
    ways_around: list[tuple[str, ModuleCall]] = field(default_factory=list)

    def run(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], backward: bool = True, around: bool = False
    ) -> WatchedPass:
        """Run the model on copies of the inputs, and leave it as it was.

        Args:
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.
            backward: also run backward.
            around: note who runs the forward of the layer without a call, or uses its parameters.

        """
        self._stack: list[ModuleCall] = []
        self._watched: list[VersionWatch] = []
        self._alive: list[weakref.ref[Tensor]] = []
        self._thread = threading.get_ident()
        model = self.modules.model
        with _leave_no_trace(model, args, kwargs), ExitStack() as hooks:
            given, named = tree_map(_copy, (args, dict(kwargs)))
            for hook in self.hooks:
                table, key = getattr(self.layer, hook.entry._attribute), hook.entry._id
                hooks.callback(table.update, {key: table[key]})
                table[key] = partial(self._call, hook, table[key])
            hooks.callback(register_module_forward_pre_hook(self._begin).remove)
            hooks.callback(register_module_forward_hook(self._end, always_call=True).remove)
            first = self.layer.register_forward_pre_hook(self._note_keywords, prepend=True, with_kwargs=True)
            hooks.callback(first.remove)
            if around:
                vars(self.layer)["forward"] = partial(self._run_forward, self.layer.forward)
                hooks.callback(vars(self.layer).pop, "forward")
                hooks.enter_context(_WeightUse(self.layer, self._note))
            # Copies of the buffers, so that a graph of the user that needs the buffers still runs backward.
            buffers = {name: each.detach().clone() for name, each in model.named_buffers() if not is_lazy(each)}
            try:
                output = functional_call(model, buffers, given, named)
                self._look("after the last layer")
                self.in_backward = backward
                if backward:
                    self._run_backward(output, (given, named))
            except Exception as error:
                self.error = error
            given = named = output = None
        self.kept = self.error is None and any(each() is not None for each in self._alive)
        return self

    def _run_backward(self, output: Any, given: Any) -> None:
        roots = [each for each in find_tensors(output) if each.requires_grad]
        self.has_goal = bool(roots)
        if not roots:
            return
        ones = [torch.ones_like(each) for each in roots]
        leaves = [each for each in (*self.modules.tensors, *find_tensors(given)) if each.requires_grad]
        if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in leaves):  # it might step an optimizer
            torch.autograd.grad(roots, leaves, ones, allow_unused=True)
        else:
            torch.autograd.backward(roots, ones)

    def _begin(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        parent = self._stack[-1] if self._stack else None
        name = self.modules.names.get(module)
        self._look(f"in forward of {parent}, before {name!r}" if parent else "")
        inputs = {_address(each): each.requires_grad for each in find_tensors(args) if each.is_floating_point()}
        call = ModuleCall(module, name, parent, torch.is_grad_enabled(), inputs, self.in_backward)
        self._stack.append(call)
        self.calls.append(call)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread or not self._stack or self._stack[-1].module is not module:
            return
        call = self._stack.pop()
        if output is None and (error := sys.exception()) is not None:
            call.error = error
            return
        call.returned = True
        self._look(f"by {call}")
        if module is self.layer and not self.in_backward:
            self.end = len(self.calls)
            self.outputs.append(tree_map(_flag, output))
            for each in find_tensors(output):
                self.addresses.add(_address(each))
                if each.requires_grad:
                    each.register_hook(self._reach)  # type: ignore[no-untyped-call]
                    self._alive.append(weakref.ref(each))
                if (found := watch(each)) is not None:
                    self._watched.append(found)

    def _note_keywords(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.keywords = () if args else tuple(kwargs)

    def _reach(self, grad: Tensor) -> None:
        self.reached = True

    def _look(self, where: str) -> None:
        if any(each.written() for each in self._watched):
            self.overwritten = self.overwritten or where
            self._watched.clear()

    def _run_forward(self, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._note("forward()")
        return forward(*given, **named)

    def _note(self, function: str) -> None:
        if self._stack and self._stack[-1].module is not self.layer:
            self.ways_around.append((function, self._stack[-1]))

    def _call(self, hook: HookRun, function: Callable[..., Any], *given: Any) -> Any:
        hook.fired += 1
        tensors = [each for each in find_tensors(given[1:]) if not each.is_inference()]
        versions = [each._version for each in tensors]
        try:
            returned = function(*given)
        except Exception as error:
            hook.error = error
            if error.__traceback__ is not None and (inside := error.__traceback__.tb_next) is not None:
                hook.place = locate(inside.tb_frame.f_code.co_filename, inside.tb_lineno)
            raise
        if hook.entry.kind in ("full_backward", "backward (legacy)"):
            hook.no_grad_input = bool(given[1]) and not find_tensors(given[1])
        if [each._version for each in tensors] != versions:
            hook.wrote = True
            for watched in self._watched:  # a later step has to write again
                watched.version = watched.counter._version
        if returned is not None and returned is not given[-1]:
            hook.returned = type(returned).__name__
        return returned


class _WeightUse(TorchFunctionMode):
    """Notes the functions that get a parameter of a layer."""

    def __init__(self, layer: nn.Module, note: Callable[[str], None]) -> None:
        super().__init__()
        self._ids, self._note = set(map(id, layer.parameters())), note

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call, and make it."""
        name = getattr(function, "__name__", "")
        if name == "__get__":  # a property, such as weight.T
            name = getattr(getattr(function, "__self__", None), "__name__", "")
            name = name if name in ("T", "mT", "H", "mH", "data") else ""
        if name not in ("", "size", "dim", "numel") and any(id(t) in self._ids for t in find_tensors((args, kwargs))):
            self._note(name)
        return function(*args, **(kwargs or {}))


def _flag(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype, device="meta").requires_grad_(tensor.requires_grad)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided and not tensor.is_nested else id(tensor)


def _copy(tensor: Tensor) -> Tensor:
    """Copy an input, so that no pass writes into it or into its .grad."""
    copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return copied if tensor.is_leaf else copied.clone()


@contextmanager
def _leave_no_trace(model: nn.Module, *given: Any) -> Iterator[None]:
    """Restore the model, its gradients and the random numbers, and show no warnings or prints of the pass."""
    grads = [(each, each.grad) for each in model.parameters()]
    with (
        preserve_model(model, attributes=True),
        preserve_rng_state(model, *given),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(io.StringIO()),
        run_eagerly(),
    ):
        try:
            for each, _ in grads:
                each.grad = None
            yield
        finally:
            for each, grad in grads:
                each.grad = grad
