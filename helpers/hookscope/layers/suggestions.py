"""Errors for missing layers, with suggestions of similar names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import torch

from hookscope.error_pages import append_page
from hookscope.layers.globs import is_glob, match_glob
from hookscope.layers.modules import Modules, kind_of

__all__ = ["LayerNotFoundError", "hint", "name_not_found", "not_found", "type_not_found"]

_WRAPPERS = {"self", "model", "module", "_orig_mod"}


class LayerNotFoundError(LookupError):
    """The model has no layer that matches.

    Attributes:
        name: the missing name or glob; for other items a word for them.
        suggestions: up to three similar names, globs or types of the model, best first.

    """

    __module__ = "hookscope.layers"  # its public name in tracebacks

    def __init__(self, message: str, name: str = "", suggestions: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.name = name
        self.suggestions = tuple(suggestions)


def name_not_found(modules: Modules, asked: str) -> LayerNotFoundError:
    """Return the error for a name that no module has, or a glob that matches nothing."""
    model, names = modules.model, list(filter(None, modules.names.values()))
    if not names:
        text = f"no layer {asked!r}; this {kind_of(model)} has no submodules, only itself under the name ''"
        return LayerNotFoundError(append_page(text, "no_layer"), asked)
    tensors = (*model.named_parameters(), *model.named_buffers())
    near = [asked.rpartition(".")[0]] if any(asked == name for name, _ in tensors) else []
    near = near or (_near_globs(modules, names, asked) if is_glob(asked) else [])
    if near := near or _near(names, asked):
        return LayerNotFoundError(append_page(f"no layer {asked!r}{hint(near)}", "no_layer"), asked, near)
    text = f"no layer {asked!r}, and none of the {len(names)} layers has a similar name"
    return LayerNotFoundError(append_page(f"{text}. hookscope.tree(model) lists them", "no_layer"), asked)


def type_not_found(modules: Modules, asked: type) -> LayerNotFoundError:
    """Return the error for a type that no module has."""
    here = [kind for kind, _ in Counter(map(kind_of, modules.names)).most_common()]
    shown = ", ".join(here[:12]) + (f" and {len(here) - 12} more" if len(here) > 12 else "")
    text = f"no layer of type {asked.__name__}; the types in this model are {shown}"
    scripted = any(issubclass(kind, torch.jit.ScriptModule) for kind in modules.kinds)
    text += ". TorchScript replaces the class of its modules, so pick them by name" if scripted else ""
    return LayerNotFoundError(text, asked.__name__, get_close_matches(asked.__name__, here))


def not_found(names: Iterable[str], asked: object, said: str) -> LayerNotFoundError:
    """Return the error for a name that a result does not have, with similar names.

    Args:
        names: the names of the result.
        asked: the missing name.
        said: the message, without the suggestion.

    Example:
        >>> raise not_found(["conv", "fc"], "Conv", "no layer 'Conv' in this capture")
        Traceback (most recent call last):
        hookscope.layers.LayerNotFoundError: no layer 'Conv' in this capture; did you mean 'conv'?

    """
    near = _near(list(names), str(asked))
    return LayerNotFoundError(f"{said}{hint(near)}", str(asked), near)


def hint(near: Sequence[str]) -> str:
    """Return "; did you mean ...?" for these names, or "" without any."""
    if not near:
        return ""
    return f"; did you mean {' or '.join(filter(None, [', '.join(map(repr, near[:-1])), repr(near[-1])]))}?"


def _near_globs(modules: Modules, names: list[str], asked: str) -> list[str]:
    """Return similar globs that match something: at any depth, or below a layer with a similar name."""
    levels = asked.split(".")
    fixed = next(index for index, text in enumerate(levels) if is_glob(text))
    near = _near(names, ".".join(levels[:fixed]))
    candidates = [f"**.{asked}", *(".".join([name, *levels[fixed:]]) for name in near)]
    return [glob for glob in candidates if match_glob(modules.model, glob)][:3]


def _near(names: list[str], asked: str) -> list[str]:
    """Return up to three names that are similar to `asked`, best first."""
    plain = _plain(asked)
    if not plain:
        return []
    by_plain = {_plain(name): name for name in reversed(names)}
    if plain in by_plain:
        return [by_plain[plain]]
    last = plain.rpartition(".")[2]
    same_last = [p for p in by_plain if p.rpartition(".")[2] == last and not last.isdigit()]
    below = [p for p in by_plain if p.endswith(f".{plain}")]  # the prefix is missing: `h.3` for `transformer.h.3`
    near = below + get_close_matches(plain, by_plain) + get_close_matches(plain, same_last, cutoff=0)
    return [by_plain[p] for p in dict.fromkeys(near)][:3]


def _plain(name: str) -> str:
    """Normalize a name: case, `-` and `_`, `[0]` for `.0`, a leading `model.`."""
    text = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", name.strip()).replace("/", ".")
    parts = [part for part in text.split(".") if part]
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return re.sub(r"[-_ ]", "", ".".join(parts)).casefold()
