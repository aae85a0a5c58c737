"""A panel that shows plain torch code for the values that a widget displays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import traitlets

from hookscope.explanations.code import capture_code
from hookscope.widgets.base import HookWidget

__all__ = ["CodeWidget", "write_output_code"]


class CodeWidget(HookWidget):
    """A widget with a panel "Show the PyTorch code", which `codePanel` in common.js draws."""

    code = traitlets.Unicode(help="plain torch code for the current choice").tag(sync=True)


def write_output_code(layer: str, pick: str, end: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Write code that captures one output tensor of a layer, in `eval()` and without gradients.

    Args:
        layer: the name of the layer.
        pick: a line that takes the tensor out of `output`; "" if `output` is the tensor.
        end: a line that reads the result from `outputs`.
        args: the positional arguments of the model.
        kwargs: the keyword arguments of the model.

    """
    given = ["x"] if len(args) == 1 else ["*inputs"] if args else []
    given += ["**kwargs"] if kwargs else []
    run = ["model.eval()  # as the picker does; model.train() switches back", "with torch.no_grad():"]
    return capture_code([layer], [*run, f"    model({', '.join(given)})"], pick=pick) + f"{end}\n"
