"""Explain a capture or an edit by the plain torch lines that do the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture, NotCapturedError
from hookscope.edits import Edit
from hookscope.edits.selection import index_text
from hookscope.explanations.code import COPY, REMOVE, Place, capture_code, listed, loss_lines, script
from hookscope.pictures.words import html_of, visible

__all__ = ["Explanation", "explain"]

_VERBS = ("add", "map", "mean", "scale", "set", "swap")
_RUN = "result = model(*inputs)  # for keyword arguments: model(**inputs)"

_WAIT = (
    "if output.requires_grad:",
    "    if output.is_leaf or any(output is arg for arg in args):",
    "        output = output.view_as(output)  # has the gradient of this use alone",
    "    handles.append(output.register_hook(change))",
    "return output",
)


class Explanation:
    """Python source that does with plain torch what a capture or an edit does; made by `explain`.

    Attributes:
        code: the source. It takes `model` and `inputs`, what it is called with, and runs one pass.
        title: what it does, in a few words.
        names: what else the source takes, by name: the tensors and functions of an edit.

    """

    def __init__(self, code: str, title: str, names: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.title = title
        self.names = dict(names or {})

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return visible(self.code.rstrip("\n"))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        html = (
            f"<figure>\n<figcaption>{html_of(self.title)}</figcaption>\n"
            f'<pre tabindex="0"><code>{html_of(self.code)}</code></pre>\n</figure>'
        )
        return {"text/plain": repr(self), "text/html": html}


def explain(obj: Capture | Edit) -> Explanation:
    """Write the plain torch lines that do what a capture or an edit does.

    The lines need `model` and `inputs`, a tuple of positional arguments. They register hooks, run one pass, and take
    the hooks off. A capture leaves `outputs`, `grads` and `received` in variables, with plain tuples, lists and dicts;
    an edit leaves `result`. The loss is the sum of what the model returns: put your own in its place.

    What these lines cannot say is an error: statistics, for example, or positions under a cache.

    Args:
        obj: what `capture` returned, before or after its pass; or what `edit` returned, after its pass.

    Returns:
        An `Explanation`; a notebook shows its code. The tensors and functions of an edit are in its `names`.

    Raises:
        TypeError: `obj` is not a capture or an edit, or it is a copy without its model.
        ValueError: plain lines cannot say this; names what, and what to do.

    Example:
        >>> from hookscope import capture
        >>> explain(capture(nn.Linear(2, 1)))
        layers = {model.get_submodule(name): name for name in ['']}
        outputs = {}  # layer name -> what it returned, in the order in which calls end
        handles = []
        <BLANKLINE>
        <BLANKLINE>
        def keep_output(module, args, output):
            name = layers[module]
            # Detached, it keeps no graph alive; copied, nothing in place can overwrite it.
            outputs.setdefault(name, []).append(output.detach().clone())
        <BLANKLINE>
        <BLANKLINE>
        try:
            for layer in layers:
                handles.append(layer.register_forward_hook(keep_output))
            result = model(*inputs)  # for keyword arguments: model(**inputs)
        finally:
            for handle in handles:
                handle.remove()  # otherwise your hooks fire in every later pass

    """
    if isinstance(obj, Capture):
        return Explanation(_capture(obj), f"{obj.title}: what flowed through its layers, with plain torch")
    if isinstance(obj, Edit):
        return _edit(obj)
    raise TypeError(
        f"explain writes the lines of a capture or an edit, and not of a {type(obj).__name__}: give it what "
        "hookscope.capture(...) or hookscope.edit(...) returned"
    )


def _capture(seen: Capture) -> str:
    if not hasattr(seen, "modules"):
        raise TypeError("this capture is a copy without its model; explain the capture that it was made from")
    wanted = seen._wanted
    given = {option: getattr(wanted.form, option, None) is not None for option in ("sample", "dtype", "device")}
    given |= {"copy": not getattr(wanted.form, "copy", True), "stats": wanted.stats_only, "stop": bool(wanted.stop)}
    for option, there in given.items():
        if there:
            raise ValueError(f"explain cannot write {option}= of capture: leave it out, and explain that capture")
    if late := [*seen._record.arrived]:
        raise ValueError(f"explain cannot write layer {late[0]!r}, which the model made or replaced while it ran")
    layers = {name: seen.modules.called(name) for name in [*seen, *seen.uncalled]}
    plain = _returned_tensors(seen) if seen.calls else all(map(_returns_tensor, layers.values()))
    run = [_RUN, *(loss_lines(_returns_tensor(seen.modules.model)) if wanted.gradients else [])]
    return capture_code([*layers], run, plain=plain, gradients=wanted.gradients, inputs=wanted.inputs)


def _returned_tensors(seen: Capture) -> bool:
    """Whether each layer returned one tensor; refuse what cannot be written."""
    plain = True
    for call in seen.calls:
        try:
            output = call.output
            given = (call.args, call.kwargs) if seen._wanted.inputs else None
        except NotCapturedError as error:
            raise ValueError(f"explain cannot write this capture: {error}; capture another pass") from error
        if kind := _unknown(output) or _unknown(given):
            raise ValueError(
                f"explain cannot write call {call.label}, since a {kind} went in or out: capture layers that have "
                "tensors there, or tuples, lists and dicts of them"
            )
        plain = plain and isinstance(output, Tensor)
    return plain


def _unknown(value: Any, depth: int = 0) -> str:
    """Name the first class in a value that the lines do not follow; "" if there is none."""
    if value is None or isinstance(value, (Tensor, int, float, str)):
        return ""
    if not isinstance(value, (Mapping, tuple, list)) or depth > 20:
        return type(value).__name__
    items = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_unknown(item, depth + 1) for item in items)), "")


_SURE = ("linear", "conv", "activation", "batchnorm", "instancenorm", "normalization", "dropout", "flatten")


def _returns_tensor(module: nn.Module | None) -> bool:
    """Whether a module is of a type of torch's that always returns one tensor."""
    while type(module) is nn.Sequential and len(module):
        module = module[-1]
    sure = type(module).__module__ in {f"torch.nn.modules.{name}" for name in _SURE}
    return sure and not isinstance(module, (nn.Identity, nn.MultiheadAttention))


