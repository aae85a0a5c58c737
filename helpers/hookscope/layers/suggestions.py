"""Say what is not in a model, and what is there that may have been meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import torch

from hookscope.layers.globs import is_glob, match_glob
from hookscope.layers.modules import Modules, kind_of

__all__ = ["LayerNotFoundError", "hint", "name_not_found", "not_found", "type_not_found"]

_WRAPPERS = {"self", "model", "module", "_orig_mod"}


class LayerNotFoundError(LookupError):
    """Nothing in the model is what was asked for.

    Attributes:
        name: the name or glob that was asked for; for other items a word for them.
        suggestions: up to three names (or globs, or types) that are there and come near, best first.

    """

    __module__ = "hookscope.layers"  # what a traceback calls it, and where to import it from

    def __init__(self, message: str, name: str = "", suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.suggestions = tuple(suggestions)


def name_not_found(modules: Modules, asked: str) -> LayerNotFoundError:
    """Say that no module has this name, or none matches this glob."""
    model, names = modules.model, list(filter(None, modules.names.values()))
    if not names:
        text = f"no layer {asked!r}; this {kind_of(model)} has no submodules, only itself, with the name ''"
        return LayerNotFoundError(text, asked)
    tensors = (*model.named_parameters(), *model.named_buffers())
    near = [asked.rpartition(".")[0]] if any(asked == name for name, _ in tensors) else []
    near = near or (_near_globs(modules, names, asked) if is_glob(asked) else [])
    if near := near or _near(names, asked):
        return LayerNotFoundError(f"no layer {asked!r}{hint(near)}", asked, near)
    text = f"no layer {asked!r}, and none of the {len(names)} layers has a name like it"
    return LayerNotFoundError(f"{text}; print(hookscope.tree(model)) lists them", asked)


def type_not_found(modules: Modules, asked: type) -> LayerNotFoundError:
    """Say that no module is of this type."""
    here = [kind for kind, _ in Counter(map(kind_of, modules.names)).most_common()]
    shown = ", ".join(here[:12]) + (f" and {len(here) - 12} more" if len(here) > 12 else "")
    text = f"no layer of type {asked.__name__}; the model's types are {shown}"
    scripted = any(issubclass(kind, torch.jit.ScriptModule) for kind in modules.kinds)
    text += " (TorchScript replaces the class: pick its modules by name)" if scripted else ""
    return LayerNotFoundError(text, asked.__name__, get_close_matches(asked.__name__, here))


def not_found(names: Iterable[str], asked: object, said: str) -> LayerNotFoundError:
    """Say that something is not among the names of a result, and which of them come near.

    Args:
        names: those that are there.
        asked: what was asked for.
        said: the message, to which a hint is added.

    Example:
        >>> raise not_found(["conv", "fc"], "Conv", "no layer 'Conv' in this capture")
        Traceback (most recent call last):
        hookscope.layers.LayerNotFoundError: no layer 'Conv' in this capture; did you mean 'conv'?

    """
    near = _near(list(names), str(asked))
    return LayerNotFoundError(f"{said}{hint(near)}", str(asked), near)


def hint(near: Sequence[str]) -> str:
    """Ask whether one of these names was meant; nothing if there is none."""
    if not near:
        return ""
    return f"; did you mean {' or '.join(filter(None, [', '.join(map(repr, near[:-1])), repr(near[-1])]))}?"


def _near_globs(modules: Modules, names: list[str], asked: str) -> list[str]:
    """Globs like `asked` that match something: at any depth, or below a layer with a similar name."""
    levels = asked.split(".")
    fixed = next(index for index, text in enumerate(levels) if is_glob(text))
    near = _near(names, ".".join(levels[:fixed]))
    candidates = [f"**.{asked}", *(".".join([name, *levels[fixed:]]) for name in near)]
    return [glob for glob in candidates if match_glob(modules.model, glob)][:3]


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
    below = [p for p in by_plain if p.endswith(f".{plain}")]  # the beginning was left out: `h.3` for `transformer.h.3`
    near = below + get_close_matches(plain, by_plain) + get_close_matches(plain, same_last, cutoff=0)
    return [by_plain[p] for p in dict.fromkeys(near)][:3]


def _plain(name: str) -> str:
    """Drop from a name what people mix up: case, `-` and `_`, `[0]` for `.0`, a leading `model.`."""
    text = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", name.strip()).replace("/", ".")
    parts = [part for part in text.split(".") if part]
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return re.sub(r"[-_ ]", "", ".".join(parts)).casefold()
