"""Write plain torch code for one cell of a sweep."""

from __future__ import annotations

from hookscope.explanations.code import COPY, TensorPath, index_text, script
from hookscope.interp.sweeps import Cell

__all__ = ["write_patch_code"]


def write_patch_code(cell: Cell) -> str:
    """Write code that runs the model with the edit of one cell.

    Raises:
        ValueError: plain code cannot reproduce the cell; the message says why, and what to do.

    """
    made, row, others = cell.made, cell.row, cell.made.inputs
    if made.writes or made.state is not None:
        raise ValueError(
            "plain code cannot reproduce this cell, because a pass draws random numbers or changes the model, as in "
            "training mode. Call model.eval(), and sweep again"
        )
    place, index, call = TensorPath.of(row.layer, row.to, row.way), index_text(cell.index)[3:-1], row.call
    old = place.tensor if others is None else f"kept[{(call or 1) - 1}]"
    new = {"zero": "0", "run": f"{old}[{index}]", "mean": f"{old}.mean(0, keepdim=True).expand_as(new)[{index}]"}
    skip = [f"if next(calls) != {call}:", "    return None  # another call of this layer"]
    change = [f"new = {place.tensor}.clone(){COPY}", f"new[{index}] = {new[made.source]}"]
    run = (
        "def run(hook, *args, **kwargs):\n"
        f"    handle = {place.register(f'model.get_submodule({row.layer!r})', 'hook')}\n"
        "    try:\n"
        "        with torch.no_grad():\n"
        "            return model(*args, **kwargs)\n"
        "    finally:\n"
        "        handle.remove()  # otherwise the hook fires in every later pass"
    )
    start = [
        "# source: your other inputs, from which the patch comes",
        "kept = []  # the values of the layer for source",
    ]
    start = [*(start if others is not None else []), *(["calls = itertools.count(1)"] if call is not None else [])]
    keep = [] if others is None else [f"run(keep, {made.source_written})"]
    return script(
        "\n".join(start),
        place.hook("keep", [f"kept.append({place.tensor}.clone())"]) if keep else "",
        place.hook("patch", [*(skip if call is not None else []), *change, f"return {place.back('new')}"]),
        run,
        "\n".join([*keep, f"output = run(patch, {made.given.written()})"]),
    )
