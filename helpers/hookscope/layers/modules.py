"""The modules of a model, collected once: their names, leaf modules and children."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from hookscope.layers.module_map import ModuleMap

__all__ = ["NEVER_CALLED", "Modules", "check_model", "children_of", "collect_submodules", "kind_of"]

# torch never calls these containers, so a forward hook on them never runs.
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class Modules:
    """The modules of a model at the first access to a property. Later changes to the model do not appear.

    Attributes:
        model: the model.

    Raises:
        TypeError: `model` is not a module.

    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.model = model

    def refresh(self) -> Modules:
        """Return the current modules: a new object, or this one if it has not been used yet."""
        return Modules(self.model) if "_walked" in self.__dict__ else self

    @property
    def names(self) -> ModuleMap[str]:
        """Module -> its first dotted name, in the order of `model.named_modules()`. The root has the name `""`."""
        return self._walked.names

    @property
    def kinds(self) -> set[type[nn.Module]]:
        """The classes of the modules. It is faster to search them than the modules."""
        return self._walked.kinds

    @property
    def compiled(self) -> list[nn.Module]:
        """The modules compiled by `.compile()`, and the wrappers that `torch.compile` made."""
        return self._walked.compiled

    @cached_property
    def _walked(self) -> _Walk:
        # Lazily, because the walk takes as long as two or three layers of a small model.
        return _Walk(self.model)

    @cached_property
    def leaves(self) -> dict[str, nn.Module]:
        """Dotted name -> leaf module, see `hookscope.leaves`."""
        parametrizing = collect_submodules(
            module.get_submodule("parametrizations")
            for module in self.names
            if "parametrizations" in module._modules and is_parametrized(module)
        )
        return {
            name: module
            for module, name in self.names.items()
            if not isinstance(module, NEVER_CALLED)
            and module not in parametrizing
            and not _is_packed(module, name)
            # The cheap test comes first, because every capture runs this.
            and (
                not module._modules
                or all(child in parametrizing or _is_packed(child, part) for part, child in children_of(module))
            )
        }

    @property
    def tensors(self) -> list[Tensor]:
        """The current parameters and buffers. This is faster than `model.parameters()`, which builds names."""
        return [
            tensor
            for module in self.names
            for held in (module._parameters, module._buffers)
            for tensor in held.values()
            if tensor is not None
        ]

    @cached_property
    def all_names(self) -> ModuleMap[list[str]]:
        """Module -> all its dotted names, the first one first."""
        if not self._walked.shared:
            return ModuleMap((module, [name]) for module, name in self.names.items())
        names = ModuleMap[list[str]]()
        for name, module in self.model.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        return names

    def names_of(self, module: nn.Module) -> list[str]:
        """List all dotted names of a module, the first one first."""
        return self.all_names[module] if self._walked.shared else [self.names[module]]

    def find(self, name: str) -> nn.Module | None:
        """Return the module with this name, which can be any of its names; None if there is none."""
        path = self.path_to(name)
        return path[-1] if path else None

    def path_to(self, name: str) -> list[nn.Module]:
        """List the modules from the model down to the module with this name; [] if there is none.

        Example:
            >>> net = nn.Sequential(nn.Sequential(nn.ReLU()))
            >>> Modules(net).path_to("0.0") == [net, net[0], net[0][0]]
            True

        """
        found = [self.model]
        for part in name.split(".") if name else ():
            held = found[-1]._modules
            module = held[part] if part in held else None  # noqa: SIM401 (TorchScript has no get)
            if module is None:
                return []
            found.append(module)
        return found

    def paths_to(self, name: str) -> dict[str, list[nn.Module]]:
        """Return name -> `path_to` for every name of the module with this name.

        The model is walked only if a module on the path has more than one reference.

        Example:
            >>> relu = nn.ReLU()
            >>> list(Modules(nn.Sequential(relu, nn.Linear(1, 1), nn.Sequential(relu))).paths_to("2.0"))
            ['2.0', '0']

        """
        way = self.path_to(name)
        if not way:
            return {}
        if _most_references(way) <= _UNSHARED:
            return {name: way}
        return {name: way} | {other: self.path_to(other) for other in self.names_of(way[-1])}


def _most_references(way: list[nn.Module]) -> int:
    """Return the largest reference count among the modules on a path, without the model."""
    return max(map(sys.getrefcount, way[1:]), default=0)


def _references_to_new_module() -> int:
    return _most_references(Modules(nn.Sequential(nn.Identity())).path_to("0"))


class _Walk:
    """One walk over all modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.kinds: set[type[nn.Module]] = set()
        self.compiled: list[nn.Module] = []
        self.shared = False
        # Not named_modules(), which is slow: it passes each name through one generator per level. And not recursive,
        # because the stack can be almost full deep inside a pass.
        names: dict[int, tuple[nn.Module, str]] = {}
        self.names = ModuleMap.from_ids(names)
        levels: list[tuple[Iterator[tuple[str, nn.Module | None]], str]] = [(iter([("", model)]), "")]
        while levels:
            children, prefix = levels[-1]
            for part, child in children:
                if id(child) in names:
                    self.shared = True
                elif child is not None:
                    name = prefix + part
                    names[id(child)] = child, name
                    held = child._modules
                    # Collected here, because captures need both and this avoids a second walk.
                    self.kinds.add(type(child))
                    if child._compiled_call_impl is not None or "_orig_mod" in held:
                        self.compiled.append(child)
                    if held:
                        levels.append((iter(held.items()), name and name + "."))
                        break
            else:
                levels.pop()


def check_model(model: object) -> None:
    """Raise a TypeError if this is not a module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"model must be a module, not the class {model.__name__}. Create one: {model.__name__}(...)")
    raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of a module with their names; a child with two names comes twice."""
    # Not named_children(), which drops the second name of a child.
    return ((name, child) for name, child in module._modules.items() if child is not None)


def collect_submodules(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """Return these modules and all modules inside them."""
    waiting = list(modules)
    found = set(waiting)
    for module in waiting:
        for _, child in children_of(module):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _is_packed(module: nn.Module, name: str) -> bool:
    """Return whether a module only stores the packed weights of a quantized module, which never calls it."""
    return name.rpartition(".")[2] == "_packed_params" and type(module).__name__.endswith("PackedParams")


def kind_of(module: nn.Module) -> str:
    """Return the class name of a module; for TorchScript, the name of the original class."""
    return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


_UNSHARED = _references_to_new_module()
