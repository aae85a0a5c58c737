"""Write plain torch code as text: code that keeps the outputs of layers, and the place of a tensor in a hook."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pprint import pformat
from textwrap import indent
from typing import Any

from torch import Tensor

__all__ = ["COPY", "REMOVE", "TensorPath", "capture_code", "index_text", "listed", "loss_lines", "script"]

_IMPORTS = {
    "dataclasses": "import dataclasses",
    "itertools": "import itertools",
    "Mapping": "from collections.abc import Mapping",
    "torch": "import torch",
}

_MAP_TENSORS = '''\
def copied(tensor):
    # Detached, it keeps no graph alive; copied, nothing in place can overwrite it.
    return tensor.detach().clone()


def map_tensors(function, value):
    """Build plain tuples, lists and dicts again, with function(tensor) in place of every tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(function, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if value is None or isinstance(value, (int, float, str, torch.device, torch.dtype)):
        return value
    raise TypeError(f"write here how to copy a {type(value).__name__}")'''

_TENSORS_IN = """\
def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []"""

_KEEP_GRAD = """\
def keep_grad(into, place):
    def hook(grad):
        grad = grad.detach().clone()
        # Several backward passes add up, as in Tensor.grad.
        into[place] = grad if into[place] is None else into[place] + grad
        # The hook returns None: anything else would replace the gradient.

    return hook"""

_KEEP_INPUTS = """\
def keep_inputs(module, args, kwargs):
    received.setdefault(layers[module], []).append(map_tensors(copied, (args, kwargs)))"""

_GRADS_OF_ONE = """\
of_layer = grads.setdefault(name, [])
of_layer.append(None)  # stays None if no gradient arrives
if output.requires_grad:
    handles.append(output.register_hook(keep_grad(of_layer, len(of_layer) - 1)))"""

_GRADS_OF_SEVERAL = """\
tensors = tensors_in(output)
arrived = [None] * len(tensors)  # one gradient for each tensor
grads.setdefault(name, []).append(arrived)
for place, tensor in enumerate(tensors):
    if tensor.requires_grad:
        handles.append(tensor.register_hook(keep_grad(arrived, place)))"""

REMOVE = """\
finally:
    for handle in handles:
        handle.remove()  # otherwise your hooks fire in every later pass"""

COPY = "  # a copy: others may hold the tensor itself"


def script(*parts: str) -> str:
    """Join parts of code, with two empty lines around functions, and add the imports and the function that they use."""
    text, after_function = "", False
    listing = [_TENSORS_IN] if any("tensors_in(" in part for part in parts) else []
    for part in filter(None, [*parts[:1], *listing, *parts[1:]]):
        is_function = part.startswith("def ")
        text += ("\n\n\n" if is_function or after_function else "\n") * bool(text) + part
        after_function = is_function
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = [line for name, line in _IMPORTS.items() if name in used]
    return "\n".join([*imports, *[""] * bool(imports), text]) + "\n"


def listed(names: Sequence[str]) -> str:
    """Write names as a list, on several lines if it is long."""
    return pformat(list(names), width=80, compact=True)


def loss_lines(plain: bool) -> list[str]:
    """Write a loss of `result` and the backward pass; `plain` means that `result` is one tensor."""
    loss = "result.sum()" if plain else "sum(t.sum().real for t in tensors_in(result) if t.requires_grad)"
    return ["# Put your own loss here; this one adds up what the model returns.", f"loss = {loss}", "loss.backward()"]


def capture_code(
    names: Sequence[str],
    run: Sequence[str],
    *,
    plain: bool = True,
    gradients: bool = False,
    inputs: bool = False,
    pick: str = "",
) -> str:
    """Write the code that keeps the outputs of layers.

    Args:
        names: the layers.
        run: the code that runs the model.
        plain: whether each layer returns one tensor; otherwise tensors can be in tuples, lists and dicts.
        gradients: also keep gradients.
        inputs: also keep arguments.
        pick: a line that takes one tensor out of `output`.

    """
    layers = f"layers = {{model.get_submodule(name): name for name in {listed(names)}}}"
    if len(layers) > 88:
        layers = f"names = {listed(names)}\nlayers = {{model.get_submodule(name): name for name in names}}"
    keep = "output.detach().clone()" if plain else "map_tensors(copied, output)"
    hook = [
        pick,
        "name = layers[module]",
        "# Detached, it keeps no graph alive; copied, nothing in place can overwrite it." if plain else "",
        f"outputs.setdefault(name, []).append({keep})",
        *((_GRADS_OF_ONE if plain else _GRADS_OF_SEVERAL).split("\n") if gradients else []),
    ]
    variables = [
        layers,
        "outputs = {}  # layer name -> what it returned, in the order in which calls end",
        "grads = {}  # layer name -> the gradients of these outputs" if gradients else "",
        "received = {}  # layer name -> (args, kwargs), in the order in which calls begin" if inputs else "",
        "handles = []",
    ]
    pre_hook = "        handles.append(layer.register_forward_pre_hook(keep_inputs, with_kwargs=True))"
    passes = [
        "try:",
        "    for layer in layers:",
        pre_hook if inputs else "",
        "        handles.append(layer.register_forward_hook(keep_output))",
        *(f"    {line}" for line in run),
        REMOVE,
    ]
    return script(
        "\n".join(filter(None, variables)),
        "" if plain and not inputs else _MAP_TENSORS,
        _KEEP_GRAD if gradients else "",
        _KEEP_INPUTS if inputs else "",
        TensorPath().hook("keep_output", [*filter(None, hook)]),
        "\n".join(filter(None, passes)),
    )


@dataclass(frozen=True)
class TensorPath:
    """The position of one tensor in the call of a layer, as a hook finds it.

    Attributes:
        holder: "output", "args" or "kwargs".
        kind: the container of the tensor, "tuple" or "dict"; "" if the layer returns the tensor itself.
        key: its key or index there.

    """

    holder: str = "output"
    kind: str = ""
    key: Any = None

    @classmethod
    def of(cls, layer: str, to: str, keys: Sequence[tuple[str, Any]]) -> TensorPath:
        """Create a path from "output", "input" or "grad", and the keys that an edit found, from the outside in.

        Raises:
            ValueError: the tensor is too deep inside the value.

        """
        kind, key = keys[0] if keys else ("", None)
        item = to == "output" and (kind == "dict" or (kind == "tuple" and isinstance(key, int) and key >= 0))
        if len(keys) > 1 or not (to == "input" or item or (to in ("output", "grad") and not keys)):
            raise ValueError(
                f"explain cannot write code for this edit of layer {layer!r}: it changes the attention, or a tensor "
                "deep inside a value. Edit a whole output or input, the gradient of a whole output, or an item of a "
                "tuple or dict"
            )
        if to == "input":
            return cls("kwargs", "dict", key) if isinstance(key, str) else cls("args", "tuple", key)
        return cls("output", kind, key)

    @property
    def tensor(self) -> str:
        """The tensor, as the hook reads it."""
        return f"{self.holder}[{self.key!r}]" if self.kind else self.holder

    def back(self, new: str) -> str:
        """Write the return value of the hook, with `new` instead of the tensor."""
        holder, key = self.holder, self.key
        if self.kind == "dict":
            return f"{'args, ' if holder == 'kwargs' else ''}{{**{holder}, {key!r}: {new}}}"
        before = f"*{holder}[:{key}], " if key else ""
        return f"({before}{new}, *{holder}[{key + 1}:])" if self.kind else new

    def register(self, module: str, hook: str) -> str:
        """Write the call that puts a hook on a module."""
        kind = "forward_hook" if self.holder == "output" else "forward_pre_hook"
        return f"{module}.register_{kind}({hook}{', with_kwargs=True' if self.holder == 'kwargs' else ''})"

    def hook(self, name: str, body: Sequence[str]) -> str:
        """Write a hook as a function."""
        given = "args" if self.holder == "args" else f"args, {self.holder}"
        return f"def {name}(module, {given}):\n" + indent("\n".join(body), "    ")


def index_text(index: Any) -> str:
    """Write an index as in code.

    Example:
        >>> index_text((slice(None), 3, ...))
        'at[:, 3, ...]'

    """
    items: Iterable[Any] = index if isinstance(index, tuple) else (index,)
    return f"at[{', '.join(map(_item_text, items))}]"


def _item_text(item: Any) -> str:
    if isinstance(item, slice):
        ends = ["" if end is None else str(end) for end in (item.start, item.stop)]
        return ":".join([*ends, *([str(item.step)] if item.step is not None else [])])
    if isinstance(item, Tensor):
        return f"tensor{tuple(item.shape)}"
    return "..." if item is Ellipsis else str(item)
