"""Turn names, globs, types and predicates into the modules of a model that they mean.

A layer's name is the dotted one that `nn.Module.named_modules` gives it; the root module's is `""`.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["LayerNotFoundError", "Which", "find_layers", "layer_names", "leaves", "tree"]

Which = str | type | nn.Module | Callable[[str, nn.Module], object]
"""One way to say which layers are meant: name or glob, module type, module, or predicate."""

# torch never calls these: they hold modules or parameters, so a call hook on them never fires.
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_WRAPPERS = {"self", "model", "module", "_orig_mod"}


class LayerNotFoundError(LookupError):
    """Nothing in the model is what was asked for.

    Attributes:
        name: the name or glob that was asked for; for other items a word for them.
        suggestions: up to three names (or globs, or types) that are there and come near, best first.

    """

    def __init__(self, message: str, name: str = "", suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.suggestions = tuple(suggestions)


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
    _check_model(model)
    if not which:
        return leaves(model)
    modules = list(model.named_modules())
    keep = {id(leaf) for leaf in leaves(model).values()} if leaves_only else {id(m) for _, m in modules}
    by_glob: dict[int, str] = {}
    by_name: dict[int, str] = {}
    picked: set[int] = set()
    for item in which:
        found = _pick(model, modules, item)
        if found.keys().isdisjoint(keep):
            text = "picks no leaf, only modules with children or never called; leave out leaves_only=True"
            name = item if isinstance(item, str) else _describe(item)
            raise LayerNotFoundError(f"{_describe(item)} {text}", name)
        picked |= found.keys()
        if isinstance(item, str):
            named = by_name if _walk_to(model, item) is not None else by_glob
            named.update(found | named)  # the name asked for first stays
    names = by_glob | by_name
    chosen = picked & keep
    return {names.get(id(m), name): m for name, m in modules if id(m) in chosen}


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
    _check_model(model)
    modules = list(model.named_modules())
    parametrizing = {
        id(below)
        for _, module in modules
        if "parametrizations" in module._modules and is_parametrized(module)
        for below in module._modules["parametrizations"].modules()
    }
    return {
        name: module
        for name, module in modules
        if not isinstance(module, _NEVER_CALLED)
        and id(module) not in parametrizing
        and all(id(child) in parametrizing for _, child in _children(module))
    }


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
    _check_model(model)
    return {module: name for name, module in model.named_modules()}


def every_module(model: nn.Module) -> list[nn.Module]:
    """List every module of `model` once, itself first, in no particular order.

    Several times faster than `nn.Module.modules`, which makes up a name for each.
    """
    found, seen = [model], {model}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def tree(model: nn.Module, max_depth: int | None = None) -> str:
    """Show the module tree as text: one line per name with type and number of own parameters.

    Args:
        model: the model to show.
        max_depth: show names of at most this many levels; 0 is the root alone, None everything. A line
            with something hidden below says how many modules that is.

    Returns:
        Lines of dotted name (as `find_layers` takes it), type and the number of values in the module's
        own parameters, those of its children not included. A module met before under another name says
        so and is not opened again. A lazy parameter that has no shape yet counts as `lazy`.

    Raises:
        TypeError: `model` is not a module, or `max_depth` is neither an int nor None.
        ValueError: `max_depth` is negative.

    Example:
        >>> from torch import nn
        >>> relu = nn.ReLU()
        >>> print(tree(nn.Sequential(nn.Linear(4, 2), relu, nn.Sequential(nn.Linear(2, 1), relu))))
        (root)   Sequential   0
          0      Linear      10
          1      ReLU         0
          2      Sequential   0
            2.0  Linear       3
            2.1  ReLU         0  = 1

    """
    _check_model(model)
    if max_depth is not None and (not isinstance(max_depth, int) or isinstance(max_depth, bool)):
        raise TypeError(f"max_depth must be an int or None, not {type(max_depth).__name__}")
    if max_depth is not None and max_depth < 0:
        raise ValueError(f"max_depth must be 0 or more, not {max_depth}")
    first: dict[int, str] = {}
    rows: list[tuple[str, str, str, str]] = []

    def visit(module: nn.Module, name: str, depth: int) -> None:
        shared = id(module) in first
        note = f"= {first[id(module)] or '(root)'}" if shared else ""
        shown = name if name.isprintable() else repr(name)[1:-1]
        first.setdefault(id(module), shown)
        opened = not shared and (max_depth is None or depth < max_depth)
        if not opened and not shared and (hidden := sum(1 for _ in module.modules()) - 1):
            note = f"+ {hidden} below"
        rows.append(("  " * depth + (shown or "(root)"), _kind(module), _size(module), note))
        for child_name, child in _children(module) if opened else ():
            visit(child, f"{name}.{child_name}" if name else child_name, depth + 1)

    visit(model, "", 0)
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{wide[0]}}  {kind:<{wide[1]}}  {size:>{wide[2]}}  {note}".rstrip() for name, kind, size, note in rows
    )


def _check_model(model: object) -> None:
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(f"model must be a module, not the class {model.__name__}; make one: {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def _pick(model: nn.Module, modules: list[tuple[str, nn.Module]], item: object) -> dict[int, str]:
    """Pick by one item of `which`, as id -> name; picking nothing is an error."""
    if isinstance(item, str):
        if (module := _walk_to(model, item)) is not None:
            return {id(module): item}
        found = _glob(model, item) if _has_magic(item) else {}
        error = None if found else _no_name(model, [name for name, _ in modules if name], item)
    elif isinstance(item, nn.Module):
        found = {id(m): name for name, m in modules if m is item}
        text = f"the {_kind(item)} asked for is not a module of this {_kind(model)}"
        error = LayerNotFoundError(f"{text}; is it from a copy, or was it replaced?", _kind(item))
    elif isinstance(item, type):
        found = {id(m): name for name, m in modules if isinstance(m, item)}
        error = None if found else _no_type([m for _, m in modules], item)
    elif callable(item):
        found = {id(m): name for name, m in modules if _ask(item, name, m)}
        text = f"{_describe(item)} is true for none of the {len(modules)} modules"
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
        what = f"{_describe(predicate)} raised {type(error).__name__} on {where} ({_kind(module)}): {error}"
        raise RuntimeError(what) from error


def _walk_to(model: nn.Module, name: str) -> nn.Module | None:
    """Find the module called `name`, also by a name that is not its first."""
    module: nn.Module | None = model
    for part in name.split(".") if name else ():
        held = module._modules if module is not None else {}
        module = held[part] if part in held else None  # noqa: SIM401 (TorchScript's has no get)
    return module


def _glob(model: nn.Module, pattern: str) -> dict[int, str]:
    """Match a glob, as id -> first matching name."""
    # Walk the tree with the set of pattern levels still open. Entering every module once per such set ends
    # even where shared modules double the paths at every level, or a module contains itself.
    # As in .gitignore, `**` at the end is everything below: at least one level.
    levels = [*pattern.split("."), "*"] if pattern.split(".")[-1] == "**" else pattern.split(".")
    end = len(levels)
    found: dict[int, str] = {}
    seen: set[tuple[int, frozenset[int]]] = set()

    def skip_none(states: set[int]) -> frozenset[int]:
        for level, text in enumerate(levels):
            if text == "**" and level in states:
                states.add(level + 1)
        return frozenset(states)

    def visit(module: nn.Module, name: str, states: frozenset[int]) -> None:
        if (id(module), states) in seen:
            return
        seen.add((id(module), states))
        if end in states:
            found.setdefault(id(module), name)
        for part, child in _children(module):
            after: set[int] = set()
            for level in states - {end}:
                if levels[level] == "**":
                    after.add(level)
                elif fnmatchcase(part, levels[level]):
                    after.add(level + 1)
            if after:
                visit(child, f"{name}.{part}" if name else part, skip_none(after))

    visit(model, "", skip_none({0}))
    return found


def _no_name(model: nn.Module, names: list[str], asked: str) -> LayerNotFoundError:
    if not names:
        text = f"no layer {asked!r}; this {_kind(model)} has no submodules, only itself, with the name ''"
        return LayerNotFoundError(text, asked)
    tensors = (*model.named_parameters(), *model.named_buffers())
    near = [asked.rpartition(".")[0]] if any(asked == name for name, _ in tensors) else []
    near = near or (_near_globs(model, names, asked) if _has_magic(asked) else [])
    if near := near or _near(names, asked):
        choice = " or ".join(filter(None, [", ".join(map(repr, near[:-1])), repr(near[-1])]))
        return LayerNotFoundError(f"no layer {asked!r}; did you mean {choice}?", asked, near)
    text = f"no layer {asked!r}, and none of the {len(names)} layers has a name like it"
    return LayerNotFoundError(f"{text}; print(hookscope.tree(model)) lists them", asked)


def _near_globs(model: nn.Module, names: list[str], asked: str) -> list[str]:
    """Globs like `asked` that match something: at any depth, or below a layer with a similar name."""
    levels = asked.split(".")
    fixed = next(index for index, text in enumerate(levels) if _has_magic(text))
    near = _near(names, ".".join(levels[:fixed]))
    candidates = [f"**.{asked}", *(".".join([name, *levels[fixed:]]) for name in near)]
    return [glob for glob in candidates if _glob(model, glob)][:3]


def _near(names: list[str], asked: str) -> list[str]:
    """Up to three of `names` that `asked` may be a slip of, best first."""
    plain = _plain(asked)
    if not plain:
        return []
    by_plain = {_plain(name): name for name in reversed(names)}
    if plain in by_plain:
        return [by_plain[plain]]
    last = plain.rpartition(".")[2]
    same_last = [p for p in by_plain if p.rpartition(".")[2] == last and not last.isdigit()]
    near = get_close_matches(plain, by_plain) + get_close_matches(plain, same_last, cutoff=0)
    return [by_plain[p] for p in dict.fromkeys(near)][:3]


def _plain(name: str) -> str:
    """Drop from a name what people mix up: case, `-` and `_`, `[0]` for `.0`, a leading `model.`."""
    text = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", name.strip()).replace("/", ".")
    parts = [part for part in text.split(".") if part]
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return re.sub(r"[-_ ]", "", ".".join(parts)).casefold()


def _no_type(modules: list[nn.Module], asked: type) -> LayerNotFoundError:
    here = [kind for kind, _ in Counter(map(_kind, modules)).most_common()]
    shown = ", ".join(here[:12]) + (f" and {len(here) - 12} more" if len(here) > 12 else "")
    text = f"no layer of type {asked.__name__}; the model's types are {shown}"
    scripted = any(isinstance(m, torch.jit.ScriptModule) for m in modules)
    text += " (TorchScript replaces the class: pick its modules by name)" if scripted else ""
    return LayerNotFoundError(text, asked.__name__, get_close_matches(asked.__name__, here))


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    # Not named_children(), which leaves out a child's second name.
    return ((name, child) for name, child in module._modules.items() if child is not None)


def _kind(module: nn.Module) -> str:
    """Name the module's class; for TorchScript the class it was made from."""
    return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__


def _size(module: nn.Module) -> str:
    own = list(module.parameters(recurse=False))
    return "lazy" if any(nn.parameter.is_lazy(p) for p in own) else f"{sum(p.numel() for p in own):,}"


def _describe(item: object) -> str:
    if isinstance(item, (str, nn.Module)):
        return repr(item) if isinstance(item, str) else f"the {_kind(item)}"
    what = "type" if isinstance(item, type) else "predicate"
    return f"the {what} {getattr(item, '__qualname__', type(item).__name__)}"


def _has_magic(text: str) -> bool:
    return any(sign in text for sign in "*?[")