def _edit(edit: Edit) -> Explanation:
    if not edit.layer_edits:
        raise ValueError("explain cannot write an edit that never ran: run the model inside its with-block first")
    groups: dict[Any, list[Any]] = {}
    # A gradient is that of what the layer returns after all other edits.
    for each in sorted(edit.layer_edits, key=lambda each: each.spec.to == "grad"):
        own = each.layer if _counts(each.spec) or "kept" in each.spec.operation.options else ""
        groups.setdefault((each.spec.number, each.keys, own), []).append(each)
    lines = _Lines()
    for number, layer_edits in enumerate(groups.values(), 1):
        lines.add(number, layer_edits)
    grads = any(each.spec.to == "grad" for each in edit.layer_edits)
    run = [_RUN, *(loss_lines(_returns_tensor(edit.modules.model)) if grads else [])]
    code = script(
        "\n".join([*lines.start, "handles = []"]),
        *lines.hooks,
        "\n".join(["try:", *(f"    {line}" for line in [*lines.register, *run]), REMOVE]),
    )
    return Explanation(code, f"{edit.title}: edited, with plain torch", lines.names)


class _Lines:
    """The lines of an edit, and the tensors and functions that they need."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.start: list[str] = []
        self.hooks: list[str] = []
        self.register: list[str] = []

    def add(self, number: int, layer_edits: list[Any]) -> None:
        """Write one hook, for all layers that have the same edit."""
        spec, layers = layer_edits[0].spec, [each.layer for each in layer_edits]
        edit = f"edit {spec.number}"
        if spec.operation.verb not in _VERBS:
            raise ValueError(f"explain cannot write {spec.operation.verb} ({edit}): write a function, and use map")
        if spec.positions is not None:
            raise ValueError(f"explain cannot write positions= ({edit}): write an index, such as at[:, 3]")
        if len(spec.selection.steps) > 1:
            raise ValueError(f"explain cannot write rows= or heads= with at[...] ({edit}): write one index for both")
        place = Place.of(layers[0], spec.to, layer_edits[0].keys)
        body = []
        if _counts(spec):
            self.start.append(f"calls_{number} = itertools.count(1)  # numbers the calls of layer {layers[0]!r}")
            body = [f"call = next(calls_{number})"]
        if spec.calls is not None:
            body += [f"if call not in {set(spec.calls)}:", "    return None"]
        change = self._change(number, spec, "grad" if spec.to == "grad" else place.tensor)
        if spec.to == "grad":
            body += ["", "def change(grad):", *(f"    {line}" for line in [*change, "return new"]), "", *_WAIT]
        else:
            body += [*change, f"return {place.back('new')}"]
        self.hooks.append(place.hook(f"edit_{number}", body))
        several = len(layers) > 1
        self.register += f"for name in {listed(layers)}:".split("\n") if several else []
        on = place.register(f"model.get_submodule({'name' if several else repr(layers[0])})", f"edit_{number}")
        self.register.append(f"{'    ' * several}handles.append({on})")

    def _change(self, number: int, spec: Any, tensor: str) -> list[str]:
        """Write the lines that make `new` of a tensor."""
        if not spec.selection.steps:
            return [f"new = {self._values(number, spec, tensor, '')}"]
        index = index_text(spec.selection.steps[0])[3:-1] or "()"
        if "tensor(" in index or len(index) > 60:
            index = self._give(f"index_{number}", spec.selection.steps[0], "your index")
        values = self._values(number, spec, tensor, f"[{index}]")
        return [f"new = {tensor}.clone(){COPY}", f"new[{index}] = {values}"]

    def _values(self, number: int, spec: Any, tensor: str, index: str) -> str:
        """Write the new values."""
        verb, value, part = spec.operation.verb, spec.operation.value, f"{tensor}{index}"
        kept = spec.operation.options.get("kept")
        if verb == "map":
            return f"{self._give(f'function_{number}', value, 'your function')}({part}.clone())"
        if verb == "mean" and kept is None:
            return f"{tensor}.mean(0, keepdim=True).expand_as({tensor}){index}.clone()"
        if verb == "mean":
            mean = self._give(f"mean_{number}", torch.cat(kept).mean(0, keepdim=True), "the mean of the other run")
            return f"{mean}.expand_as({tensor}){index}.to({tensor}, copy=True)"
        if verb == "swap":
            what = "your tensor" if kept is None else "what the other run had there, by call"
            other = self._give(f"other_{number}", value if kept is None else kept, what)
            call = "" if kept is None else "[call - 1]" if _counts(spec) else "[0]"
            return f"{other}{call}{index}.to({tensor}, copy=True)"
        if isinstance(value, Tensor):
            shown = f"{self._give(f'value_{number}', value, 'your tensor')}.to({tensor})"
        else:
            shown = repr(value) if isinstance(value, complex) or math.isfinite(value) else f'float("{value}")'
        if verb == "set" and not index:
            whole = isinstance(value, Tensor)
            return f"{shown}.expand({tensor}.shape).clone()" if whole else f"torch.full_like({tensor}, {shown})"
        return {"add": f"{part} + {shown}", "scale": f"{part} * {shown}", "set": shown}[verb]

    def _give(self, name: str, value: Any, what: str) -> str:
        """Let a name stand for an object that the lines need."""
        self.names[name] = value
        self.start.append(f"# {name}: {what}")
        return name


def _counts(spec: Any) -> bool:
    """Whether an edit depends on which call of the layer this is."""
    return spec.calls is not None or (spec.operation.verb == "swap" and len(spec.operation.options.get("kept", ())) > 1)
