"""Both ends of a module: two gates that stop a gradient, and three gradients of which some go dark."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import traitlets
from torch import Tensor, nn

from hookscope.pictures.colors import DOOR, FRAME, HOOK, INK, LINE, MUTED, SHADE
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import WAYS, Sheet

__all__ = ["ENDS", "GATES", "INPUTS", "BothEnds", "Pass", "run_pass"]

GATES = ("stop_input", "stop_output")
INPUTS = ("x1", "x2")
ENDS = ("x1.grad", "x2.grad", "W.grad")
_PRODUCTS = {"x1.grad": "3 · 5 = 15", "x2.grad": "2 · 5 = 10", "W.grad": "2 · 3 = 6"}


class Pass(NamedTuple):
    """What torch gave each hook in one pass, and what came out.

    Args:
        y: what the module returned.
        arrives: what the full backward pre-hook was given.
        goes_in: what it returned.
        made: what the full backward hook was given, for x1 and x2.
        goes_on: what it returned.
        ends: `x1.grad`, `x2.grad` and `W.grad`; None where there is none.

    """

    y: float
    arrives: float
    goes_in: float
    made: tuple[float | None, ...]
    goes_on: tuple[float | None, ...]
    ends: tuple[float | None, ...]


class _Product(nn.Module):
    """y = x1 · x2 · W, with W = 5."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.tensor([5.0], dtype=torch.float64, device="cpu"))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1 * x2 * self.W


