"""Detect modules that are added to a model while it runs, as in `self.fc = nn.Linear(...)` inside a forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from hookscope.layers.modules import Modules

__all__ = ["LateModules"]


class LateModules:
    """Calls a function for each module that is added to a model between `register` and `remove`.

    torch calls its registration hook for every module that is added to any other module in the process.

    Args:
        names: the modules that the model has already, with their names.
        arrived: called with the new module, its name, and whether it is a leaf module.

    Attributes:
        names: the new modules with their names, as weak references because each pass can make new ones.

    """

    def __init__(self, names: Mapping[nn.Module, str], arrived: Callable[[nn.Module, str, bool], None]) -> None:
        self.names: MutableMapping[nn.Module, str] = WeakIdKeyDictionary()
        self._there, self._arrived = names, arrived
        self._finalizer: weakref.finalize[..., LateModules] | None = None

    def register(self) -> None:
        """Register the hook."""
        handle = register_module_module_registration_hook(_RegistrationHook(self))
        self._finalizer = weakref.finalize(self, handle.remove)  # runs even if `remove` is never called

    def remove(self) -> None:
        """Remove the hook."""
        if self._finalizer is not None:
            self._finalizer()

    def name_of(self, module: nn.Module) -> str | None:
        """Return the name of a module, old or new; None if it is not in the model."""
        name = self._there.get(module)
        return self.names.get(module) if name is None else name

    def add(self, parent: nn.Module, part: str, module: nn.Module | None) -> None:
        """Report a module that torch is about to add to another module, and the modules inside it."""
        if module is None or (prefix := self.name_of(parent)) is None or self.name_of(module) is not None:
            return
        modules = Modules(module)
        leaves = set(modules.leaves.values())
        for each, name in modules.names.items():
            if self.name_of(each) is None and not isinstance(each, torch.jit.ScriptModule):
                self.names[each] = name = ".".join(filter(None, [prefix, part, name]))
                self._arrived(each, name, each in leaves)


class _RegistrationHook:
    """The hook. It holds a weak reference, so it does not keep the model alive."""

    def __init__(self, to: LateModules) -> None:
        self.to = weakref.ref(to)

    def __call__(self, parent: nn.Module, part: str, module: nn.Module | None) -> None:
        if (to := self.to()) is not None:
            to.add(parent, part, module)
