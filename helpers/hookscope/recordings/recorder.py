"""Register logging hooks on layers, wrap the hooks that are already there, and remove everything at the end."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import BackwardHook

from hookscope.layers import LateModules, ModuleMap, Modules, call_id, is_write_to_hooked
from hookscope.pytree import find_tensors
from hookscope.recordings.event import Keywords
from hookscope.recordings.event_buffer import EventBuffer
from hookscope.recordings.thread_state import ThreadState
from hookscope.recordings.watcher import PARAMETER_KINDS, Watcher
from hookscope.recordings.wrapped_hook import Hook, Hooks, OwnHook, WrappedHook, short_name, unwrap
from hookscope.task_local import TaskLocal

# torch's hook dictionaries by kind: that of a module, and the global one.
_DICTS = {
    "forward_pre": ("_forward_pre_hooks", "_global_forward_pre_hooks"),
    "forward": ("_forward_hooks", "_global_forward_hooks"),
    "full_backward_pre": ("_backward_pre_hooks", "_global_backward_pre_hooks"),
    "full_backward": ("_backward_hooks", "_global_backward_hooks"),
}
KINDS = (*_DICTS, *PARAMETER_KINDS)
"""The kinds that `record(kinds=...)` takes. `Event.kind` also lists those of watched tensors."""

_OUTPUT_WARNING = "For backward hooks to be called"
_INPUT_WARNING = "Full backward hook is firing when gradients are computed"
# Errors that full backward hooks cause: a part of the message -> the reason and the fix.
_BACKWARD_ERRORS = {
    ("torch.return_types",): "these hooks cannot rebuild the torch.return_types tuple that a layer returns. "
    "Do not record that layer, or record",
    ("setup_context staticmethod",): "these hooks do not work under the transforms of torch.func. Record",
}

# torch's code that makes a view of each input and output of a layer with a full backward hook.
_WRAPS_TENSORS = BackwardHook._apply_on_tensors.__code__

Calls = Mapping[nn.Module, int]  # layer -> number of the call that a backward hook belongs to


class Recorder:
    """Log the hooks of layers that fire between `start` and `stop`.

    Args:
        layers: layers to record and their names.
        kinds: the kinds of hooks to log.
        buffer: stores the events.

    """

    def __init__(self, layers: Mapping[nn.Module, str], kinds: frozenset[str], buffer: EventBuffer) -> None:
        self.ran: set[str] = set()
        self._buffer = buffer
        self._layers = ModuleMap(layers)
        self._all = False  # whether layers that are added to the model later are logged, too
        self._kinds = kinds
        self.watcher = Watcher(buffer)
        self._calls = ModuleMap[int]()  # numbers given so far
        # Calls without an input that requires grad; the value says whether there is one in a container or by keyword.
        self._early: dict[tuple[str, int | None], bool] = {}
        self._per_task = TaskLocal(ThreadState)
        self._has_backward_hooks = False
        self._noted_identity = False
        # Entries of backward hook dictionaries, and how to make the entry for the next call: see _renew.
        self._slots: dict[int, list[tuple[Hooks, int, Callable[[Hook, Calls], Hook]]]] = {}
        self._global_calls = ModuleMap[int]()
        self._filter = ("ignore", SimpleNamespace(match=self._is_own_warning), Warning, None, 0)

    def start(
        self,
        model: nn.Module,
        tensors: Mapping[str, torch.Tensor],
        parameters: bool,
    ) -> None:
        """Register all hooks. If that fails half-way, call `stop`."""
        self._buffer.running = True
        self._buffer.names.get()  # names this thread, in case a backward pass on a thread of torch's comes first
        names = Modules(model).names
        self._all = len(self._layers) == sum(map(has_forward, names))
        self._legacy = legacy = _find_legacy_hook(model)
        if legacy and self._kinds & {"full_backward_pre", "full_backward"}:
            self._buffer.note(
                f"{legacy}. Full backward hooks would change the gradients it gets, so none are recorded. Remove the "
                "legacy hook to record them."
            )
        for kind, (own, common) in _DICTS.items():
            if kind in self._kinds:
                self._wrap_all(None, kind, getattr(torch_module, common))
                for module in self._layers:
                    self._wrap_all(module, kind, getattr(module, own))
        for name, tensor in tensors.items():
            self.watcher.add_tensor(tensor, name, ["tensor"])
        if parameters:
            self.watcher.add_parameters(self._layers, self._kinds)
        for module in self._layers:
            self._add(module)
        late_modules = LateModules(names, self._add_registered)
        self._buffer.cleanup.callback(late_modules.remove)
        late_modules.register()
        if self._all:
            met = torch_module.register_module_forward_pre_hook(OwnHook(self._buffer, self._add_called))
            self._buffer.cleanup.callback(met.remove)

    def stop(self) -> None:
        """Remove hookscope's hooks, and unwrap the others."""
        try:
            self.watcher.flush()
        finally:
            self._buffer.running = False
            try:
                self._buffer.cleanup.close()
            finally:
                self.watcher.forget()
                self._unmute()
                # A graph built inside the block keeps the recorder alive, but must not keep the model alive.
                self._layers, self._slots, self._global_calls = ModuleMap(), {}, ModuleMap()
                self._calls.clear()
                last = self._state.last  # `explain` needs it
                self._per_task.clear()
                self._state.last = last

    def explain(self, error: BaseException | None) -> str:
        """Explain how full backward hooks caused `error`; `""` if they did not."""
        if not self._has_backward_hooks or not (why := _explain_error(error)):
            return ""
        inside, after = getattr(error, "_hookscope_at", ("the with-block", self._state.last))
        place = f"inside {inside}" + (f", after {after} returned" if after else "")
        return f'full backward hooks made the model fail {place}: {why} with kinds=("forward_pre", "forward")'

    @property
    def _state(self) -> ThreadState:
        return self._per_task.get()

    def _add(self, module: nn.Module) -> None:
        before = module.register_forward_pre_hook(OwnHook(self._buffer, self._before), with_kwargs=True)
        self._buffer.cleanup.callback(before.remove)
        after = module.register_forward_hook(OwnHook(self._buffer, self._after), always_call=True)
        self._buffer.cleanup.callback(after.remove)
        if not self._legacy:
            self._add_backward(module)

    def _add_registered(self, module: nn.Module, name: str, leaf: bool = False) -> None:
        """Record a module that was added to the model, if all layers or its name are recorded."""
        if (self._all or name in self._layers.values()) and self._add_late(module, name):
            self._buffer.note(
                f"{_capitalize(self._describe(module))} was added to the model inside the block. It is logged from "
                "then on."
            )

    def _add_late(self, module: nn.Module, name: str) -> bool:
        if self._buffer.full or not has_forward(module):
            return False
        # If another module had this name, its calls count.
        self._calls[module] = max(
            (self._calls.get(other, 0) for other, of in self._layers.items() if of == name), default=0
        )
        self._layers[module] = name
        self._add(module)
        return True

    def _add_called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Record a module that a layer calls but that is not in the model, such as one made in `forward`."""
        if module in self._layers or not (around := self._state.open) or isinstance(module, torch.jit.ScriptModule):
            return
        name = f"{type(module).__name__} (in forward of {self._layers[around[-1][0]] or 'the root'})"
        if not self._add_late(module, name):
            return
        self._before(module, args, {})  # torch has already read the pre-hooks of this call
        self._buffer.note(
            f"{name} is not a submodule of the model: it was made in forward, or is in a plain list. For its first "
            "call, only forward_pre (without keyword arguments) and forward are logged. Assign it in __init__, or "
            "use an nn.ModuleList, to log all."
        )

    def _add_backward(self, module: nn.Module) -> None:
        kinds = [kind for kind in ("full_backward_pre", "full_backward") if kind in self._kinds]
        latch = module._is_full_backward_hook
        if module._backward_hooks and all(isinstance(hook, OwnHook) for hook in module._backward_hooks.values()):
            latch = None  # set by a recording that has not ended, and may end first
        if latch is False and "full_backward" in kinds:
            once = f"{_capitalize(self._describe(module))} once had a legacy backward hook"
            self._buffer.note(
                f"{once}, and torch refuses full backward hooks on such a layer, so none are logged there. To avoid "
                "this, remove the legacy hook with census(model).remove_all() instead of handle.remove()."
            )
            kinds = ["full_backward_pre"]
        self._buffer.cleanup.callback(_restore_latch, module, latch)  # runs after the hooks are off
        # full_backward needs the pre-hook too: torch warns right after it.
        for kind in dict.fromkeys(["full_backward_pre", *kinds]) if kinds else ():
            self._has_backward_hooks = True
            renew = partial(self._point, kind, self._layers[module])
            handle = getattr(module, f"register_{kind}_hook")(renew(None, self._next_call(module)))
            self._buffer.cleanup.callback(handle.remove)
            slot = (getattr(module, _DICTS[kind][0]), handle.id, renew)
            self._slots.setdefault(id(module), []).append(slot)

    def _wrap_all(self, module: nn.Module | None, kind: str, hooks: Hooks) -> None:
        """Replace each hook by a wrapper with the same id, until the recording ends."""
        full = torch_module._global_is_full_backward_hook if module is None else module._is_full_backward_hook
        shown = "backward" if kind == "full_backward" and full is False else kind
        calls: Calls = self._global_calls if module is None else ModuleMap({module: 1})
        for key, hook in list(hooks.items()):
            if isinstance(hook, OwnHook):  # an outer recording's
                continue
            log = partial(self._log_module, shown, short_name(hook))
            self._buffer.cleanup.callback(unwrap, hooks, key)
            hooks[key] = WrappedHook(self._buffer, hook, partial(log, calls))
            if kind.startswith("full_backward"):
                self._slots.setdefault(id(module), []).append((hooks, key, partial(self._rewrap, log)))
        where = "globally" if module is None else f"on {self._describe(module)}"
        self._buffer.cleanup.callback(self._buffer.note_new, hooks, set(hooks), where)

    # hookscope's own hooks.

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (name := self._layers.get(module)) is None:
            return  # a replica of a layer with the same hooks, as in nn.DataParallel
        self._unmute()
        self._log_module("forward_pre", "", {}, module, args, kwargs)
        number = self._coming(module)
        self._state.coming.pop(module, None)
        self.ran.add(name)
        self._state.open.append((module, number, sys.exception(), call_id(sys._getframe(1))))
        self._renew(module, number)
        given = [id(arg) for arg in args if isinstance(arg, torch.Tensor)]
        if self._has_backward_hooks and torch.is_grad_enabled() and len(set(given)) < len(given):
            self._buffer.note(
                f"{_capitalize(self._describe(module))} received the same tensor several times. Its full backward "
                "hooks turn it into separate views, so the layer might take another code path and round differently. "
                "To avoid this, "
                'record with kinds=("forward_pre", "forward").'
            )
        if self._has_backward_hooks and kwargs and not given:
            self._buffer.note(
                f"{_capitalize(self._describe(module))} was called with keyword arguments only, so its full backward "
                "hooks get () as grad_input. torch passes them the gradients of positional arguments only."
            )
        needs_grad = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        if not (needs_grad and torch.is_grad_enabled()):
            inside = any(tensor.requires_grad for tensor in find_tensors([args, kwargs]))
            self._early[name, number] = inside and torch.is_grad_enabled()
        if isinstance(module, nn.TransformerEncoderLayer) and not (module.training or torch.is_grad_enabled()):
            self._buffer.note(
                f"Hooks switch off the fused path of {self._describe(module)}. Without hooks, this layer can take "
                "that path, on which no layer inside it is called."
            )

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        stack, place, error = self._state.open, self._state.find_call(), sys.exception()
        if place is None:
            return  # another pre-hook raised before the call began
        if stack[place][2] is error:
            self._log_module("forward", "", {}, module, args, output)
            self._state.last = self._describe(module)
            if self._has_backward_hooks and torch.is_grad_enabled() and not self._noted_identity:
                self._note_identity(module, args, output)
            if self._has_backward_hooks and not _has_tensor(output):
                what = type(output).__name__ + (" without a tensor of its own" if isinstance(output, tuple) else "")
                returns = f"{_capitalize(self._state.last)} returns a {what}"
                self._buffer.note(
                    f"{returns}, so its full backward hooks cannot fire. They need a tensor or a tuple of tensors."
                )
                self._mute(module)
        # With always_call, torch runs this hook after an error too, for the innermost layer first.
        elif _explain_error(error) and not hasattr(error, "_hookscope_at"):
            vars(error)["_hookscope_at"] = (self._describe(module), self._state.last)
        del stack[place:]

    def _note_identity(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note once that a layer returned its input itself, and that its full backward hooks hide this."""
        given = {id(arg) for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad}
        outputs = output if isinstance(output, tuple) else (output,)
        if any(id(each) in given for each in outputs):
            self._noted_identity = True
            self._buffer.note(
                f"{_capitalize(self._describe(module))} returned its input itself. Its full backward hooks make a view "
                "of it, so a model that tests `output is input` takes the other branch. To avoid this, record with "
                'kinds=("forward_pre", "forward").'
            )

    def _point(self, kind: str, name: str, _: Hook | None, calls: Calls) -> Hook:
        """Make hookscope's own backward hook for one call of one layer."""

        def point(module: nn.Module, grads: Sequence[torch.Tensor | None], *_: Any) -> None:
            if not self._buffer.running:
                self._buffer.note(
                    "A graph built inside the block was run backward after the block, so its backward hooks are not "
                    "logged. Call backward() inside the block."
                )
            elif kind in self._kinds:
                self._log_module(kind, "", calls, module, grads)
            if (name, calls.get(module)) not in self._early:
                return
            if kind == "full_backward":
                self._unmute()
                if self._buffer.running:
                    self._buffer.note(_explain_early(name, module, self._early[name, calls.get(module)]))
            elif "full_backward" in self._kinds or self._buffer.running:
                self._mute(module)

        return OwnHook(self._buffer, point)

    def _rewrap(self, log: Hook, hook: Hook, calls: Calls) -> Hook:
        """Copy the wrappers around a hook; that of this recording logs for other calls, see `_renew`."""
        if not isinstance(hook, WrappedHook):
            return hook
        inner = self._rewrap(log, hook.hook, calls)
        return WrappedHook(hook.owner, inner, partial(log, calls) if hook.owner is self._buffer else hook.log)

    def _renew(self, module: nn.Module, number: int) -> None:
        # A call reads its backward hooks when it starts, before any pre-hook. Each call gets hooks of its own in the
        # dictionaries, so that a hook can log the number of its call.
        def renew(owner: nn.Module | None, calls: Calls) -> None:
            for hooks, key, make in self._slots.get(id(owner), ()):
                if key in hooks:
                    hooks[key] = make(hooks[key], calls)

        renew(module, self._next_call(module))
        self._global_calls[module] = number
        self._global_calls = ModuleMap()
        renew(None, self._global_calls)

    # The log.

    def _log_module(self, kind: str, hook: str, calls: Calls, module: nn.Module, *given: Any) -> None:
        if (name := self._layers.get(module)) is None:
            return
        stack, call, depth, value = self._state.open, self._calls.get(module, 0), 0, given[0]
        if kind == "forward_pre":
            value = (*value, *map(Keywords, filter(None, given[1:])))
            call, depth = self._coming(module), len(stack)
        elif kind == "forward":
            value = given[-1]
            if (place := self._state.find_call()) is not None:
                call, depth = stack[place][1], place
            else:
                call, depth = self._state.coming.get(module, call + 1), len(stack)
        else:
            call = calls.get(module, call)
        if kind in self._kinds or kind == "backward":
            self._buffer.log(kind, name, type(module).__name__, call, value, hook, depth)

    def _coming(self, module: nn.Module) -> int:
        """Return the number of the call that begins. All its pre-hooks get the same, calls in other threads do not."""
        coming = self._state.coming
        if module not in coming:
            with self._buffer.lock:
                self._calls[module] = coming[module] = self._calls.get(module, 0) + 1
        return coming[module]

    def _next_call(self, module: nn.Module) -> Calls:
        return ModuleMap({module: self._calls.get(module, 0) + 1})

    def _describe(self, module: nn.Module) -> str:
        return f"layer {self._layers[module] or '(root)'} ({type(module).__name__})"

    # torch warns about hookscope's own hooks. The filter against that is installed just before torch warns, as the
    # first, so that filters set inside the block do not matter. Its pattern is an object that checks which hooks the
    # warning is about. Ignored warnings enter no registry, so no cache has to be cleared.

    def _mute(self, module: nn.Module) -> None:
        self._unmute()
        self._state.at = module
        cast("list[Any]", warnings.filters).insert(0, self._filter)

    def _unmute(self) -> None:
        self._state.at = None
        filters = cast("list[Any]", warnings.filters)
        if any(entry is self._filter for entry in filters):
            filters[:] = [entry for entry in filters if entry is not self._filter]

    def _is_own_warning(self, text: str) -> bool:
        if self._state.at is None or not text.startswith((_OUTPUT_WARNING, _INPUT_WARNING)):
            return False
        kinds = ["full_backward"] if text.startswith(_INPUT_WARNING) else ["full_backward", "full_backward_pre"]
        for own, common in (_DICTS[kind] for kind in kinds):
            hooks = [*getattr(self._state.at, own).values(), *getattr(torch_module, common).values()]
            if not all(isinstance(hook, OwnHook) for hook in hooks):
                return False
        return True


