"""Pick modules of a model by name, glob, type, instance or predicate.

The name of a layer is its dotted name in `nn.Module.named_modules`; the name of the root module is `""`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from hookscope.layers.globs import is_glob, match_glob
from hookscope.layers.modules import Modules, kind_of
from hookscope.layers.suggestions import LayerNotFoundError, name_not_found, type_not_found

__all__ = ["LayerNotFoundError", "Which", "find_layers", "layer_names", "leaves", "pick"]

Which = str | type | nn.Module | Callable[[str, nn.Module], object]
"""One item of a selection of layers: name or glob, module type, module, or predicate."""


def find_layers(model: nn.Module, *which: Which, leaves_only: bool = False) -> dict[str, nn.Module]:
    """Pick modules of a model by name, glob, type, instance or predicate.

    - `"layer1.0.conv1"`: the exact dotted name. `""` is the model itself.
    - `"layer1.*"`: a glob. `*`, `?` and `[...]` match within one level; `**` matches any number of levels.
    - `nn.Conv2d`: a type, including its subclasses.
    - `model.layer1`: a module of the model.
    - `lambda name, module: ...`: a predicate, called once for each module.

    Args:
        model: the model to search.
        *which: the items to pick; their results are joined. If you pass none, all `leaves`.
        leaves_only: return only leaf modules (see `leaves`).

    Returns:
        Dotted name -> module, in the order of `model.named_modules()`. A shared module is listed once, under the name
        that you asked for or else under its first name.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(8, 2)))
        >>> list(find_layers(net, "2.*", nn.Conv2d))
        ['0', '2.0', '2.1']
        >>> find_layers(net, "2.2")
        Traceback (most recent call last):
        hookscope.layers.LayerNotFoundError: no layer '2.2'; did you mean '2.1' or '2.0'? See https://hookscope.github.io/hookscope/errors/no_layer.html

    """
    return pick(Modules(model), *which, leaves_only=leaves_only)


def pick(
    modules: Modules, *which: Which, leaves_only: bool = False, several: str = "find_layers(model, *names)"
) -> dict[str, nn.Module]:
    """Do the same as `find_layers`, with the `Modules` of a model; `several` is the call that takes a list of names."""
    if not which:
        return dict(modules.leaves)
    keep = set(modules.leaves.values()) if leaves_only else modules.names.keys()
    by_glob: dict[nn.Module, str] = {}
    by_name: dict[nn.Module, str] = {}
    picked: set[nn.Module] = set()
    for item in which:
        found = _pick(modules, item, several)
        if found.keys().isdisjoint(keep):
            text = (
                "picks no leaf module, only modules with children or modules that torch never calls; drop "
                "leaves_only=True"
            )
            name = item if isinstance(item, str) else _describe(item)
            raise LayerNotFoundError(f"{_describe(item)} {text}", name)
        picked |= found.keys()
        if isinstance(item, str):
            named = by_name if modules.find(item) is not None else by_glob
            named.update(found | named)  # keep the name that was asked for first
    names = by_glob | by_name
    chosen = picked & keep
    return {names.get(module, name): module for module, name in modules.names.items() if module in chosen}


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """Return the leaf modules of a model: the modules without children.

    `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` and `nn.ParameterDict` are never leaf modules, because torch
    never calls them. An empty `nn.Sequential` is one. A module with parametrizations (`torch.nn.utils.parametrize`)
    is a leaf module; the modules that compute its weight are not.

    Args:
        model: the model to search. A model without children is its own leaf module, with the name `""`.

    Returns:
        Dotted name -> module in the order of `model.named_modules()`. A shared module is listed under its first name.

    Example:
        >>> from torch import nn
        >>> list(leaves(nn.Sequential(nn.Linear(1, 1), nn.ModuleList([nn.ReLU()]))))
        ['0', '1.0']
        >>> leaves(nn.ReLU())
        {'': ReLU()}

    """
    return dict(Modules(model).leaves)


def layer_names(model: nn.Module) -> Mapping[nn.Module, str]:
    """Return the dotted name of each module of a model.

    Args:
        model: the model. Its own name is `""`.

    Returns:
        Module -> its first dotted name, in the order of `model.named_modules()`.

    Example:
        >>> from torch import nn
        >>> relu = nn.ReLU()
        >>> net = nn.Sequential(nn.Linear(1, 1), relu, relu)
        >>> layer_names(net)[relu]
        '1'

    """
    return Modules(model).names


def _pick(modules: Modules, item: object, several: str) -> dict[nn.Module, str]:
    """Return the modules that one item of `which` picks; raise an error if there are none."""
    names = modules.names
    if isinstance(item, str):
        if (module := modules.find(item)) is not None:
            return {module: item}
        found = match_glob(modules.model, item) if is_glob(item) else {}
        error = None if found else name_not_found(modules, item)
    elif isinstance(item, nn.Module):
        found = {item: names[item]} if item in names else {}
        text = f"this {kind_of(item)} is not a module of this {kind_of(modules.model)}"
        error = LayerNotFoundError(
            f"{text}. It might be from a copy of the model. Pass a module of this model, or its name", kind_of(item)
        )
    elif isinstance(item, type):
        found = {module: name for module, name in names.items() if isinstance(module, item)}
        error = None if found else type_not_found(modules, item)
    elif callable(item):
        found = {module: name for module, name in names.items() if _ask(item, name, module)}
        text = f"{_describe(item)} returned False for all {len(names)} modules"
        error = LayerNotFoundError(text, _describe(item))
    else:
        hint = "name or glob, module type, module, or predicate (name, module) -> bool"
        if isinstance(item, Tensor):
            raise TypeError(
                f"cannot pick layers by a tensor of shape {tuple(item.shape)}. Pass a {hint}. Call the model with its "
                "inputs inside the with block"
            )
        if isinstance(item, (list, tuple, set, frozenset, dict)):
            hint += f". For several of them: {several}"
        kind = type(item).__name__
        raise TypeError(f"cannot pick layers by {reprlib.repr(item)} of type {kind}. Pass a {hint}")
    if error is not None and not found:
        raise error
    return found


def _ask(predicate: Callable[..., object], name: str, module: nn.Module) -> bool:
    try:
        return bool(predicate(name, module))
    except Exception as error:
        where = f"layer {name!r}" if name else "the root layer ''"
        what = f"{_describe(predicate)} raised {type(error).__name__} on {where} ({kind_of(module)}): {error}"
        raise RuntimeError(what) from error


def _describe(item: object) -> str:
    if isinstance(item, (str, nn.Module)):
        return repr(item) if isinstance(item, str) else f"the {kind_of(item)}"
    what = "type" if isinstance(item, type) else "predicate"
    return f"the {what} {getattr(item, '__qualname__', type(item).__name__)}"
