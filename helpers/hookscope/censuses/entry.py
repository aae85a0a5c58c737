"""Describe one registered hook: the dict in which torch stores it, its function, and where this was defined."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _WrappedHook
from torch.optim import Optimizer

from hookscope.pictures.words import visible

__all__ = ["KINDS", "ON_ALL", "ON_MODULE", "ON_TENSOR", "HookEntry", "identify", "list_hooks", "locate", "make_weakref"]

# Where torch stores hooks: attribute -> kind. Some have a second dict, with the suffix `_with_kwargs` or
# `_always_called`, of the IDs of the hooks that were registered with that option.
ON_MODULE = {
    "_forward_pre_hooks": "forward_pre",
    "_forward_hooks": "forward",
    "_backward_pre_hooks": "full_backward_pre",
    "_backward_hooks": "full_backward",
    "_state_dict_pre_hooks": "state_dict_pre",
    "_state_dict_hooks": "state_dict_post",
    "_load_state_dict_pre_hooks": "load_state_dict_pre",
    "_load_state_dict_post_hooks": "load_state_dict_post",
}
ON_TENSOR = {"_backward_hooks": "tensor", "_post_accumulate_grad_hooks": "post_accumulate_grad"}
ON_OPTIMIZER = {
    "_optimizer_step_pre_hooks": "optimizer step_pre",
    "_optimizer_step_post_hooks": "optimizer step_post",
    "_optimizer_state_dict_pre_hooks": "optimizer state_dict_pre",
    "_optimizer_state_dict_post_hooks": "optimizer state_dict_post",
    "_optimizer_load_state_dict_pre_hooks": "optimizer load_state_dict_pre",
    "_optimizer_load_state_dict_post_hooks": "optimizer load_state_dict_post",
}
ON_ALL = {
    "_global_forward_pre_hooks": "global forward_pre",
    "_global_forward_hooks": "global forward",
    "_global_backward_pre_hooks": "global full_backward_pre",
    "_global_backward_hooks": "global full_backward",
    "_global_parameter_registration_hooks": "global parameter_registration",
    "_global_buffer_registration_hooks": "global buffer_registration",
    "_global_module_registration_hooks": "global module_registration",
    "_global_optimizer_pre_hooks": "global optimizer step_pre",
    "_global_optimizer_post_hooks": "global optimizer step_post",
}
_OPTIONS = {"_with_kwargs": "with_kwargs", "_always_called": "always_call"}
_LEGACY = {"full_backward": "backward (legacy)", "global full_backward": "global backward (legacy)"}

KINDS = (*ON_MODULE.values(), *ON_TENSOR.values(), *ON_OPTIMIZER.values(), *ON_ALL.values(), *_LEGACY.values())
"""The kinds of hooks in a census, named as in torch."""

_TABLES: tuple[tuple[type, Mapping[str, str]], ...] = (
    (nn.Module, ON_MODULE),
    (Tensor, ON_TENSOR),
    (Optimizer, ON_OPTIMIZER),
    (ModuleType, ON_ALL),
)

_NOTEBOOK = re.compile(
    r"[\\/]ipykernel_\d+[\\/]|[\\/]ipython-input-|[\\/]__marimo__cell_|^<ipython-input|^<cell>$|^vscode-notebook-cell"
)


@dataclass(frozen=True)
class HookEntry:
    """One registered hook.

    Attributes:
        kind: one of `KINDS`.
        layer: name of the module that has the hook, or whose tensor has it; `""` for the root. None for global hooks
            and for hooks on optimizers and single tensors.
        tensor: name of the parameter or buffer that has the hook, else `""`.
        callable: qualified name of the function. A callable object is shown as `Class()`, and a `functools.partial`
            as `partial(…)`.
        location: file and line of the definition, `notebook cell, line N`, or `builtin` if it is not written in Python.
            The file is relative to the current directory or to a directory of `sys.path`.
        options: `with_kwargs` and `always_call`, if the hook was registered with them. torch does not store `prepend`.
        by_torch: True if torch registered the hook itself, for example to prune a module.
        owner: class name of the model, optimizer or tensor that has the hook; `""` for a global hook.

    """

    kind: str
    layer: str | None
    tensor: str
    callable: str
    location: str
    options: tuple[str, ...] = ()
    by_torch: bool = False
    owner: str = ""
    # Not shown, because IDs count all hooks of the process and differ from run to run.
    _id: int = field(default=-1, repr=False)
    _holder: Callable[[], object] = field(default=lambda: None, repr=False, compare=False)
    _attribute: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return visible(self.describe(self.where))

    @property
    def where(self) -> str:
        """The layer and tensor; for a global hook, a phrase such as `every module`."""
        if self.layer is not None:
            return ".".join(filter(None, [self.layer, self.tensor])) or "(root)"
        if self.kind.startswith("global"):
            return "every optimizer" if "optimizer" in self.kind else "every module"
        return f"({self.owner})"

    @property
    def kind_and_options(self) -> str:
        """The kind, with the options in parentheses."""
        return f"{self.kind} ({', '.join(self.options)})" if self.options else self.kind

    def describe(self, where: str) -> str:
        """Describe the hook in a phrase. `where` can be more exact than `self.where`."""
        return f"{self.kind_and_options} hook {self.callable} on {where} ({self.location})"

    def _remove(self) -> bool:
        holder = self._holder()
        hooks = getattr(holder, self._attribute, None)
        if not hooks or self._id not in hooks:
            return False
        for suffix in ("", *_OPTIONS):
            getattr(holder, self._attribute + suffix, {}).pop(self._id, None)
        latch = _latch(self._attribute)
        if not hooks and latch != self._attribute and latch in vars(holder):
            vars(holder)[latch] = None
        return True


def list_hooks(holder: object, layer: str | None = None, tensor: str = "", owner: str = "") -> Iterator[HookEntry]:
    """List the hooks in the dicts of one module, tensor, optimizer or Python module of torch."""
    for attribute, kind in next((table for kind, table in _TABLES if isinstance(holder, kind)), {}).items():
        if not (hooks := getattr(holder, attribute, None)):
            continue
        if getattr(holder, _latch(attribute), None) is False:
            kind = _LEGACY[kind]
        marks = {option: getattr(holder, attribute + end, None) or () for end, option in _OPTIONS.items()}
        for key, hook in list(hooks.items()):
            options = tuple(option for option, ids in marks.items() if key in ids)
            name, location, by_torch = identify(hook)
            place = (kind, layer, tensor, name, location, options, by_torch, owner)
            yield HookEntry(*place, key, make_weakref(holder), attribute)


def make_weakref(holder: object) -> Callable[[], object]:
    """Return a weak reference, or a function that returns None if the type has none."""
    try:
        return weakref.ref(holder)
    except TypeError:
        return lambda: None


def _latch(attribute: str) -> str:
    return attribute.replace("_backward_hooks", "_is_full_backward_hook")


def identify(hook: Any) -> tuple[str, str, bool]:
    """Return the name and location of a callable, and whether it is one of torch's own hooks."""
    partial = False
    for _ in range(100):  # wrappers can refer to each other in a circle
        if isinstance(hook, functools.partial):
            hook, partial = hook.func, True
        elif isinstance(hook, _WrappedHook):
            hook = hook.hook
        elif inspect.isfunction(hook) and hook.__module__ == "torch.autograd.graph" and hook.__closure__:
            # register_multi_grad_hook wraps the function of the user.
            inside = dict(zip(hook.__code__.co_freevars, hook.__closure__, strict=True))
            if "fn" not in inside:
                break
            hook = inside["fn"].cell_contents
        elif hasattr(hook, "__wrapped__"):
            hook = hook.__wrapped__
        else:
            break
    name = getattr(hook, "__qualname__", "").replace("_VariableFunctionsClass", "torch")
    if isinstance(hook, type):
        called: Any = hook.__init__  # type: ignore[misc]
    elif isinstance(hook, nn.Module):
        called = type(hook).forward
    else:
        called = hook if name else type(hook).__call__
    code = getattr(called, "__code__", None)
    module = getattr(called, "__module__", None) or ""
    # A public function of torch, or a module, was registered by the user.
    private = not name or "<locals>" in name or name.rpartition(".")[2].startswith("_")
    by_torch = code is not None and module.startswith("torch.") and private and not isinstance(hook, nn.Module)
    name = name or f"{type(hook).__qualname__}()"
    where = locate(code.co_filename, code.co_firstlineno) if code else "builtin"
    return f"partial({name})" if partial else name, where, by_torch


def locate(file: str, line: int) -> str:
    """Return a file and a line, or "notebook cell, line N", in the form of `HookEntry.location`."""
    if _NOTEBOOK.search(file):
        return f"notebook cell, line {line}"
    parts = Path(file).parts
    for packages in ("site-packages", "dist-packages"):
        if packages in parts:
            return f"{'/'.join(parts[len(parts) - parts[::-1].index(packages) :])}:{line}"
    path = Path(file).resolve()  # `<stdin>` and relative names do not change
    roots = [Path.cwd(), *sorted(map(Path, filter(os.path.isabs, sys.path)), key=lambda root: -len(root.parts))]
    root = next((root for root in map(Path.resolve, roots) if path.is_relative_to(root)), path.parent)
    return f"{path.relative_to(root).as_posix()}:{line}"