def has_forward(module: nn.Module) -> bool:
    """Whether a module can be called; a ModuleList cannot."""
    return getattr(module.forward, "__func__", None) is not nn.Module.forward


def _restore_latch(module: nn.Module, latch: bool | None) -> None:
    """Reset the flag that makes torch refuse legacy hooks on a module, unless it has a full hook."""
    if not module._backward_hooks:
        module._is_full_backward_hook = latch


def _find_legacy_hook(model: nn.Module) -> str:
    if torch_module._global_is_full_backward_hook is False and torch_module._global_backward_hooks:
        return "There is a global legacy backward hook"
    for module, name in Modules(model).names.items():
        if module._is_full_backward_hook is False and module._backward_hooks:
            return f"Layer {name or '(root)'} ({type(module).__name__}) has a legacy backward hook"
    return ""


def _has_tensor(output: Any) -> bool:
    """Whether torch's full backward hooks find a tensor in an output."""
    return isinstance(output, torch.Tensor) or (
        isinstance(output, tuple) and any(isinstance(each, torch.Tensor) for each in output)
    )


def _explain_early(name: str, module: nn.Module, is_inside: bool) -> str:
    """Say why the full backward hooks of a layer fire before the gradients inside it are computed."""
    is_leaf = next(module.children(), None) is None
    later = "the gradients of its parameters are computed" if is_leaf else "the hooks of the layers inside it"
    layer, early = name or "(root)", f"its full backward hooks fire early, before {later}"
    if is_inside:
        return (
            f"The inputs of layer {layer} that require grad are in a container or passed by keyword. torch's full "
            f"backward hooks look at tensors among the positional arguments only, so {early}. Pass such a tensor as an "
            "argument of its own to change that."
        )
    return (
        f"No input of layer {layer} requires grad, so {early}. Call requires_grad_() on a floating-point input to "
        "change that."
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _explain_error(error: BaseException | None) -> str:
    """Explain why full backward hooks caused this error, and the fix; `""` if they did not."""
    if not isinstance(error, RuntimeError | TypeError):
        return ""
    if is_write_to_hooked(error):
        return (
            "these hooks turn the inputs and outputs of a layer into views, and such a view was changed in place. "
            "Do not record the layers that do this, or record"
        )
    for parts, why in _BACKWARD_ERRORS.items():
        if all(part in str(error) for part in parts):
            return why
    if any(frame.f_code is _WRAPS_TENSORS for frame, _ in walk_tb(error.__traceback__)):
        return (
            f"these hooks cannot wrap a tensor that a layer gets or returns, such as a sparse tensor or one of "
            f"forward-mode AD ({type(error).__name__}). Record"
        )
    return ""
