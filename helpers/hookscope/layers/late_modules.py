"""Notice modules that come into a model while it runs, as with `self.fc = nn.Linear(...)` inside a forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from hookscope.layers.modules import Modules

__all__ = ["LateModules"]


class LateModules:
    """Tells of modules that come into a model, as soon as they do, between `register` and `remove`.

    torch calls the hook behind it for each module that is put into another one, anywhere in the process.

    Args:
        names: the modules that are there, with their names.
        arrived: is given a module that has come, its name, and whether it is a leaf.

    Attributes:
        names: those that have come, with their names; held weakly, since each pass may make others.

    """

    def __init__(self, names: Mapping[nn.Module, str], arrived: Callable[[nn.Module, str, bool], None]) -> None:
        self.names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._there, self._arrived = names, arrived
        self._finalizer: weakref.finalize[..., LateModules] | None = None

    def register(self) -> None:
        """Register torch's hook."""
        handle = register_module_module_registration_hook(_RegistrationHook(self))
        self._finalizer = weakref.finalize(self, handle.remove)  # also when nobody called `remove`

    def remove(self) -> None:
        """Remove it."""
        if self._finalizer is not None:
            self._finalizer()

    def name_of(self, module: nn.Module) -> str | None:
        """Return the name of a module, also of one that has come; None if it is not in the model."""
        name = self._there.get(module)
        return self.names.get(module) if name is None else name

    def add(self, parent: nn.Module, part: str, module: nn.Module | None) -> None:
        """Tell of a module that is about to be put into another, and of what is in it."""
        if module is None or (prefix := self.name_of(parent)) is None or self.name_of(module) is not None:
            return
        modules = Modules(module)
        leaves = set(modules.leaves.values())
        for each, name in modules.names.items():
            if self.name_of(each) is None and not isinstance(each, torch.jit.ScriptModule):
                self.names[each] = name = ".".join(filter(None, [prefix, part, name]))
                self._arrived(each, name, each in leaves)


class _RegistrationHook:
    """The hook itself, which keeps no model alive."""

    def __init__(self, to: LateModules) -> None:
        self.to = weakref.ref(to)

    def __call__(self, parent: nn.Module, part: str, module: nn.Module | None) -> None:
        if (to := self.to()) is not None:
            to.add(parent, part, module)