def run_pass(stops: Collection[str] = (), plain: Collection[str] = ()) -> Pass:
    """Call the module with 2 and 3, with a hook at each end, call `y.backward()`, and return what happened.

    Args:
        stops: the gates that are closed: their hooks return zeros; the others look.
        plain: the inputs that do not require grad.

    Example:
        >>> run_pass({"stop_input"}).ends
        (0.0, 0.0, 6.0)

    """
    seen: dict[str, tuple[float | None, ...]] = {}

    def hook(gate: str, given: str, gave: str) -> Any:
        def passes(module: nn.Module, *grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
            new = tuple(None if grad is None else torch.zeros_like(grad) for grad in grads[0])
            seen[given] = _numbers(grads[0])
            seen[gave] = _numbers(new) if gate in stops else seen[given]
            return new if gate in stops else None

        return passes

    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the hook fires early if no input requires grad: that is one of the states
        module = _Product()
        inputs = [
            torch.tensor([value], dtype=torch.float64, device="cpu", requires_grad=name not in plain)
            for name, value in zip(INPUTS, (2.0, 3.0), strict=True)
        ]
        module.register_full_backward_pre_hook(hook("stop_output", "arrives", "goes_in"))
        module.register_full_backward_hook(hook("stop_input", "made", "goes_on"))
        y = module(*inputs)
        y.backward()
    (arrives,), (goes_in,) = seen["arrives"], seen["goes_in"]
    assert arrives is not None
    assert goes_in is not None
    ends = _numbers([tensor.grad for tensor in (*inputs, module.W)])
    return Pass(y.item(), arrives, goes_in, seen["made"], seen["goes_on"], ends)


def _numbers(grads: Iterable[Tensor | None]) -> tuple[float | None, ...]:
    return tuple(None if grad is None else grad.item() for grad in grads)


@functools.cache
def _every_pass() -> dict[tuple[frozenset[str], frozenset[str]], Pass]:
    """Run all sixteen: each gate open or closed, each input with and without requires_grad."""
    found = {}
    for bits in product((False, True), repeat=4):
        names = [name for name, bit in zip((*GATES, *INPUTS), bits, strict=True) if bit]
        state = frozenset(names) & {*GATES}, frozenset(names) & {*INPUTS}
        found[state] = run_pass(*state)
    return found


class BothEnds(HookWidget):
    """Close a gate at one end of a module, mark the gradients that go dark, and run the backward pass.

    The module is y = x1 · x2 · W. `stop_output` is a full backward pre-hook, `stop_input` a full backward hook; a gate
    that is closed returns zeros. A gradient is dark if it is 0 or None.

    Attributes:
        stops: the gates that are closed.
        plain: the inputs that do not require grad.
        marks: the gradients that you think go dark.
        ran: whether the pass was run. Changing a gate or an input asks anew.

    Raises:
        ValueError: there is no such gate, input or gradient; or a mark is changed after the run.

    Example:
        >>> ends = BothEnds()
        >>> ends.stops = ["stop_input"]
        >>> ends.mark("x1.grad", "x2.grad", "W.grad")
        >>> print(ends.run())
        2 of 3 right.
        W.grad is 6: W.grad is computed from grad_output; stop_input changes only what leaves the module.

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("stops", "plain", "marks", "ran")

    stops: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    plain: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    marks: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    ran: Any = traitlets.Bool(False).tag(sync=True)
    _passes: Any = traitlets.Dict().tag(sync=True)  # by the names of `stops` and `plain`
    _layouts: Any = traitlets.Dict().tag(sync=True)

    def __init__(self) -> None:
        passes = {
            _key(stops, plain): {
                **found._asdict(),
                "said": _said(stops, plain, found.ends),
                "reasons": [_reason(name, stops, plain) for name in ENDS],
            }
            for (stops, plain), found in _every_pass().items()
        }
        super().__init__(_passes=passes, _layouts={name: _place(name == "narrow") for name in ("wide", "narrow")})
        self._draw()
        keep_state(self, "stops", "plain", "marks", "ran")

    def mark(self, *names: str) -> None:
        """Say which of `x1.grad`, `x2.grad` and `W.grad` go dark, instead of what was said before."""
        self.marks = list(names)

    def run(self) -> str:
        """Run the backward pass, and say what was right and why."""
        self.ran = True
        return self._told()

    def start_over(self) -> None:
        """Open both gates, let both inputs require grad, and hide the gradients."""
        with self.hold_trait_notifications():
            self.stops, self.plain, self.marks, self.ran = [], [], [], False

    @property
    def gradients(self) -> dict[str, float | None]:
        """The three gradients; only after the run."""
        if not self.ran:
            raise RuntimeError("the gradients are hidden until you have guessed; then call run(), or press Run")
        return dict(zip(ENDS, self._pass.ends, strict=True))

    @property
    def _pass(self) -> Pass:
        return _every_pass()[frozenset(self.stops), frozenset(self.plain)]

    def _wrong(self) -> list[str]:
        dark = [name for name, value in zip(ENDS, self._pass.ends, strict=True) if not value]
        return [name for name in ENDS if (name in dark) != (name in self.marks)]

    def _told(self) -> str:
        wrong, ends = self._wrong(), dict(zip(ENDS, self._pass.ends, strict=True))
        lines = [f"{len(ENDS) - len(wrong)} of {len(ENDS)} right."]
        return "\n".join(
            [*lines, *(f"{name} is {_text(ends[name])}: {_reason(name, self.stops, self.plain)}" for name in wrong)]
        )

    @traitlets.validate("stops", "plain", "marks")
    def _check(self, proposal: Mapping[str, Any]) -> list[str]:
        trait = proposal["trait"].name
        known = {"stops": GATES, "plain": INPUTS, "marks": ENDS}[trait]
        for name in proposal["value"]:
            if name not in known:
                raise ValueError(f"there is no {name!r} among {trait}; there are: {', '.join(known)}")
        wanted = [name for name in known if name in proposal["value"]]
        if trait == "marks" and self.ran and wanted != self.marks:
            raise ValueError("the pass has been run, so the marks stay; change a gate, or call start_over()")
        return wanted

    @traitlets.observe("stops", "plain")
    def _ask_anew(self, change: Mapping[str, Any]) -> None:
        if self._received & {"marks", "ran"}:
            return  # the page asked anew by itself; while the kernel was busy, it may have marked and run since
        self.ran = False
        self.marks = []

    @traitlets.observe("stops", "plain", "ran")
    @show_errors
    def _on_change(self, change: Mapping[str, Any]) -> None:
        self._draw()

    def _draw(self) -> None:
        closed = " and ".join(self.stops)
        gates = f"{closed} {'are' if len(self.stops) > 1 else 'is'} closed" if closed else "both gates are open"
        begin = f"The module y = x1 · x2 · W with 2, 3 and 5, and a gate at each end; {gates}."
        if self.ran:
            self.alt = f"{begin} {_said(self.stops, self.plain, self._pass.ends)}"
        else:
            self.alt = f"{begin} Which of x1.grad, x2.grad and W.grad are 0 or None?"
        self.png = self._still()

    def _still(self) -> bytes:
        layout = _place(narrow=False)
        sheet = Sheet.open(layout["size"])
        sheet.panel(*layout["frame"], facecolor=FRAME, edgecolor=LINE)
        for door in layout["doors"]:
            sheet.panel(*door, facecolor=DOOR, edgecolor=LINE)
        sheet.rails(layout["rails"])
        values = {"x1": "2", "x2": "3", "W": "5", "y": f"{self._pass.y:g}", "y_grad": f"{self._pass.arrives:g}"}
        known = dict(zip(ENDS, self._pass.ends, strict=True))
        for name, (x, y, w, h, word, way) in layout["boxes"].items():
            dark = self.ran and name in known and not known[name]
            fill = SHADE if dark else "white"
            sheet.box(x, y, w, h, facecolor=fill, edgecolor=WAYS[way], linewidth=1.5, zorder=2)
            if name in ("forward", "backward"):
                sheet.write([x, y], word)
                continue
            value = (_text(known[name]) if self.ran else "?") if name in known else values[name]
            sheet.write([x, y - 9], word, 8.5, "white" if dark else MUTED)
            sheet.write([x, y + 9], value, 11, "white" if dark else INK)
        for gate, (x, y, w, h, lift) in layout["gates"].items():
            up = 0 if gate in self.stops else lift
            sheet.box(x, y - up, w, h, facecolor=HOOK if not up else "white", edgecolor=HOOK, zorder=4)
            left, low, *_ = layout["buttons"][gate]
            sheet.write([left, low], f"{gate}: {'open' if up else 'closed'}", 9)
        sheet.write(layout["title"], "y = x1 · x2 · W", 10)
        return sheet.png(self.alt)

    def numbers(self) -> Rows:
        """List the three gradients, once the pass was run."""
        values = map(_text, self._pass.ends) if self.ran else "?" * len(ENDS)
        rows: list[dict[str, object]] = []
        for name, value in zip(ENDS, values, strict=True):
            rows.append({"gradient": name, "is": value, "you marked it dark": name in self.marks})
        return rows

    def summary(self) -> str:
        """Say what is asked, and after the run what was right."""
        return f"BothEnds: {self._told()}" if self.ran else f"BothEnds: {self.alt}"


def _key(stops: Iterable[str], plain: Iterable[str]) -> str:
    return ",".join(name for name in (*GATES, *INPUTS) if name in {*stops, *plain})


def _text(value: float | None) -> str:
    return "None" if value is None else f"{value:g}"


def _said(stops: Collection[str], plain: Collection[str], ends: Iterable[float | None]) -> str:
    gate = "Both gates are" if len(stops) == 2 else f"{next(iter(stops))} is" if stops else ""
    begin = f"{gate} closed: " if gate else "Both gates are open: "
    x1, x2, weight = map(_text, ends)
    idle = len(plain) == len(INPUTS) and "stop_input" in stops
    more = " No input requires grad, so there is nothing for stop_input to stop." if idle else ""
    return f"{begin}x1.grad is {x1}, x2.grad is {x2} and W.grad is {weight}.{more}"


def _reason(name: str, stops: Collection[str], plain: Collection[str]) -> str:
    """Why a gradient is dark or not; true whatever was guessed."""
    tensor = name.removesuffix(".grad")
    if tensor in plain:
        return f"{tensor} does not require grad, so torch computes no {name}."
    if "stop_output" in stops:
        return f"{name} is computed from grad_output, and stop_output has made that 0."
    if "stop_input" in stops and tensor in INPUTS:
        return f"what stop_input returns goes on to {tensor}, and it returns zeros."
    if "stop_input" in stops:
        return "W.grad is computed from grad_output; stop_input changes only what leaves the module."
    return f"no gate is closed, so {name} is {_PRODUCTS[name]}."


def _place(narrow: bool) -> dict[str, Any]:
    """Return where everything stands: boxes by center and size, gates by center, size and how far they are lifted."""
    if narrow:
        left, enter, mid, leave, right, size, font = 33, 104, 190, 276, 347, (380, 444), 11
        wide, inner, tall = 60, 76, 42
        f1, f2, fy, weight, b, b1, b2, grad = 84, 136, 110, 176, 276, 250, 302, 366
        bar, lift, door, plate = 12, 62, 26, 132
    else:
        left, enter, mid, leave, right, size, font = 62, 240, 415, 590, 768, (830, 410), 13
        wide, inner, tall = 100, 112, 44
        f1, f2, fy, weight, b, b1, b2, grad = 62, 112, 87, 154, 250, 222, 278, 336
        bar, lift, door, plate = 16, 70, 46, 160
    top, bottom = 30, grad + 32
    gate = (b1 + b2) / 2
    rails = [
        {"way": "forward", "points": [[left + wide / 2, f1], [enter, f1], [mid - inner / 2 - 2, fy - 8]]},
        {"way": "forward", "points": [[left + wide / 2, f2], [enter, f2], [mid - inner / 2 - 2, fy + 8]]},
        {"way": "forward", "points": [[mid, weight - tall / 2], [mid, fy + tall / 2 + 2]]},
        {"way": "forward", "points": [[mid + inner / 2, fy], [right - wide / 2 - 2, fy]]},
        {"way": "backward", "points": [[right - wide / 2, b], [mid + inner / 2 + 2, b]]},
        {
            "way": "backward",
            "points": [[mid - inner / 2, b - 8], [enter, b1], [left + wide / 2 + 2, b1]],
            "of": "x1.grad",
        },
        {
            "way": "backward",
            "points": [[mid - inner / 2, b + 8], [enter, b2], [left + wide / 2 + 2, b2]],
            "of": "x2.grad",
        },
        {"way": "backward", "points": [[mid, b + tall / 2], [mid, grad - tall / 2 - 2]]},
    ]
    # What lies behind a closed gate: each is drawn dark if nothing, or 0, travels on it.
    shades = [
        {"of": "goes_in", "points": [[leave, b], [mid + inner / 2 + 2, b]]},
        {"of": "made", "at": 0, "bare": True, "points": [[mid - inner / 2, b - 8], [enter, b1]]},
        {"of": "made", "at": 1, "bare": True, "points": [[mid - inner / 2, b + 8], [enter, b2]]},
        {"of": "ends", "at": 0, "points": [[enter, b1], [left + wide / 2 + 2, b1]]},
        {"of": "ends", "at": 1, "points": [[enter, b2], [left + wide / 2 + 2, b2]]},
        {"of": "ends", "at": 2, "points": [[mid, b + tall / 2], [mid, grad - tall / 2 - 2]]},
    ]
    return {
        "size": [*size],
        "font": font,
        "frame": [enter, top, leave - enter, bottom - top],
        "doors": [[x - door, top + 8, 2 * door, bottom - top - 16] for x in (enter, leave)],
        "title": [mid, 18],
        "boxes": {
            "x1": [left, f1, wide, tall, "x1", "forward"],
            "x2": [left, f2, wide, tall, "x2", "forward"],
            "W": [mid, weight, inner, tall, "W", "forward"],
            "forward": [mid, fy, inner, tall, "forward", "forward"],
            "y": [right, fy, wide, tall, "y", "forward"],
            "y_grad": [right, b, wide, tall, "grad of y", "backward"],
            "backward": [mid, b, inner, tall, "backward", "backward"],
            "x1.grad": [left, b1, wide, tall, "x1.grad", "backward"],
            "x2.grad": [left, b2, wide, tall, "x2.grad", "backward"],
            "W.grad": [mid, grad, inner, tall, "W.grad", "backward"],
        },
        "rails": rails,
        "shades": shades,
        "gates": {
            "stop_input": [enter, gate, bar, b2 - b1 + 30, lift + 20],
            "stop_output": [leave, b, bar, 56, lift],
        },
        "buttons": {"stop_input": [enter, bottom + 22, plate, 28], "stop_output": [leave, bottom + 22, plate, 28]},
        "tracks": {
            "y": [[right, b], [leave, b]],
            "in": [[leave, b], [mid, b]],
            "x1": [[mid, b], [enter, b1]],
            "x2": [[mid, b], [enter, b2]],
            "x1.grad": [[enter, b1], [left, b1]],
            "x2.grad": [[enter, b2], [left, b2]],
            "W.grad": [[mid, b], [mid, grad - tall / 2 - 8]],
        },
    }
