"""Explain an edit with plain torch code that does the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hookscope.explanations.code import COPY, REMOVE, TensorPath, index_text, listed, loss_lines, script
from hookscope.explanations.explain import RUN, Explanation, explain, returns_tensor
from hookscope.interp.edits.edit import Edit

__all__ = ["explain_edit"]

_WAIT = (
    "if output.requires_grad:",
    "    if output.is_leaf or any(output is arg for arg in args):",
    "        output = output.view_as(output)  # has the gradient of this use alone",
    "    handles.append(output.register_hook(change))",
    "return output",
)


@explain.register
def explain_edit(edit: Edit) -> Explanation:
    """Write the code of an edit, see `explain`."""
    if not edit.layer_edits:
        raise ValueError("explain needs an edit that ran. Run the model inside its with block first")
    groups: dict[Any, list[Any]] = {}
    # A gradient is that of what the layer returns after all other edits.
    for each in sorted(edit.layer_edits, key=lambda each: each.spec.to == "grad"):
        own = each.layer if _counts(each.spec) or "kept" in each.spec.operation.options else ""
        groups.setdefault((each.spec.number, each.keys, own), []).append(each)
    lines = _Lines()
    for number, layer_edits in enumerate(groups.values(), 1):
        lines.add(number, layer_edits)
    grads = any(each.spec.to == "grad" for each in edit.layer_edits)
    run = [RUN, *(loss_lines(returns_tensor(edit.modules.model)) if grads else [])]
    code = script(
        "\n".join([*lines.start, "handles = []"]),
        *lines.hooks,
        "\n".join(["try:", *(f"    {line}" for line in [*lines.register, *run]), REMOVE]),
    )
    return Explanation(code, f"{edit.title}: edited, with plain torch", lines.names)


class _Lines:
    """The code of an edit, and the tensors and functions that it needs."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.start: list[str] = []
        self.hooks: list[str] = []
        self.register: list[str] = []

    def add(self, number: int, layer_edits: list[Any]) -> None:
        """Write one hook, for all layers that have the same edit."""
        spec, layers = layer_edits[0].spec, [each.layer for each in layer_edits]
        edit = f"edit {spec.number}"
        if spec.positions is not None:
            raise ValueError(f"explain cannot write code for positions= ({edit}). Use an index, such as at[:, 3]")
        if len(spec.selection.steps) > 1:
            what = f"samples= or heads= with at[...] ({edit})"
            raise ValueError(f"explain cannot write code for {what}. Use one index for both")
        place = TensorPath.of(layers[0], spec.to, layer_edits[0].keys)
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
        """Write the lines that compute `new` from a tensor."""
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
        """Give a name to an object that the code needs."""
        self.names[name] = value
        self.start.append(f"# {name}: {what}")
        return name


def _counts(spec: Any) -> bool:
    """Return whether an edit depends on the number of the call."""
    return spec.calls is not None or (spec.operation.verb == "swap" and len(spec.operation.options.get("kept", ())) > 1)
