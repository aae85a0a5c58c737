"""Show the modules of a model as indented text."""

from __future__ import annotations

from torch import nn

from hookscope.layers.modules import check_model, children_of, kind_of

__all__ = ["tree"]


class Outline(str):
    """Text that a prompt shows line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def tree(model: nn.Module, max_depth: int | None = None) -> Outline:
    """Show the module tree as text: one line per name, with type and number of parameters.

    Args:
        model: the model to show.
        max_depth: the number of levels to show; 0 is the root only, None shows all. A line says how many modules are
            hidden below it.

    Returns:
        Lines of dotted name (as `find_layers` takes it), type, and number of values in the module's own parameters,
        without those of its children. A shared module is shown once; other names refer to the first one. A lazy
        parameter without a shape counts as `lazy`.

    Example:
        >>> from torch import nn
        >>> relu = nn.ReLU()
        >>> tree(nn.Sequential(nn.Linear(4, 2), relu, nn.Sequential(nn.Linear(2, 1), relu)))
        (root)   Sequential   0
          0      Linear      10
          1      ReLU         0
          2      Sequential   0
            2.0  Linear       3
            2.1  ReLU         0  = 1

    """
    check_model(model)
    if max_depth is not None and (not isinstance(max_depth, int) or isinstance(max_depth, bool)):
        raise TypeError(f"max_depth must be an int or None, not {type(max_depth).__name__}")
    if max_depth is not None and max_depth < 0:
        raise ValueError(f"max_depth must be 0 or more, not {max_depth}")
    first: dict[int, str] = {}
    rows: list[tuple[str, str, str, str]] = []

    def visit(module: nn.Module, name: str, depth: int) -> None:
        shared = id(module) in first
        note = f"= {first[id(module)] or '(root)'}" if shared else ""
        shown, kind = (text if text.isprintable() else repr(text)[1:-1] for text in (name, kind_of(module)))
        first.setdefault(id(module), shown)
        opened = not shared and (max_depth is None or depth < max_depth)
        if not opened and not shared and (hidden := sum(1 for _ in module.modules()) - 1):
            note = f"+ {hidden} below"
        rows.append(("  " * depth + (shown or "(root)"), kind, _size(module), note))
        for child_name, child in children_of(module) if opened else ():
            visit(child, f"{name}.{child_name}" if name else child_name, depth + 1)

    visit(model, "", 0)
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    return Outline(
        "\n".join(
            f"{name:<{wide[0]}}  {kind:<{wide[1]}}  {size:>{wide[2]}}  {note}".rstrip()
            for name, kind, size, note in rows
        )
    )


def _size(module: nn.Module) -> str:
    own = list(module.parameters(recurse=False))
    return "lazy" if any(nn.parameter.is_lazy(p) for p in own) else f"{sum(p.numel() for p in own):,}"
