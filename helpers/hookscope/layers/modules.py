"""Know the modules of a model, walked once: their names, the leaves among them, the children of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["Modules", "check_model", "children_of", "collect_submodules", "kind_of"]

# torch never calls these: they hold modules or parameters, so a call hook on them never fires.
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class Modules:
    """The modules that a model has when one of these is first asked for; one that comes or goes later is not noticed.

    Attributes:
        model: the model.

    Raises:
        TypeError: `model` is not a module.

    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.model = model

    def refresh(self) -> Modules:
        """Return what the model has now: this one, if it has not been asked for anything yet, else another."""
        return Modules(self.model) if "_walked" in self.__dict__ else self

    @property
    def names(self) -> dict[nn.Module, str]:
        """Module -> its first dotted name, in the order of `model.named_modules()`; the root's is `""`."""
        return self._walked.names

    @property
    def kinds(self) -> set[type[nn.Module]]:
        """The classes of the modules: to ask for a class among them is cheaper than among the modules."""
        return self._walked.kinds

    @property
    def compiled(self) -> list[nn.Module]:
        """Those that `.compile()` was called on, and those that `torch.compile` has made."""
        return self._walked.compiled

    @cached_property
    def _walked(self) -> _Walk:
        # Not before it is needed: it takes as long as two or three layers of a small model.
        return _Walk(self.model)

    @cached_property
    def leaves(self) -> dict[str, nn.Module]:
        """Dotted name -> module for those that compute, see `hookscope.leaves`."""
        parametrizing = collect_submodules(
            module.get_submodule("parametrizations")
            for module in self.names
            if "parametrizations" in module._modules and is_parametrized(module)
        )
        return {
            name: module
            for module, name in self.names.items()
            if not isinstance(module, _NEVER_CALLED)
            and module not in parametrizing
            and not _is_packed(module, name)
            # Asked first whether there are any: this is made for each capture.
            and (
                not module._modules
                or all(child in parametrizing or _is_packed(child, part) for part, child in children_of(module))
            )
        }

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters and buffers that they hold now; quicker than those of the model, with all their names."""
        return [
            tensor
            for module in self.names
            for held in (module._parameters, module._buffers)
            for tensor in held.values()
            if tensor is not None
        ]

    @cached_property
    def all_names(self) -> dict[nn.Module, list[str]]:
        """Module -> every dotted name that it has, the first one first."""
        if not self._walked.shared:
            return {module: [name] for module, name in self.names.items()}
        names: dict[nn.Module, list[str]] = {}
        for name, module in self.model.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        return names

    def names_of(self, module: nn.Module) -> list[str]:
        """List every dotted name of a module, the first one first."""
        return self.all_names[module] if self._walked.shared else [self.names[module]]

    def find(self, name: str) -> nn.Module | None:
        """Find the module of that name, also by a name that is not its first; None if there is none."""
        path = self.path_to(name)
        return path[-1] if path else None

    def path_to(self, name: str) -> list[nn.Module]:
        """List the module of that name and those that it is in, from the model inward; nothing if there is none.

        Example:
            >>> net = nn.Sequential(nn.Sequential(nn.ReLU()))
            >>> Modules(net).path_to("0.0") == [net, net[0], net[0][0]]
            True

        """
        found = [self.model]
        for part in name.split(".") if name else ():
            held = found[-1]._modules
            module = held[part] if part in held else None  # noqa: SIM401 (TorchScript's has no get)
            if module is None:
                return []
            found.append(module)
        return found

    def paths_to(self, name: str) -> dict[str, list[nn.Module]]:
        """List the ways to the module of that name: name -> `path_to`; under its other names, too, if it has any.

        The model is only walked where somebody else than one parent holds a module on the way.

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
    """Count who holds that of these modules that most hold; not the model."""
    return max(map(sys.getrefcount, way[1:]), default=0)


def _references_to_new_module() -> int:
    return _most_references(Modules(nn.Sequential(nn.Identity())).path_to("0"))


class _Walk:
    """What one way through all modules of a model finds."""

    def __init__(self, model: nn.Module) -> None:
        self.names: dict[nn.Module, str] = {}
        self.kinds: set[type[nn.Module]] = set()
        self.compiled: list[nn.Module] = []
        self.shared = False
        # Not named_modules(), which passes every name through a generator for each level above it; and not by calls of
        # itself, for which there is no room deep inside a pass of a deep model.
        names = self.names
        levels: list[tuple[Iterator[tuple[str, nn.Module | None]], str]] = [(iter([("", model)]), "")]
        while levels:
            children, prefix = levels[-1]
            for part, child in children:
                if child in names:
                    self.shared = True
                elif child is not None:
                    names[child] = name = prefix + part
                    held = child._modules
                    # Asked while the module is at hand: captures walk, and want to know.
                    self.kinds.add(type(child))
                    if child._compiled_call_impl is not None or "_orig_mod" in held:
                        self.compiled.append(child)
                    if held:
                        levels.append((iter(held.items()), name and name + "."))
                        break
            else:
                levels.pop()


def check_model(model: object) -> None:
    """Raise a TypeError for what is not a module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"model must be a module, not the class {model.__name__}; make one: {model.__name__}(...)")
    raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of a module with their names, under each of them if there are several."""
    # Not named_children(), which leaves out a child's second name.
    return ((name, child) for name, child in module._modules.items() if child is not None)


def collect_submodules(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """Collect some modules and all that is inside of them."""
    waiting = list(modules)
    found = set(waiting)
    for module in waiting:
        for _, child in children_of(module):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _is_packed(module: nn.Module, name: str) -> bool:
    """Whether a module only holds the weights of a quantized one, which never calls it."""
    return name.rpartition(".")[2] == "_packed_params" and type(module).__name__.endswith("PackedParams")


def kind_of(module: nn.Module) -> str:
    """Name the module's class; for TorchScript the class it was made from."""
    return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


_UNSHARED = _references_to_new_module()
