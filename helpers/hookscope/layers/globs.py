"""Match globs over dotted names: `*` matches within one level, `**` matches any number of levels."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from hookscope.layers.modules import children_of

__all__ = ["is_glob", "match_glob"]


def is_glob(text: str) -> bool:
    """Return whether a text contains `*`, `?` or `[`."""
    return any(sign in text for sign in "*?[")


def match_glob(model: nn.Module, glob: str) -> dict[nn.Module, str]:
    """Return module -> first matching name."""
    # Walk the tree with the set of open levels of the glob, and enter each module once per set. So the walk ends even
    # if shared modules double the paths at each level, or a module contains itself.
    # As in .gitignore, `**` at the end matches everything below, at least one level.
    levels = [*glob.split("."), "*"] if glob.split(".")[-1] == "**" else glob.split(".")
    end = len(levels)
    found: dict[nn.Module, str] = {}
    seen: set[tuple[nn.Module, frozenset[int]]] = set()

    def skip_none(states: set[int]) -> frozenset[int]:
        for level, text in enumerate(levels):
            if text == "**" and level in states:
                states.add(level + 1)
        return frozenset(states)

    def visit(module: nn.Module, name: str, states: frozenset[int]) -> None:
        if (module, states) in seen:
            return
        seen.add((module, states))
        if end in states:
            found.setdefault(module, name)
        for part, child in children_of(module):
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
