"""Turn names, globs, types and predicates into the modules of a model that they mean.

A layer's name is the dotted one that `nn.Module.named_modules` gives it; the root module's is `""`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable

from torch import nn

from hookscope.layers.globs import is_glob, match_glob
from hookscope.layers.modules import Modules, kind_of
from hookscope.layers.suggestions import LayerNotFoundError, name_not_found, type_not_found

__all__ = ["LayerNotFoundError", "Which", "find_layers", "layer_names", "leaves", "pick"]

Which = str | type | nn.Module | Callable[[str, nn.Module], object]
"""One way to say which layers are meant: name or glob, module type, module, or predicate."""


def find_layers(model: nn.Module, *which: Which, leaves_only: bool = False) -> dict[str, nn.Module]:
    """Pick modules of `model` by name, glob, type, instance or predicate.

    Args:
        model: the model to search.
        *which: what to pick; the results of several items are joined. Without any, all `leaves`.

            - `"layer1.0.conv1"`: the exact dotted name; `""` is `model` itself.
            - `"layer1.*"`: a glob over dotted names. `*`, `?` and `[...]` stay within one level, a level
              `**` spans any number of levels: `"**.relu"` is every `relu`, at the top level too, and
              `"layer1.**"` is everything below `layer1`. A glob never picks the root module. A name
              that is in the model is taken as a name, whatever characters it is made of.
            - `nn.Conv2d`: a type, and with it its subclasses.
            - `model.layer1`: a module of the model.
            - `lambda name, module: ...`: a predicate, called once for every module, the root too.
        leaves_only: keep leaves (see `leaves`) only.

    Returns:
        Dotted name -> module, in the order of `model.named_modules()`, every module once. A module that
        the model holds under several names is listed under its first one, unless it was asked for by
        another: then under the name asked for, or the first name that the glob matched.

    Raises:
        LayerNotFoundError: an item of `which` picks nothing; names the nearest layers.
        TypeError: `model` is not a module, or an item is of none of the kinds above.
        RuntimeError: a predicate raised; names the layer it was called with.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(8, 2)))
        >>> list(find_layers(net))
        ['0', '1', '2.0', '2.1']
        >>> list(find_layers(net, "2.*", nn.Conv2d))
        ['0', '2.0', '2.1']
        >>> find_layers(net, "2.2")
        Traceback (most recent call last):
        hookscope.layers.LayerNotFoundError: no layer '2.2'; did you mean '2.1' or '2.0'?

    """
    return pick(Modules(model), *which, leaves_only=leaves_only)


def pick(modules: Modules, *which: Which, leaves_only: bool = False) -> dict[str, nn.Module]:
    """Do what `find_layers` does, where the modules are known already."""
    if not which:
        return dict(modules.leaves)
    keep = set(modules.leaves.values()) if leaves_only else modules.names.keys()
    by_glob: dict[nn.Module, str] = {}
    by_name: dict[nn.Module, str] = {}
    picked: set[nn.Module] = set()
    for item in which:
        found = _pick(modules, item)
        if found.keys().isdisjoint(keep):
            text = "picks no leaf, only modules with children or never called; leave out leaves_only=True"
            name = item if isinstance(item, str) else _describe(item)
            raise LayerNotFoundError(f"{_describe(item)} {text}", name)
        picked |= found.keys()
        if isinstance(item, str):
            named = by_name if modules.find(item) is not None else by_glob
            named.update(found | named)  # the name asked for first stays
    names = by_glob | by_name
    chosen = picked & keep
    return {names.get(module, name): module for module, name in modules.names.items() if module in chosen}


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """All modules that do the computing: those without children.

    `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` and `nn.ParameterDict` are never leaves, not even
    empty ones, since torch never calls them and no hook on them ever fires. An empty `nn.Sequential` is
    one: it is called and passes its input on. A module with parametrizations (`torch.nn.utils.parametrize`)
    counts as if it had none: it is the leaf, the modules that compute its weight are not.

    Args:
        model: the model to search. A model without children is its own leaf, with the name `""`.

    Returns:
        Dotted name -> module in the order of `model.named_modules()`, shared modules once, under their
        first name.

    Raises:
        TypeError: `model` is not a module.

    Example:
        >>> from torch import nn
        >>> list(leaves(nn.Sequential(nn.Linear(1, 1), nn.ModuleList([nn.ReLU()]))))
        ['0', '1.0']
        >>> leaves(nn.ReLU())
        {'': ReLU()}

    """
    return dict(Modules(model).leaves)


def layer_names(model: nn.Module) -> dict[nn.Module, str]:
    """Give every module of `model` its dotted name.

    Args:
        model: the model; its own name is `""`.

    Returns:
        Module -> its first dotted name, in the order of `model.named_modules()`.

    Raises:
        TypeError: `model` is not a module.

    Example:
        >>> from torch import nn
        >>> relu = nn.ReLU()
        >>> net = nn.Sequential(nn.Linear(1, 1), relu, relu)
        >>> layer_names(net)[relu]
        '1'

    """
    return Modules(model).names


def _pick(modules: Modules, item: object) -> dict[nn.Module, str]:
    """Pick by one item of `which`; picking nothing is an error."""
    names = modules.names
    if isinstance(item, str):
        if (module := modules.find(item)) is not None:
            return {module: item}
        found = match_glob(modules.model, item) if is_glob(item) else {}
        error = None if found else name_not_found(modules, item)
    elif isinstance(item, nn.Module):
        found = {item: names[item]} if item in names else {}
        text = f"the {kind_of(item)} asked for is not a module of this {kind_of(modules.model)}"
        error = LayerNotFoundError(f"{text}; is it from a copy, or was it replaced?", kind_of(item))
    elif isinstance(item, type):
        found = {module: name for module, name in names.items() if isinstance(module, item)}
        error = None if found else type_not_found(modules, item)
    elif callable(item):
        found = {module: name for module, name in names.items() if _ask(item, name, module)}
        text = f"{_describe(item)} is true for none of the {len(names)} modules"
        error = LayerNotFoundError(text, _describe(item))
    else:
        hint = "name or glob, module type, module, or predicate (name, module) -> bool"
        if isinstance(item, (list, tuple, set, frozenset, dict)):
            hint += "; unpack several with a star: find_layers(model, *names)"
        kind = type(item).__name__
        raise TypeError(f"cannot pick layers by {reprlib.repr(item)} of type {kind}; give a {hint}")
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
