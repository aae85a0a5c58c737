"""Write the reference of the package: what `import hookscope` gives, room by room, from the docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections import Counter
from functools import cache
from types import ModuleType

import hookscope
import hookscope.captures
import hookscope.widgets
from hookscope.captures.call import Call
from hookscope.captures.layer import Layer
from hookscope.captures.result import Capture
from hookscope.captures.stats import Stats
from hookscope.censuses.census import Census
from hookscope.censuses.entry import HookEntry
from hookscope.comparisons.compare import BackwardComparison
from hookscope.diagnoses import Diagnosis, Finding
from hookscope.explanations.explain import Explanation
from hookscope.graphs.graph import Graph
from hookscope.interp.attentions.maps import AttentionMap, AttentionMaps
from hookscope.interp.edits.edit import Edit
from hookscope.interp.profiles.result import LayerProfile, Profile
from hookscope.interp.sweeps.result import Sweep
from hookscope.pictures import Result
from hookscope.recordings.call_tree import CallTree
from hookscope.recordings.event import Event
from hookscope.recordings.record import Recording
from lessons.build import lesson_source

# What a reader looks for -> the names, and the words people type for it.
_PAGES = {
    "Capture activations and gradients": (
        "Get intermediate outputs, feature maps, embeddings, or gradients of any layer, call by call.",
        (
            "capture",
            "NotCapturedError",
            "OverwrittenError",
            "Activations",
            "collect",
            "gradient_flow",
            "feature_grid",
            "image_grid",
        ),
    ),
    "Record and list hooks": (
        "See which hooks fired, in which order, and which are on a model; remove them; find out why one is silent.",
        ("record", "FullBackwardHookError", "census", "diagnose"),
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
# What a call returns is documented below the call.
_RESULTS: dict[str, tuple[type, ...]] = {
    "capture": (Capture, Layer, Call, Stats),
    "record": (Recording, Event, CallTree),
    "census": (Census, HookEntry),
    "diagnose": (Diagnosis, Finding),
    "edit": (Edit,),
    "sweep": (Sweep,),
    "attention": (AttentionMaps, AttentionMap),
    "graph": (Graph,),
    "compare_backward_hooks": (BackwardComparison,),
    "profile": (Profile, LayerProfile),
    "explain": (Explanation,),
}
_INTERNAL = ("like", "slots")  # of Capture and Call: for other rooms of the package
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
    made, tables = {}, []
    rooms = {title: ("_".join(title.lower().replace(",", "").split()), words, hookscope, [*names])
             for title, (words, names) in _PAGES.items()}  # fmt: skip
    for name, (title, words, module) in _MODULES.items():
        rooms[title] = name, words, module, [each for each in module.__all__ if callable(getattr(module, each))]
    for title, (page, words, module, names) in rooms.items():
        made[page] = _page(title, words, module, names)
        listed = "\n".join(f"   {name}" for name in names)
        tables.append(
            f".. rubric:: :doc:`{title} <{page}>`\n\n.. currentmodule:: {module.__name__}\n\n"
            f".. autosummary::\n   :nosignatures:\n\n{listed}\n\n"
        )
    rows = "\n".join(f"   {name}" for name in made)
    head = _title("Reference of the package") + (
        "Everything that ``import hookscope`` gives. Each example is run by the tests.\n\n"
        f"{''.join(tables)}.. toctree::\n   :hidden:\n\n{rows}\n"
    )
    return {"index": head, **made}


def _page(title: str, words: str, module: ModuleType, names: list[str]) -> str:
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
            if results := _RESULTS.get(name):
                parts.append(f"Returns: :class:`~{results[0].__module__}.{results[0].__name__}`, described below.\n\n")
        else:  # autodoc would take the text before a colon for its type
            text = textwrap.indent(inspect.cleandoc(type(thing).__doc__ or ""), "   ")
            parts.append(f".. py:data:: {name}\n\n{text}\n\n")
        parts += [_document_result(each, name, at) for at, each in enumerate(_RESULTS.get(name, ()))]
    return "".join(parts)


def _document_result(result: type, by: str, at: int) -> str:
    """What a call returns: a table of its public members, then each of them."""
    members = list_members(result)
    listed = "\n".join(f"   ~{result.__name__}.{member}" for member in members)
    table = f".. autosummary::\n   :nosignatures:\n\n{listed}\n\n" if members else ""
    # Those of a Mapping have only Python's own words.
    others = ", ".join(name for name in dir(result) if not name.startswith("_") and name not in members)
    return (
        f".. currentmodule:: {result.__module__}\n\n{_title(result.__name__, '~')}"
        f"{'Part of what' if at else 'What'} :func:`hookscope.{by}` returns.\n\n{table}"
        f".. autoclass:: {result.__name__}()\n   :members: {', '.join(members)}\n   :inherited-members:\n"
        f"   :exclude-members: {others}\n\n"
    )


def list_members(result: type) -> list[str]:
    """The public methods, properties and attributes that a class and its bases in hookscope define, in their order."""
    found: dict[str, None] = {}
    for base in result.__mro__:
        if base.__module__.startswith("hookscope."):
            fields = getattr(base, "__dataclass_fields__", {})
            found |= dict.fromkeys(name for name in (*vars(base), *fields) if not name.startswith("_"))
    if getattr(result, "picture", None) is Result.picture:
        del found["picture"]  # which says that there is none
    documented = [name for name in found if name not in _INTERNAL and inspect.getdoc(getattr(result, name, None))]
    return [name for name in documented if not isinstance(getattr(result, name), tuple | str | int | float)]


def list_uses(name: str) -> list[tuple[str, str]]:
    """The four chapters that use a public name most, in their order.

    Returns:
        Their pages and titles, such as ("03_forward_hooks", "03 · Forward hooks: watch and change an output").

    """
    chapters = {
        lesson_source.name_of(path): lesson_source.header_of(path)["title"] for path in lesson_source.chapter_files()
    }
    titles = {page: f"{page[:2]} · {title}" for page, title in chapters.items()}
    found = {page: uses[name] for page, uses in _uses().items() if uses[name] and page in titles}
    return [(page, titles[page]) for page in sorted(sorted(found, key=found.__getitem__, reverse=True)[:4])]


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
