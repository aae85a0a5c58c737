"""Write the reference of the package: what `import hookscope` gives, room by room, from the docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import Counter
from functools import cache
from types import ModuleType

import hookscope
import hookscope.captures
import hookscope.widgets
from lessons.build import lesson_source

# What a reader looks for -> the names, and the words people type for it.
_PAGES = {
    "Capture activations and gradients": (
        "Get intermediate outputs, feature maps, embeddings, or gradients of any layer, call by call.",
        ("capture", "OverwrittenError", "Activations", "collect", "gradient_flow", "feature_grid", "image_grid"),
    ),
    "Record and list hooks": (
        "See which hooks fired, in which order, and which hooks are on a model right now; remove them all.",
        ("record", "census"),
    ),
    "Change activations": (
        "Set, scale, patch, ablate or steer what a layer returns; try it at every layer and position.",
        ("edit", "at", "sweep", "SweepOptions", "NotEditedError"),
    ),
    "Look into attention": (
        "Attention weights of every head, checked against what the model computed.",
        ("attention",),
    ),
    "Find layers": (
        "Names, globs, types and predicates for layers.",
        ("find_layers", "leaves", "tree", "LayerNotFoundError"),
    ),
    "Graphs, comparisons, costs": (
        "The autograd graph, legacy against full backward hooks, time and memory of each layer.",
        ("graph", "compare_backward_hooks", "profile", "explain"),
    ),
    "Tables and pictures": ("What the functions return to be looked at.", ("Table", "Picture")),
}
_MODULES = {
    "widgets": ("Widgets for JupyterLab", "Pickers, players and playgrounds.", hookscope.widgets),
    "samples": ("Bundled samples", "Pictures and small trained networks that come along.", hookscope.samples),
}
_ROOTS = {"hookscope", *_MODULES}


def make_pages() -> dict[str, str]:
    """The pages as reStructuredText, by name; everything public stands on one of them."""
    named = {name for _, names in _PAGES.values() for name in names}
    left = {*hookscope.__all__} - named - {*_MODULES}
    if left or named - {*hookscope.__all__}:
        raise LookupError(f"reference.py does not place: {', '.join(sorted(left | named - {*hookscope.__all__}))}")
    made = {}
    for title, (words, names) in _PAGES.items():
        made["_".join(title.lower().replace(",", "").split())] = _page(title, words, hookscope, names)
    for name, (title, words, module) in _MODULES.items():
        made[name] = _page(title, words, module, [each for each in module.__all__ if callable(getattr(module, each))])
    rows = "\n".join(f"   {name}" for name in made)
    head = _title("Reference of the package") + (
        "Everything that ``import hookscope`` gives. Each example is run by the tests.\n\n"
        f".. toctree::\n   :maxdepth: 2\n\n{rows}\n"
    )
    return {"index": head, **made}


def _page(title: str, words: str, module: ModuleType, names: tuple[str, ...] | list[str]) -> str:
    parts = [_title(title), f"{words}\n\n"]
    for name in names:
        thing = getattr(module, name)
        parts.append(f"{_title(name, '-')}.. currentmodule:: {module.__name__}\n\n")
        if links := ", ".join(f":doc:`{title} </{page}>`" for page, title in list_uses(name)):
            parts.append(f"Used in {links}.\n\n")
        if inspect.isclass(thing):
            parts.append(f".. autoclass:: {name}\n   :members:\n\n")
        elif callable(thing):
            parts.append(f".. autofunction:: {name}\n\n")
        else:
            parts.append(f".. autodata:: {name}\n   :no-value:\n\n")
    return "".join(parts)


def list_uses(name: str, most: int = 4) -> list[tuple[str, str]]:
    """The chapters that use a public name most, in their order.

    Returns:
        Their pages and titles, such as ("03_forward_hooks", "03 · Forward hooks: watch and change an output").

    """
    chapters = {
        lesson_source.name_of(path): lesson_source.header_of(path)["title"] for path in lesson_source.chapter_files()
    }
    titles = {page: f"{page[:2]} · {title}" for page, title in chapters.items()}
    found = {page: uses[name] for page, uses in _uses().items() if uses[name] and page in titles}
    return [(page, titles[page]) for page in sorted(sorted(found, key=found.__getitem__, reverse=True)[:most])]


@cache
def _uses() -> dict[str, Counter[str]]:
    """How often each notebook's code takes each name from hookscope."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(lesson_source.NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        names: Counter[str] = Counter()
        imported: set[str] = set()
        for cell in cells:
            if cell["cell_type"] != "code" or re.search(r"^[%!]", source := "".join(cell["source"]), re.MULTILINE):
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hookscope":
                    imported |= {each.name for each in node.names}
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] in _ROOTS:
                    names[node.attr] += 1
                elif isinstance(node, ast.Name) and node.id in imported:
                    names[node.id] += 1
        found[path.stem] = names
    return found


def _title(words: str, line: str = "=") -> str:
    return f"{words}\n{line * len(words)}\n\n"
