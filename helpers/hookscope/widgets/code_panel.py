"""Show plain torch lines in a widget: those that keep one output, and those that patch one cell of a sweep."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets

from hookscope.edits.selection import index_text
from hookscope.explanations.code import COPY, Place, capture_code, script
from hookscope.sweeps import Cell
from hookscope.widgets.base import HookWidget

__all__ = ["CodeWidget", "output_code", "patch_code", "written"]


class CodeWidget(HookWidget):
    """A widget with a panel "Show the PyTorch code"; `codePanel` in common.js draws it."""

    code = traitlets.Unicode(help="the plain torch lines for what is chosen").tag(sync=True)


def written(write: Callable[[], str]) -> str:
    """Return the lines; where there are none that say it, why, as a comment."""
    try:
        return write()
    except ValueError as error:
        return textwrap.fill(str(error), 88, initial_indent="# ", subsequent_indent="# ")


def output_code(layer: str, pick: str, end: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Write the lines that keep one tensor of what a layer returns, as the picker has run the model.

    Args:
        layer: its name.
        pick: a line that takes the tensor out of `output`; "" if that is the tensor.
        end: a line that reads from `outputs`.
        args: what the model is called with.
        kwargs: likewise.

    """
    given = ["x"] if len(args) == 1 else ["*inputs"] if args else []
    given += ["**kwargs"] if kwargs else []
    run = ["model.eval()  # as in the picker; model.train() goes back", "with torch.no_grad():"]
    return capture_code([layer], [*run, f"    model({', '.join(given)})"], pick=pick) + f"{end}\n"


def patch_code(cell: Cell) -> str:
    """Write the lines that run the model with the change of one cell of a sweep.

    Raises:
        ValueError: plain lines cannot say this; names what, and what to do.

    """
    made, row, others = cell.made, cell.row, cell.made.inputs
    if made.writes or made.state is not None:
        raise ValueError(
            "no lines give the same here, since a pass draws random numbers or changes the model, as in training "
            "mode: call model.eval(), and sweep again"
        )
    place, index, call = Place.of(row.layer, row.to, row.way), index_text(cell.index)[3:-1], row.call
    old = place.tensor if others is None else f"kept[{(call or 1) - 1}]"
    new = {"zero": "0", "run": f"{old}[{index}]", "mean": f"{old}.mean(0, keepdim=True).expand_as(new)[{index}]"}
    skip = [f"if next(calls) != {call}:", "    return None  # another call of the same layer"]
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
    start = ["# source: your other inputs, which the patch comes from", "kept = []  # what the layer had there"]
    start = [*(start if others is not None else []), *(["calls = itertools.count(1)"] if call is not None else [])]
    keep = [] if others is None else [f"run(keep, {'**' if others.kwargs else '*'}source)"]
    return script(
        "\n".join(start),
        place.hook("keep", [f"kept.append({place.tensor}.clone())"]) if keep else "",
        place.hook("patch", [*(skip if call is not None else []), *change, f"return {place.back('new')}"]),
        run,
        "\n".join([*keep, f"output = run(patch, {'**' if made.by_keyword else '*'}inputs)"]),
    )
