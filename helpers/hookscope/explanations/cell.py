"""Write the plain hook that one cell of a sweep stands for, with the passes around it."""

from __future__ import annotations

from textwrap import indent
from typing import Any

from hookscope.edits.selection import index_text
from hookscope.explanations.code import REMOVE, script
from hookscope.explanations.edit import REPLACED, back
from hookscope.explanations.inside import INSIDE, SLOW, UNCHANGED, head_lines
from hookscope.sweeps.cell import Cell

__all__ = ["of_cell"]


def of_cell(cell: Cell) -> tuple[str, dict[str, Any]]:
    """Write the lines, and collect what they need beside model and inputs: metric, and source."""
    made, row = cell.made, cell.row
    names: dict[str, Any] = {"metric": made.metric}
    said = ["# metric: your function of what the model returns"]
    if made.inputs is not None:
        names["source"] = made.inputs.kwargs or made.inputs.args
        said.append("# source: your other inputs, which the patch comes from")
    if made.state is not None:
        names["random_state"] = made.state
        said.append("# random_state: torch.get_rng_state(), as it was in the sweep")
    if made.source != "zero":
        said.append("kept = []  # what the layer had there")
    if row.call is not None:
        said.append("calls = []")
    inside = row.to == "heads"
    holder, tensor, keys = ("", "tensor", ()) if inside else _place(cell)
    index = index_text(cell.index)[3:-1]
    new = {"zero": "0", "run": f"kept[0][{index}]", "mean": f"mean[{index}]"}[made.source]
    body = [
        f"new = {tensor}.clone()  # a copy: others may hold the tensor itself",
        *(["mean = kept[0].mean(0, keepdim=True).expand_as(new)"] if made.source == "mean" else []),
        f"new[{index}] = {new}",
    ]
    looking = [f"kept.append({tensor}.clone())"]
    if inside:
        patch, keep = _head("patch", cell, body), _head("keep", cell, [*looking, UNCHANGED])
    else:
        patch = _function("patch", cell, holder, [*body, f"return {back(holder, keys, 'new', row.to == 'input')}"])
        keep = _function("keep", cell, holder, looking)
    parts = [
        "\n".join(said),
        REPLACED if "replaced(" in patch else "",
        INSIDE if inside else "",
        "" if made.source == "zero" else keep,
        patch,
        _run(cell, holder),
    ]
    first = "source" if made.inputs is not None else "inputs"
    passes = [
        *([f"run({first}, keep)"] if made.source != "zero" else []),
        "before, after = run(inputs), run(inputs, patch)",
        "baseline, value = float(metric(before)), float(metric(after))",
    ]
    return script(*parts, chr(10).join(passes)), names


def _place(cell: Cell) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
    """Return what a hook gets that has the tensor, how to get to it, and the way there as a hook has it."""
    row, keys, holder = cell.row, cell.row.way, "output"
    if row.to == "input":  # one mapping of positions and keywords for sweeps, two for a hook
        by_keyword = isinstance(keys[0][1], str)
        keys = (("dict" if by_keyword else "tuple", keys[0][1]), *keys[1:])
        holder = "kwargs" if by_keyword else "args"
    return holder, holder + "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in keys), keys


def _called(cell: Cell, unchanged: str) -> list[str]:
    """Write the lines that leave other calls as they are."""
    call, why = cell.row.call, "  # another call of the same layer"
    return [] if call is None else ["calls.append(module)", f"if len(calls) != {call}:", f"    {unchanged}{why}"]


def _head(name: str, cell: Cell, body: list[str]) -> str:
    """Write what stands for torch's `linear` inside of an `nn.MultiheadAttention`."""
    return head_lines(name, cell.row.flipped, _called(cell, UNCHANGED), body)


def _function(name: str, cell: Cell, holder: str, body: list[str]) -> str:
    """Write a hook that does something in the call that is meant."""
    body = [*_called(cell, "return None"), *body]
    given = {"output": "args, output", "args": "args", "kwargs": "args, kwargs"}[holder]
    return "\n".join([f"def {name}(module, {given}):", indent("\n".join(body), "    ")])


def _run(cell: Cell, holder: str) -> str:
    """Write the function that runs the model once, with a hook or without."""
    made, row = cell.made, cell.row
    model = "network" if made.writes else "model"
    call = f"{model}({'**' if made.by_keyword else '*'}given)"
    if made.inputs is not None and bool(made.inputs.kwargs) != made.by_keyword:
        call = f"{model}(**given) if isinstance(given, dict) else {model}(*given)"
    kind = "forward_pre_hook" if row.to == "input" else "forward_hook"
    options = ", with_kwargs=True" if holder == "kwargs" else ""
    random, inside = made.state is not None, row.to == "heads"
    put_on = f"handles.append(layer.register_{kind}(hook{options}))"
    if inside:
        put_on = 'handles += inside(layer, "linear", hook)'
    fast, slow, fast_again = [[indent(line, "    ")] if inside else [] for line in SLOW]
    return "\n".join(
        [
            "def run(given, hook=None):",
            *(
                ["    network = copy.deepcopy(model)  # a pass changes its buffers, or attributes"]
                if made.writes
                else []
            ),
            *(["    calls.clear()"] if row.call is not None else []),
            "    handles = []",
            *fast,
            "    try:",
            *slow,
            "        if hook is not None:",
            f"            layer = {model}.get_submodule({row.layer!r})",
            f"            {put_on}",
            "        given = copy.deepcopy(given)  # a model may write to it",
            f"        with torch.no_grad(){', torch.random.fork_rng()' if random else ''}:",
            *(["            torch.set_rng_state(random_state)"] if random else []),
            f"            return {call}",
            indent(REMOVE, "    "),
            *fast_again,
        ]
    )
