"""One memory behind several names: in-place steps change the outputs that a hook keeps, and `clone()` prevents it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import Tensor

from hookscope.pictures.colors import CHANGED, CHANGED_SOFT, DOOR, INK, LINE
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import Sheet

__all__ = ["SharedMemory"]

KEEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "output.detach()": lambda output: output.detach(),
    "output.detach().clone()": lambda output: output.detach().clone(),
}
STEPS: tuple[tuple[str, str, str], ...] = (  # the line, the variable that it sets, and the layer whose hook runs
    ("x = stem(x)", "x", "stem"),
    ("x = relu(x)", "x", "relu"),
    ("step = mix(x)", "step", "mix"),
    ("x += step", "x", ""),
    ("y = head(x)", "y", "head"),
)
_NAMES = ("x", "kept: stem", "kept: relu", "step", "kept: mix", "y", "kept: head")
_WIDTH, _ROW, _TOP, _NAME, _MEMORY, _BOX = 560, 46, 30, (100, 150), 420, (150, 36)


class SharedMemory(LazyFigure):
    """Step through a pass, and see the memory behind each name.

    The pass is that of the network `Skip` in chapter 11, with weights of 2 and the inputs -1 and 1.

    Attributes:
        step: how many lines of `forward` have run, 0 to 5.
        keeps: the expression that each hook keeps.

    Example:
        >>> figure = SharedMemory()
        >>> figure.step = 2
        >>> figure.said
        'x = relu(x) writes 0, 2 into the memory of x, kept: stem and kept: relu.'

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("step", "keeps")

    step: Any = traitlets.Int(1).tag(sync=True)
    keeps: Any = traitlets.Unicode("output.detach()").tag(sync=True)
    _passes: Any = traitlets.Dict().tag(sync=True)
    _layout: Any = traitlets.Dict().tag(sync=True)

    def __init__(self) -> None:
        height = _TOP + _ROW * len(_NAMES)
        rows = {name: _TOP + _ROW * (at + 0.5) for at, name in enumerate(_NAMES)}
        layout = {"size": [_WIDTH, height], "rows": rows, "name": _NAME, "memory": _MEMORY, "box": _BOX}
        super().__init__(_passes={keeps: _run(keep) for keeps, keep in KEEPS.items()}, _layout=layout)
        self._tell()

    @property
    def said(self) -> str:
        """What the last line of `forward` did."""
        return str(self._state["said"])

    @property
    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._passes[self.keeps][self.step]
        return state

    @traitlets.validate("step")
    def _check_step(self, proposal: Mapping[str, Any]) -> int:
        step: int = proposal["value"]
        if step not in range(len(STEPS) + 1):
            raise ValueError(f"step={step}: the steps are 0 to {len(STEPS)}")
        return step

    @traitlets.validate("keeps")
    def _check_keeps(self, proposal: Mapping[str, Any]) -> str:
        keeps: str = proposal["value"]
        if keeps not in KEEPS:
            raise ValueError(f"keeps={keeps!r}: choose one of {', '.join(KEEPS)}")
        return keeps

    @traitlets.observe("step", "keeps")
    def _tell(self, change: object = None) -> None:
        if self._passes:
            self.alt = (
                f"The names are on the left, their memory is on the right. Each hook keeps {self.keeps}. {self.said}"
            )

    def numbers(self) -> Rows:
        """List each name, its memory and the values there."""
        state = self._state
        return [
            {"name": name, "memory": memory, "values": state["memories"][memory]["values"]}
            for name, memory in state["names"].items()
        ] or [{"name": "none yet", "memory": "", "values": ""}]

    def _still(self) -> bytes:
        return _draw(self._layout, self._state, self.alt)


def _run(keep: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
    """Run the lines one by one, and note after each which name leads to which memory."""
    names: dict[str, Tensor] = {}
    letters: dict[int, str] = {}
    weight = torch.full((1, 1), 2.0, device="cpu")
    inputs = torch.tensor([[-1.0], [1.0]], device="cpu")
    states: list[dict[str, Any]] = [{"names": {}, "memories": {}, "said": "Nothing has run yet.", "line": ""}]
    for line, variable, layer in STEPS:
        before = states[-1]["memories"]
        if layer == "relu":
            output = torch.relu_(names["x"])
        elif layer:
            output = names.get("x", inputs) @ weight
        else:
            output = names["x"].add_(names["step"])
        names[variable] = output
        if layer:
            names[f"kept: {layer}"] = keep(output)
        led = {}
        for name in _NAMES:
            if name in names:
                address = names[name].untyped_storage().data_ptr()
                led[name] = letters.setdefault(address, chr(ord("A") + len(letters)))
        memories: dict[str, dict[str, Any]] = {}
        for name, letter in led.items():
            values = ", ".join(f"{value:g}" for value in names[name].flatten().tolist())
            changed = letter in before and before[letter]["values"] != values
            memories.setdefault(letter, {"values": values, "changed": changed, "names": []})["names"].append(name)
        states.append({"names": led, "memories": memories, "said": _say(line, led[variable], memories), "line": line})
    return states


def _say(line: str, letter: str, memories: Mapping[str, Mapping[str, Any]]) -> str:
    memory = memories[letter]
    *first, last = memory["names"]
    names = f"{', '.join(first)} and {last}" if first else last
    if memory["changed"]:
        return f"{line} writes {memory['values']} into the memory of {names}."
    return f"{line} writes {memory['values']} into new memory, for {names}."


def _draw(layout: Mapping[str, Any], state: Mapping[str, Any], alt: str) -> bytes:
    sheet = Sheet.open(layout["size"])
    sheet.write((_NAME[0] + _NAME[1] / 2 - 8, 14), "name", ha="right")
    sheet.write((_MEMORY, 14), "memory")
    rows = layout["rows"]
    for memory in state["memories"].values():
        y = sum(rows[name] for name in memory["names"]) / len(memory["names"])
        face, edge = (CHANGED_SOFT, CHANGED) if memory["changed"] else (DOOR, LINE)
        sheet.box(_MEMORY, y, *_BOX, facecolor=face, edgecolor=edge)
        sheet.write((_MEMORY, y), memory["values"])
        for name in memory["names"]:
            sheet.write((_NAME[0] + _NAME[1] / 2 - 8, rows[name]), name, ha="right")
            ends = [(_NAME[0] + _NAME[1] / 2, rows[name]), (_MEMORY - _BOX[0] / 2, y)]
            sheet.arrow(ends, INK)
    return sheet.png(alt)
