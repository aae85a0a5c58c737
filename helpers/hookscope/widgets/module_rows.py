"""The rows of a picker's layer list, and the warnings of a pass as sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from hookscope.captures.stats import shape_of
from hookscope.widgets.gradient_goal import parts_of
from hookscope.widgets.model_pass import ModelPass

__all__ = ["format_warnings", "list_modules"]


def list_modules(names: Mapping[str, nn.Module], run: ModelPass) -> list[dict[str, Any]]:
    """List all modules with the shapes that their first call returned, or the reason why there is none."""
    rows = []
    for name, module in names.items():
        calls = run.calls_of(name)
        shapes = [shape_of(tensor) for tensor in parts_of(calls[0].output).values()] if calls else []
        rows.append(
            {
                "name": name,
                "type": type(module).__name__,
                "depth": name.count(".") + 1 if name else 0,
                "shape": ", ".join("×".join(map(str, shape)) or "()" for shape in shapes),
                "parameters": sum(parameter.numel() for parameter in module.parameters(recurse=False)),
                "calls": len(calls),
                "maps": any(len(shape) in (4, 5) for shape in shapes),
                "leaf": not module._modules,
                "why": "" if calls else run.why_missing(name),
            }
        )
    return rows


def format_warnings(warned: Sequence[str]) -> list[str]:
    """Turn the warnings of a pass into sentences. The one about fused paths is shortened, and the others are quoted.

    Example:
        >>> format_warnings(["hookscope: hooks switch off the fused path of layer 'encoder'", "mind the gap"])
        ["Layer 'encoder' ran without its fused path, because it has hooks. Its values can differ in the last digits.",
        'The model warned: mind the gap']

    """
    notices = []
    for text in warned:
        if fused := re.findall(r"switch off the fused path of layer ('[^']*')", text):
            more = f" and {len(fused) - 1} more" if len(fused) > 1 else ""
            its, it, has, values = ("their", "they", "have", "Their") if more else ("its", "it", "has", "Its")
            reason = f"ran without {its} fused path, because {it} {has} hooks"
            notices.append(f"Layer {fused[0]}{more} {reason}. {values} values can differ in the last digits.")
        else:
            notices.append(f"The model warned: {text.strip().splitlines()[0]}")
    return notices
