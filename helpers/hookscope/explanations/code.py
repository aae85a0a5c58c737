"""Write the lines that explanations of several kinds share: which layers, how to follow a structure, a loss."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.captures.call import Slot
from hookscope.layers import Modules

WIDTH = 88
_MANY = 12  # names that are listed even where an expression would say the same
_PIECE = 60  # characters of a very long name on one line

_IMPORTS = {
    "copy": "import copy",
    "Mapping": "from collections.abc import Mapping",
    "np": "import numpy as np",
    "torch": "import torch",
    "nn": "from torch import nn",
}

UNKNOWN = frozenset({"sequence", "namedtuple", "dict"})
"""The structures to be ready for where nothing has been seen."""

REMOVE = """\
finally:
    for handle in handles:
        handle.remove()  # otherwise your hooks fire in every later pass"""


def script(*parts: str) -> str:
    """Put parts together, functions between two empty lines, and import what they use."""
    given = [part.strip("\n") for part in parts if part]
    text, after_function = "", False
    for part in given:
        apart = after_function or part.startswith(("def ", "class "))
        text += ("\n\n\n" if apart else "\n") * bool(text) + part
        after_function = part.startswith(("def ", "class "))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = [line for name, line in _IMPORTS.items() if name in used]
    return "\n".join([*imports, *([""] * bool(imports)), text]) + "\n"


def layers_line(names: list[str], modules: Modules | None = None) -> str:
    """Write the line that maps each layer to its name, and all layers of a kind by a rule where there is one."""
    if modules is not None and len(names) > _MANY and (rule := _rule(modules, names)) is not None:
        return "layers = {\n    module: name\n    for name, module in model.named_modules()\n" + rule + "}"
    listed = listing(names)
    if "\n" not in listed and len(listed) <= WIDTH - 55:
        return f"layers = {{model.get_submodule(name): name for name in {listed}}}"
    return f"names = {listed}\nlayers = {{model.get_submodule(name): name for name in names}}"


def _rule(modules: Modules, names: list[str]) -> str | None:
    """Find a condition that picks just these layers of a model, "" for all; None if there is no simple one."""
    named = [(name, module) for module, name in modules.names.items()]
    chosen = {name: module for name, module in named if name in set(names)}
    if len(chosen) != len(names):
        return None
    if len(named) == len(chosen):
        return ""
    if _same((n for n, m in named if not list(m.children())), chosen):
        return "    if not list(module.children())  # every layer that has no layers inside\n"
    kinds = dict.fromkeys(type(module) for module in chosen.values())
    public = len(kinds) <= 3 and all(getattr(nn, kind.__name__, None) is kind for kind in kinds)
    if public and _same((n for n, m in named if isinstance(m, tuple(kinds))), chosen):
        known = ", ".join(f"nn.{kind.__name__}" for kind in kinds)
        return f"    if isinstance(module, {f'({known})' if len(kinds) > 1 else known})\n"
    start = names[0].partition(".")[0] + "."
    if len(repr(start)) < _PIECE:
        below = {name: module for name, module in named if name.startswith(start)}
        if _same(below, chosen):
            return f"    if name.startswith({start!r})\n"
        if _same((n for n, m in below.items() if not list(m.children())), chosen):
            return f"    if name.startswith({start!r}) and not list(module.children())\n"
    return None


def _same(found: Iterable[str], chosen: Mapping[str, object]) -> bool:
    return set(found) == set(chosen)


def listing(names: list[str]) -> str:
    """Write a list of strings, on several lines if it is long."""
    short = f"[{', '.join(map(literal, names))}]"
    if "\n" not in short and len(short) <= WIDTH - 10:
        return short
    lines, line = [], ""
    for item in map(literal, names):
        if line and len(line) + len(item) + 2 > WIDTH - 4:
            lines.append(line.rstrip())
            line = ""
        line += f"{item}, "
    return "\n".join(["[", *(indent(text, "    ") for text in [*lines, line.rstrip()]), "]"])


