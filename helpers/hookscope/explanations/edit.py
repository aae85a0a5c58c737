"""Write the plain torch hooks that edits stand for."""

from __future__ import annotations

import math
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.captures.result import Capture
from hookscope.explanations import inside
from hookscope.explanations.code import REMOVE, called, returns_tensor, run, script, tensors_in

if TYPE_CHECKING:
    from hookscope.edits.edit import Edit
    from hookscope.edits.layer_edit import LayerEdit
    from hookscope.edits.spec import EditSpec

__all__ = ["REPLACED", "back", "of_edit"]

REPLACED = """\
def replaced(value, path, new):
    if not path:
        return new
    key, rest = path[0], path[1:]
    beside = getattr(value, "__dict__", {})  # what a container has beside its items
    if isinstance(value, tuple):
        items = [*value]
        items[key] = replaced(items[key], rest, new)
        try:
            again = tuple.__new__(type(value), items)  # also a named tuple
        except TypeError:  # one of torch.return_types
            again = type(value)(items)
        if beside:
            vars(again).update(beside)
        return again
    # A class that keeps what it holds in a store of its own shares that with its
    # copy: then the original is written to, too. edit copies the store.
    again = copy.copy(value)
    if isinstance(value, (list, Mapping)):
        was, new = value[key], replaced(value[key], rest, new)
        again[key] = new
        if beside is value:  # a dict that is its own attributes
            again.__dict__ = again
        elif beside.get(key) is was:  # an attribute, too
            vars(again)[key] = new
        if hasattr(type(again), "move_to_end"):
            for name in value:  # a copy of a ModelOutput has the order of its fields
                again.move_to_end(name)
        return again
    new = replaced(getattr(value, key), rest, new)
    try:
        setattr(again, key, new)
    except AttributeError:  # a frozen dataclass
        object.__setattr__(again, key, new)
    return again"""

# A fused path would call none of the functions that are edited.
_HELD = "held = {}  # hook -> what was there in the first call"
_SHARED = "  # a copy: others may hold the tensor itself"


