"""Run a model while global hooks note each call, and wrappers note what the hooks of one layer do."""

from __future__ import annotations

import io
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from hookscope.captures.inplace import VersionWatch, watch
from hookscope.censuses import HookEntry
from hookscope.censuses.entry import locate
from hookscope.compiler import run_eagerly
from hookscope.layers import Modules
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors, tree_map

__all__ = ["HookRun", "ModuleCall", "WatchedPass", "find_ways_around"]

_TORCH, _OWN = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


@dataclass
class ModuleCall:
    """One call of a module: who made it, and what was on."""

    module: nn.Module
    name: str | None  # None: it is not in the model
    parent: str | None
    grad_mode: bool
    requires_grad: tuple[bool, ...]  # of its floating-point inputs
    addresses: frozenset[int]
    backward: bool
    before: BaseException | None  # the exception that was being handled when it began
    error: BaseException | None = None
    returned: bool = False


@dataclass
class HookRun:
    """What a hook of the layer did in the pass."""

    entry: HookEntry
    fired: int = 0
    returned: str = ""
    wrote: bool = False
    error: BaseException | None = None
    no_grad_input: bool = False


@dataclass
class WatchedPass:
    """A pass forward and, where the result requires grad, backward."""

    modules: Modules
    layer: nn.Module
    hooks: list[HookRun]
    calls: list[ModuleCall] = field(default_factory=list)
    raised: list[ModuleCall] = field(default_factory=list)
    error: BaseException | None = None
    backward_error: BaseException | None = None
    outputs: list[Any] = field(default_factory=list)  # of the layer, only its structure and flags
    addresses: set[int] = field(default_factory=set)
    end: int = 0  # number of calls when the layer returned
    reached: bool = False
    goal: bool = False
    overwritten: str = ""
    new_hooks: list[Any] = field(default_factory=list)
    kept: bool = False

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], backward: bool = True) -> WatchedPass:
        """Run the model on copies of the inputs, and leave it as it was."""
        self._stack: list[ModuleCall] = []
        self._watched: list[VersionWatch] = []
        self._alive: list[weakref.ref[Tensor]] = []
        self._backward, self._thread = False, threading.get_ident()
        with _leave_no_trace(self.modules, args, kwargs), ExitStack() as hooks:
            given, named = tree_map(_copy, (args, dict(kwargs)))
            hooks.callback(self._wrap_hooks())
            before = {key for table in _tables(self.layer) for key in table}
            hooks.callback(register_module_forward_pre_hook(self._begin).remove)
            hooks.callback(register_module_forward_hook(self._end, always_call=True).remove)
            try:
                output = self.modules.model(*given, **named)
            except Exception as error:
                self.error = error
            else:
                self._look("after the last layer")
                self._backward = True
                if backward:
                    self._run_backward(output, (given, named))
            new = [hook for table in _tables(self.layer) for key, hook in table.items() if key not in before]
            self.new_hooks = new
            given = named = output = None
        self.kept = any(each() is not None for each in self._alive)
        return self

    def _run_backward(self, output: Any, given: Any) -> None:
        roots = [each for each in find_tensors(output) if each.requires_grad]
        self.goal = bool(roots)
        if not roots:
            return
        ones = [torch.ones_like(each) for each in roots]
        leaves = [each for each in (*self.modules.tensors, *find_tensors(given)) if each.requires_grad]
        try:
            if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in leaves):  # it might step an optimizer
                torch.autograd.grad(roots, leaves, ones, allow_unused=True)
            else:
                torch.autograd.backward(roots, ones)
        except Exception as error:
            self.backward_error = error

    def _begin(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        parent = self._stack[-1] if self._stack else None
        self._look(f"in forward of {_title(parent)}, before {self._name(module)!r}" if parent else "")
        tensors = [each for each in find_tensors(args) if each.is_floating_point()]
        self._stack.append(
            ModuleCall(
                module,
                self.modules.names.get(module),
                parent.name if parent else None,
                torch.is_grad_enabled(),
                tuple(each.requires_grad for each in tensors),
                frozenset(map(_address, tensors)),
                self._backward,
                sys.exception(),
            )
        )
        self.calls.append(self._stack[-1])

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread or not self._stack or self._stack[-1].module is not module:
            return
        call = self._stack.pop()
        if (error := sys.exception()) is not call.before and output is None:
            call.error = error
            self.raised.append(call)
            return
        call.returned = True
        self._look(f"by {self._name(module)!r} ({type(module).__name__})")
        if module is self.layer and not self._backward:
            self.end = len(self.calls)
            tensors = find_tensors(output)
            self.outputs.append(tree_map(_flag, output))
            self.addresses |= set(map(_address, tensors))
            for each in tensors:
                if each.requires_grad:
                    each.register_hook(self._reach)  # type: ignore[no-untyped-call]
                    self._alive.append(weakref.ref(each))
            self._watched += [found for each in tensors if (found := watch(each)) is not None]

    def _reach(self, grad: Tensor) -> None:
        self.reached = True

    def _look(self, where: str) -> None:
        if any(each.written() for each in self._watched):
            self.overwritten = self.overwritten or where
            self._watched.clear()

    def _name(self, module: nn.Module) -> str:
        return str(self.modules.names.get(module, "a module outside the model"))

    def _wrap_hooks(self) -> Callable[[], None]:
        tables = [(getattr(self.layer, hook.entry._attribute), hook.entry._id) for hook in self.hooks]
        before = [(table, key, table[key]) for table, key in tables]
        for (table, key, function), hook in zip(before, self.hooks, strict=True):
            table[key] = partial(self._call, hook, function)

        def unwrap() -> None:
            for table, key, function in before:
                table[key] = function

        return unwrap

    def _call(self, hook: HookRun, function: Callable[..., Any], *given: Any) -> Any:
        hook.fired += 1
        tensors = [each for each in find_tensors(given[1:]) if not each.is_inference()]
        versions = [each._version for each in tensors]
        try:
            returned = function(*given)
        except Exception as error:
            hook.error = error
            raise
        if "backward" in hook.entry.kind:
            hook.no_grad_input = "pre" not in hook.entry.kind and not find_tensors(given[1])
        elif returned is not None and returned is not given[-1]:
            hook.returned = type(returned).__name__
        if [each._version for each in tensors] != versions:
            hook.wrote = True
            for watched in self._watched:  # a later step has to write again
                watched.version = watched.counter._version
        return returned


def _tables(layer: nn.Module) -> list[dict[int, Any]]:
    return [layer._forward_pre_hooks, layer._forward_hooks, layer._backward_hooks, layer._backward_pre_hooks]


def _title(call: ModuleCall | None) -> str:
    return f"{call.name!r} ({type(call.module).__name__})" if call and call.name else "the model"


def _flag(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype, device="meta").requires_grad_(tensor.requires_grad)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided and not tensor.is_nested else id(tensor)


def _copy(tensor: Tensor) -> Tensor:
    """Copy an input, so that no pass writes into it or into its .grad."""
    copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return copied if tensor.is_leaf else copied.clone()


@contextmanager
def _leave_no_trace(modules: Modules, *given: Any) -> Iterator[None]:
    """Restore the model, its gradients and the random numbers, and show no warnings or prints of the pass."""
    grads = [(each, each.grad) for each in modules.model.parameters()]
    with (
        _lend_buffers(modules.model),
        preserve_model(modules.model, attributes=True),
        preserve_rng_state(modules.model, *given),
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


@contextmanager
def _lend_buffers(model: nn.Module) -> Iterator[None]:
    """Put copies in place of the buffers, so that a graph of the user that needs the buffers still runs backward."""
    copies: dict[int, Tensor] = {}
    before = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        for module, buffers in before:
            for name, buffer in buffers.items():
                if buffer is not None:
                    module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())
        yield
    finally:
        for module, buffers in before:
            module._buffers.clear()
            module._buffers.update(buffers)


class _WeightUse(TorchFunctionMode):
    """Notes the functions that get one of these tensors, and the module in whose forward they run."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._ids = {id(each) for each in tensors}
        self.found: list[tuple[str, str, nn.Module | None]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call, and make it."""
        name = getattr(function, "__name__", "")
        if name == "__get__":  # a property, such as weight.T
            name = getattr(getattr(function, "__self__", None), "__name__", "")
            name = name if name in ("T", "mT", "H", "mH", "data") else ""
        if name not in ("", "size", "dim", "numel") and any(id(t) in self._ids for t in find_tensors((args, kwargs))):
            self.found.append((name, _place(sys._getframe(1)), _owner(sys._getframe(1))))
        return function(*args, **(kwargs or {}))


def _place(frame: FrameType | None) -> str:
    """Return the function and line outside torch and hookscope that a frame was called from."""
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN)):
        frame = frame.f_back
    return f"{frame.f_code.co_qualname} ({locate(frame.f_code.co_filename, frame.f_lineno)})" if frame else "torch"


def _owner(frame: FrameType | None) -> nn.Module | None:
    """Return the module in whose method a frame runs."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def find_ways_around(
    modules: Modules, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[tuple[str, str, nn.Module | None]], list[tuple[str, str, nn.Module | None]]]:
    """Run the model again, and return who ran the forward of a layer without a call, and who used its parameters.

    Returns:
        Two lists, each of the name of a function, where it was called, and the module in whose method.

    """
    ran: list[tuple[str, str, nn.Module | None]] = []
    forward = layer.forward

    def run(*given: Any, **named: Any) -> Any:
        frame = sys._getframe(1)
        ran.append((frame.f_code.co_name, _place(frame), _owner(frame)))
        return forward(*given, **named)

    use = _WeightUse(list(layer.parameters()))
    with _leave_no_trace(modules, args, kwargs), suppress(Exception):
        given, named = tree_map(_copy, (args, dict(kwargs)))
        before = dict(vars(layer))
        vars(layer)["forward"] = run
        try:
            with use:
                modules.model(*given, **named)
        finally:
            vars(layer).pop("forward", None)
            vars(layer).update({"forward": before["forward"]} if "forward" in before else {})
    return ran, use.found
