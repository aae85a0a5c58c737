"""Show in a widget the plain torch lines that keep one output."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets

from hookscope.explanations.code import capture_code
from hookscope.widgets.base import HookWidget

__all__ = ["CodeWidget", "write_or_explain", "write_output_code"]


class CodeWidget(HookWidget):
    """A widget with a panel "Show the PyTorch code"; `codePanel` in common.js draws it."""

    code = traitlets.Unicode(help="the plain torch lines for what is chosen").tag(sync=True)


def write_or_explain(write: Callable[[], str]) -> str:
    """Return the lines; where there are none that say it, why, as a comment."""
    try:
        return write()
    except ValueError as error:
        return textwrap.fill(str(error), 88, initial_indent="# ", subsequent_indent="# ")


def write_output_code(layer: str, pick: str, end: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
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