def literal(name: str) -> str:
    """Write a string as Python source, a very long one in pieces."""
    if len(repr(name)) <= WIDTH - 10:
        return repr(name)
    pieces = [repr(name[start : start + _PIECE // 2]) for start in range(0, len(name), _PIECE // 2)]
    return "(\n" + indent("\n".join(pieces), "    ") + "\n)"


def structures(value: Any, kind: type = Slot) -> set[str]:
    """Name the structures around the tensors (`kind`) in a value: `tensor` for one itself, `value` for none."""
    found: set[str] = set()
    _scan(value, kind, found, set())
    return found


def _scan(value: Any, kind: type, found: set[str], seen: set[int]) -> None:
    if id(value) in seen:
        return
    if isinstance(value, kind):
        found.add("tensor")
        return
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, nn.Module)):
        found.add("value")
        return
    seen.add(id(value))
    inside: Iterable[Any] = ()
    if isinstance(value, tuple) and hasattr(value, "_make"):
        found.add("namedtuple")
        inside = value
    elif isinstance(value, (tuple, list, set, frozenset)):
        found.add("sequence")
        inside = value
    elif isinstance(value, dict):
        found.add("dict" if type(value) is dict else "mapping")
        inside = value.values()
    elif not callable(value) and getattr(value, "__dict__", None) and not isinstance(value, np.ndarray):
        before = set(found)
        found.clear()
        for item in vars(value).values():
            _scan(item, kind, found, seen)
        holds = "tensor" in found
        found |= before
        found.add("object" if holds else "value")
    else:
        found.add("value")
    for item in inside:
        _scan(item, kind, found, seen)


def helper(found: Iterable[str]) -> str:
    """Write a function that applies another one to every tensor in these structures."""
    kinds = set(found)
    lines = [
        "def map_tensors(function, value):",
        '    """Build the same value again, with function(tensor) in place of every tensor."""',
        "    if isinstance(value, torch.Tensor):",
        "        return function(value)",
    ]
    if "namedtuple" in kinds:
        lines += [
            '    if hasattr(value, "_make"):  # a named tuple',
            "        return value._make([map_tensors(function, item) for item in value])",
        ]
    if "sequence" in kinds:
        lines += [
            "    if isinstance(value, (tuple, list, set)):",
            "        return type(value)([map_tensors(function, item) for item in value])",
        ]
    if "mapping" in kinds:
        lines += [
            "    if isinstance(value, dict):",
            "        new = copy.copy(value)  # of the same type, an OrderedDict say",
            "        for key, item in value.items():",
            "            new[key] = map_tensors(function, item)",
            "        return new",
        ]
    elif "dict" in kinds:
        lines += [
            "    if isinstance(value, dict):",
            "        return {key: map_tensors(function, item) for key, item in value.items()}",
        ]
    if "object" in kinds:
        lines += [
            '    if hasattr(value, "__dict__") and not callable(value):  # a dataclass, say',
            "        new = object.__new__(type(value))",
            "        for key, item in vars(value).items():",
            "            new.__dict__[key] = map_tensors(function, item)",
            "        return new",
        ]
    return "\n".join([*lines, "    return value"])


def tensors_in(followed: bool) -> str:
    """Write a function that lists the tensors in a result, with the help of `map_tensors` if it is there already."""
    if followed:
        return "def tensors_in(value):\n    found = []\n    map_tensors(found.append, value)\n    return found"
    return (
        "def tensors_in(value):\n"
        "    if isinstance(value, torch.Tensor):\n"
        "        return [value]\n"
        "    value = vars(value) if hasattr(value, '__dataclass_fields__') else value\n"
        "    items = value.values() if isinstance(value, dict) else value\n"
        "    if isinstance(value, (tuple, list, dict)):\n"
        "        return [tensor for item in items for tensor in tensors_in(item)]\n"
        "    return []"
    )


def called(model: nn.Module | None) -> str:
    """Write the call of a model; where it takes several arguments, also by their names."""
    by_place = "model(*inputs)"
    try:
        takes = [*inspect.signature(type(model).forward).parameters.values()][1:] if model is not None else []
    except (AttributeError, TypeError, ValueError):
        return by_place
    named = [each for each in takes if each.kind is not each.VAR_POSITIONAL]
    several = len(named) > 1 or any(each.kind is each.VAR_KEYWORD for each in named)
    return f"model(**inputs) if isinstance(inputs, dict) else {by_place}" if several else by_place


def run(plain: bool, backward: bool, some_complex: bool = False, call: str = "model(*inputs)") -> str:
    """Write the lines that run the model, and backward from its result, `plain` if that is one tensor."""
    result = f"    result = {call}"
    if not backward:
        return result
    if plain:
        real = ".real" if some_complex else ""  # backward begins at a real number
        loss = f"    loss = result.sum(){real}  # put your own loss here"
    else:
        loss = (
            "    # Put your own loss here. This one adds up what the model returns, its real parts.\n"
            "    loss = sum(t.sum().real for t in tensors_in(result) if t.requires_grad)"
        )
    return f"{result}\n{loss}\n    loss.backward()  # before the hooks come off"


_SURE = ("linear", "conv", "activation", "batchnorm", "instancenorm", "normalization", "dropout", "flatten")


def returns_tensor(module: nn.Module, plain: Iterable[nn.Module] = ()) -> bool:
    """Whether a module surely returns one tensor: it was seen to, or is of torch's types that always do."""
    known = set(plain)
    while module not in known and type(module) is nn.Sequential and len(module):
        module = module[-1]
    room = type(module).__module__
    sure = room in {f"torch.nn.modules.{name}" for name in _SURE}
    return module in known or (sure and not isinstance(module, (nn.Identity, nn.MultiheadAttention)))


def is_tensor_shape(shapes: object) -> bool:
    """Whether a recorded shape is that of one tensor with axes."""
    return isinstance(shapes, tuple) and bool(shapes) and all(isinstance(side, int) for side in shapes)


def dtype_of(value: object) -> torch.dtype | None:
    """Return the dtype of what was kept of a tensor."""
    return value.dtype if isinstance(value, Tensor) else getattr(value, "dtype", None)