class _Names:
    """The objects that the lines need beside model and inputs, by the names that stand for them."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self.said: list[str] = []
        self._written: set[str] = set()

    def give(self, name: str, value: Any, what: str) -> str:
        name = self._free(name)
        self.of[name] = value
        self.said.append(f"# {name}: {what}")
        return name

    def write(self, name: str, expression: str) -> str:
        """Let a name stand for something long."""
        name = self._free(name)
        self._written.add(name)
        short = f"{name} = {expression}"
        self.said += [short] if len(short) <= 88 else [f"{name} = (", indent(fill(expression, 84), "    "), ")"]
        return name

    def _free(self, name: str) -> str:
        while name in self.of or name in self._written:
            name += "_too"
        return name


def of_edit(edit: Edit) -> tuple[str, dict[str, Any]]:
    """Write what edits do, and collect what the lines need: your tensors and functions."""
    names = _Names()
    functions: list[str] = []
    registered: list[str] = []
    grads = any(target.spec.to == "grad" for target in edit.layer_edits)
    # A gradient is that of what the layer returns after all other edits.
    for target in sorted(edit.layer_edits, key=lambda target: target.spec.to == "grad"):
        hook = f"edit_{len(functions) + 1}"
        if target.spec.to in ("heads", "edges"):
            functions.append(_inside(hook, target, names, edit.modules.called(target.layer)))
            lines = [f"    layer = model.get_submodule({target.layer!r})", *inside.registered(hook, target)]
            # What stands for another function edits what that is given: the last one comes first.
            registered = [*lines, *registered] if target.spec.to == "heads" else [*registered, *lines]
            continue
        functions.append(_hook(hook, target, names))
        kind = "forward_pre_hook" if target.spec.to == "input" else "forward_hook"
        options = ", with_kwargs=True" if target.spec.to == "input" and _by_keyword(target) else ""
        registered += [
            f"    layer = model.get_submodule({target.layer!r})",
            f"    handles.append(layer.register_{kind}({hook}{options}))",
        ]
    plain, call = returns_tensor(edit.modules.model), called(edit.modules.model)
    reaching = any(target.spec.to in ("heads", "edges") for target in edit.layer_edits)
    fast, slow, fast_again = inside.SLOW if reaching else ("", "", "")
    code = script(
        "\n".join(
            [
                *names.said,
                *filter(None, [fast]),
                "handles = []",
                "calls = {}  # hook and layer -> how often the layer was called",
                _HELD,
            ]
        ),
        REPLACED if any("replaced(" in text for text in functions) else "",
        tensors_in(False) if grads and not plain else "",
        inside.INSIDE if reaching else "",
        *functions,
        "\n".join(["try:", *filter(None, [slow]), *registered, run(plain, grads, call=call), REMOVE, fast_again]),
    )
    if "held[" not in code:
        code = code.replace(f"{_HELD}\n", "")
    if "calls[" not in code:
        code = code.replace("calls = {}  # hook and layer -> how often the layer was called\n", "")
    return code, names.of


def _by_keyword(target: LayerEdit) -> bool:
    return bool(target.keys) and isinstance(target.keys[0][1], str)


def _inside(hook: str, target: LayerEdit, names: _Names, layer: nn.Module | None) -> str:
    """Write what stands for a function inside the call of a layer."""
    if target.spec.to == "heads":
        start = _start(hook, target, inside.UNCHANGED)
        flipped = target.held.get("flipped", False)
        return inside.head_lines(hook, flipped, start, _new(target.spec, hook, target, names))
    _must_be_found(target, layer)
    rows = target.spec.operation.options["edges"].rows
    return inside.cut_lines(
        hook, target, _start(hook, target, "return out"), ":" if rows is None else _index(rows, hook, names)
    )


def _must_be_found(target: LayerEdit, layer: nn.Module | None) -> None:
    """Refuse a layer that would not notice that torch.nn.functional has another function for a while."""
    for module in layer.modules() if layer is not None else ():
        known = getattr(type(module).forward, "__globals__", {})
        if named := [name for name, value in known.items() if value is F.scaled_dot_product_attention]:
            raise ValueError(
                f"layer {target.layer!r}: {type(module).__name__} has imported scaled_dot_product_attention by name, "
                f"as {named[0]!r}, so lines that replace torch's do not reach it; write "
                "F.scaled_dot_product_attention in its forward to have it explained"
            )


def _start(hook: str, target: LayerEdit, unchanged: str) -> list[str]:
    """Write the lines that say which call this is, and leave those as they are that are not meant."""
    rule, body = target.spec, []
    if rule.calls is not None or rule.operation.numbered or rule.positions is not None or rule.to == "edges":
        key = f'"{hook}", module'
        body += [f"calls[{key}] = number = calls.get(({key}), 0) + 1"]
    if rule.calls is not None:
        numbers = ", ".join(map(str, sorted(rule.calls)))
        body += [f"if number not in {{{numbers}}}:", f"    {unchanged}  # this call stays as it is"]
    if rule.positions is not None:
        here = {
            number: [place - target.tokens[number].start for place in places]
            for number, places in sorted((target.places | target.taken).items())
        }
        body += ["# call -> which of its tokens", f"places = {here!r}.get(number)"]
        body += ["if places is None:", f"    {unchanged}"]
    return body


def _hook(hook: str, target: LayerEdit, names: _Names) -> str:
    rule, keys = target.spec, target.keys
    to_input = rule.to == "input"
    if to_input:  # one mapping of positions and keywords for edits, two for a hook
        first = keys[0][1] if keys else 0
        keys = (("tuple" if isinstance(first, int) else "dict", first), *keys[1:])
    given = "args, kwargs" if to_input and _by_keyword(target) else "args" if to_input else "args, output"
    holder = ("kwargs" if _by_keyword(target) else "args") if to_input else "output"
    body = _start(hook, target, "return None")
    if to_input and len(keys) > 1:
        body += [
            "# The layer is given a copy of what holds the tensor. What it writes into",
            "# that copy is lost here; edit hands it on.",
        ]
    tensor = holder + "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in keys)
    if rule.to == "grad":
        body += [f"tensor = {tensor}"]
        if target.aliased:
            body += ["tensor = tensor.view_as(tensor)  # an alias has the gradient of this use alone"]
        body += [
            "",
            "def hook(tensor):",
            *(f"    {line}" for line in _new(rule, hook, target, names)),
            "    return new",
        ]
        body += ["", "if tensor.requires_grad:", "    handles.append(tensor.register_hook(hook))"]
        body += [f"return {back(holder, keys, 'tensor', False)}"] if target.aliased else []
    else:
        body += [f"tensor = {tensor}", *_new(rule, hook, target, names)]
        body += [f"return {back(holder, keys, 'new', to_input)}"]
    return "\n".join([f"def {hook}(module, {given}):", indent("\n".join(body), "    ")])


def back(holder: str, keys: tuple[tuple[str, Any], ...], new: str, to_input: bool) -> str:
    """Write what a hook returns: a tensor, or the structure that it came from, built again."""
    if not keys:
        return new
    kind, key = keys[0]
    if len(keys) == 1 and kind == "tuple" and key >= 0:
        before = f"*{holder}[:{key}], " if key else ""
        return f"({before}{new}, *{holder}[{key + 1}:])"
    whole = (
        f"{{**{holder}, {key!r}: {new}}}"
        if len(keys) == 1 and kind == "dict"
        else f"replaced({holder}, [{', '.join(repr(key) for _, key in keys)}], {new})"
    )
    return f"args, {whole}" if to_input and holder == "kwargs" else whole


def _new(rule: EditSpec, hook: str, target: LayerEdit, names: _Names) -> list[str]:
    """Write the lines that make `new` of `tensor`."""
    steps = [_index(step, hook, names) for step in rule.selection.steps]
    if rule.positions is not None:
        steps.insert(int(rule.selection.by_row), ":, places")
    before, expression = _expression(rule, hook, target, names, "".join(f"[{step}]" for step in steps))
    if not steps and rule.operation.verb == "set":
        number = not isinstance(rule.operation.value, Tensor)
        whole = f"torch.full_like(tensor, {expression})" if number else f"{expression}.expand(tensor.shape).clone()"
        return [*before, f"new = {whole}"]
    if not steps and rule.operation.verb in ("swap", "mean", "freeze"):
        return [*before, f"new = {expression}.clone()"]
    if not steps:
        part = f"tensor.clone(){_SHARED}" if rule.operation.verb == "map" else "tensor"
        return [*before, f"part = {part}", f"new = {expression}"]
    if len(steps) == 1:
        cut = f"tensor[{steps[0]}]" + (".clone()" if rule.operation.verb == "map" else "")
        return [*before, f"new = tensor.clone(){_SHARED}", *_set("new", steps[0], cut, expression)]
    inner = ["new", *(f"inner_{number}" if number else "inner" for number in range(len(steps) - 1))]
    lines = [*before, f"new = tensor.clone(){_SHARED}"]
    lines += [f"{b} = {a}[{step}].clone()" for a, b, step in zip(inner, inner[1:], steps, strict=False)]
    lines += _set(inner[-1], steps[-1], f"{inner[-1]}[{steps[-1]}].clone()", expression)
    return lines + [f"{a}[{step}] = {b}" for a, b, step in reversed([*zip(inner, inner[1:], steps, strict=False)])]


def _set(name: str, step: str, cut: str, expression: str) -> list[str]:
    return [*([f"part = {cut}"] if "part" in expression else []), f"{name}[{step}] = {expression}"]


def _expression(rule: EditSpec, hook: str, target: LayerEdit, names: _Names, cut: str) -> tuple[list[str], str]:
    """Write the new values of `part`, and lines that come before."""
    verb, value, before = rule.operation.verb, rule.operation.value, []
    if verb == "freeze" and value is None:
        first = [f"if {hook!r} not in held:", f"    held[{hook!r}] = tensor{cut}.detach().clone()", "    return None"]
        return first, f"held[{hook!r}]"
    if verb in ("swap", "mean", "freeze") and isinstance(value, Capture):
        kept = rule.operation.options["kept"]
        name = names.give(f"kept_{hook}", kept, f"what the other run had there, {len(kept)} tensors, one for each call")
        to = _cast(kept, target)
        if verb == "freeze" and len(kept) == 1:
            return [], f"{name}[0]{cut}{to}"
        if verb in ("swap", "freeze"):
            return [], f"{name}[number - 1]{cut}{to}"
        return [f"mean = torch.cat({name}).mean(0, keepdim=True).expand_as(tensor)"], f"mean{cut}{to}"
    if verb == "mean":
        return ["mean = tensor.mean(0, keepdim=True).expand_as(tensor)"], f"mean{cut}"
    if verb == "map":
        return [], f"{_function(value, hook, names)}(part)"
    if verb == "noise":
        seed = rule.operation.options["seed"]
        before = [
            f"own = np.random.default_rng([{seed}, number])  # the same for the same call",
            "noise = own.standard_normal(part.shape, np.float32)",
        ]
        name = f"noise_{hook}"
        body = [*before, "return torch.from_numpy(noise).to(part)"]
        return [f"def {name}(part):", *(f"    {line}" for line in body), ""], f"part + {value!r} * {name}(part)"
    shown = _value(value, hook, names)
    if verb == "project_out":
        unit = f"{shown} / {shown}.norm()"
        unit = f"({unit}){to}" if (to := _cast([value], target)) else unit
        return [f"unit = {unit}"], "part - (part * unit).sum(-1, keepdim=True).to(part.dtype) * unit"
    shown += _cast([value], target)
    if verb == "mask":
        instead = rule.operation.options["other"]
        other = _value(instead, hook, names) + _cast([instead], target)
        if value.dtype is torch.bool:
            return [], f"torch.where({shown}, part, {other})"
        before = [f"keep, other = {shown}, {other}"]
        if isinstance(instead, Tensor) or not math.isfinite(instead):
            if not isinstance(instead, Tensor):
                before = [f"keep = {shown}", f"other = torch.full_like(keep, {other})"]
            before.append("other = torch.where((keep == 1) & ~other.isfinite(), 0, other)")
        return [
            "# What is left out must not count: 0 times infinity is no number.",
            *before,
            "def mixed(part):",
            "    part = torch.where((keep == 0) & ~part.isfinite(), 0, part)",
            "    return part * keep + (1 - keep) * other",
            "",
        ], "mixed(part)"
    if verb == "swap":
        return [], f"{shown}{cut}"
    return [], {"set": shown, "add": f"part + {shown}", "scale": f"part * {shown}"}[verb]


def _function(function: Any, hook: str, names: _Names) -> str:
    name = getattr(function, "__name__", "")
    if getattr(torch, name, None) is function:
        return f"torch.{name}"
    return names.give(f"function_{hook}", function, "your function")


def _value(value: Any, hook: str, names: _Names) -> str:
    if isinstance(value, Tensor):
        return names.give(f"value_{hook}", value, f"your tensor of shape {tuple(value.shape)}")
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _cast(values: list[Any], target: LayerEdit) -> str:
    """Write what brings values to the dtype of the tensor that was edited, where they have another; a mask has."""
    given = {value.dtype for value in values if isinstance(value, Tensor)} - {torch.bool}
    return ".to(tensor.dtype)" if target.dtype is not None and given - {target.dtype} else ""


def _index(step: Any, hook: str, names: _Names) -> str:
    """Write an index as it stands between brackets."""
    if isinstance(step, tuple):
        return ", ".join(_index(item, hook, names) for item in step) or "()"
    if isinstance(step, slice):
        ends = ["" if end is None else str(end) for end in (step.start, step.stop)]
        return ":".join([*ends, *([str(step.step)] if step.step is not None else [])])
    if isinstance(step, Tensor):
        return names.give(f"index_{hook}", step, "your index")
    if isinstance(step, list) and len(repr(step)) > 40:
        return names.write(f"index_{hook}", _runs(step) or repr(step))
    return "..." if step is Ellipsis else repr(step)


def _runs(numbers: list[Any]) -> str:
    """Write numbers that are runs of one length, as the columns of some heads are; "" if they are not."""
    if not all(isinstance(number, int) for number in numbers):
        return ""
    length = next((count for count, number in enumerate(numbers) if number != numbers[0] + count), len(numbers))
    firsts = numbers[::length]
    if length < 2 or numbers != [first + place for first in firsts for place in range(length)]:
        return ""
    return f"[first + i for first in {firsts} for i in range({length})]"
