"""A graph with the parts of a gradient on its edges, and a hook that you put on one of its tensors or steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import traitlets
from torch import Tensor

from hookscope.pictures.colors import BACKWARD, HOOK, LINE, MUTED
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import HookWidget, assets, show_errors
from hookscope_course.figures.gradient_parts.layout import place_steps, place_twice
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import SIDES, WAYS, Sheet

__all__ = ["EFFECTS", "PLACES", "GradientParts", "run_steps", "run_twice"]

PLACES = {"steps": ("w", "step 1", "step 2", "step 3", "h1", "h2"), "twice": ("y",)}
EFFECTS = {
    "steps": {"look": "looks", "double": "doubles"},
    "twice": {
        "look": "looks",
        "double": "doubles",
        "removed": "doubles, first pass only",
        "detach": "doubles grad.detach()",
    },
}
_ASKS = {
    "steps": {"got": "the hook gets", "w.grad": "w.grad"},
    "twice": {"first": "first derivative", "second": "second derivative"},
}
_W, _START, _ADDED = 2.0, 1.0, (2.0, -2.0, 1.0)


class Run(NamedTuple):
    """What torch gave in one run.

    Args:
        values: every number of the drawing, by the name of its place.
        changed: the names of those that are not what they are without the hook.
        got: what the hook was given, one number for each time it fired.
        ends: what is asked for, by its name.

    """

    values: dict[str, float]
    changed: tuple[str, ...]
    got: tuple[float, ...]
    ends: dict[str, float]


def _number(value: float, requires_grad: bool = False) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu", requires_grad=requires_grad)


def run_steps(place: str = "", effect: str = "look") -> Run:
    """Run three steps of `h = w · h + x` with one hook, and return all gradients.

    Args:
        place: where the hook is: on `w`, on the alias of `w` of a step, or on what a step returned; "" for nowhere.
        effect: "look" or "double".

    Example:
        >>> run_steps("step 2", "double").ends
        {'got': 8.0, 'w.grad': 26.0}

    """
    got: list[float] = []
    values: dict[str, float] = {}

    def hook(grad: Tensor) -> Tensor | None:
        got.append(grad.item())
        return 2 * grad if effect == "double" else None

    def note(tensor: Tensor, key: str) -> None:
        tensor.register_hook(lambda grad: values.update({key: grad.item()}))  # type: ignore[no-untyped-call]

    with torch.inference_mode(False), torch.enable_grad():
        w, h = _number(_W, requires_grad=True), _number(_START)
        hooked = {"w": w}
        values["h0"] = h.item()
        for step, added in enumerate(_ADDED, start=1):
            hooked[f"step {step}"] = alias = w.view_as(w)
            hooked[f"h{step}"] = h = alias * h + added
            values[f"h{step}"] = h.item()
        for name, tensor in hooked.items():
            note(tensor, f"in {name}")
            if name == place:
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            note(tensor, f"out {name}")
        h.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    values["w.grad"] = w.grad.item()
    ends = {"got": got[0]} if got else {}
    return Run(values, (), tuple(got), ends | {"w.grad": values["w.grad"]})


def run_twice(place: str = "", effect: str = "look") -> Run:
    """Differentiate `z = y², y = x²` twice at x = 1, with a hook on `y`, and return the parts.

    Args:
        place: "y", or "" for no hook.
        effect: "look", "double", "removed" (doubles, and is removed after the first pass) or "detach" (doubles the
            gradient without its graph).

    Example:
        >>> run_twice("y", "double").ends
        {'first': 8.0, 'second': 40.0}

    """
    got: list[float] = []
    values: dict[str, float] = {"in second pass": 0.0, "out second pass": 0.0}
    when = "first pass"

    def hook(grad: Tensor) -> Tensor | None:
        got.append(grad.item())
        if effect == "look":
            return None
        return 2 * (grad.detach() if effect == "detach" else grad)

    def note(tensor: Tensor, way: str) -> None:
        tensor.register_hook(lambda grad: values.update({f"{way} {when}": grad.item()}))  # type: ignore[no-untyped-call]

    with torch.inference_mode(False), torch.enable_grad():
        x = _number(1.0, requires_grad=True)
        y = x * x
        note(y, "in")
        handle = y.register_hook(hook) if place else None  # type: ignore[no-untyped-call]
        note(y, "out")
        z = y * y
        (first,) = torch.autograd.grad(z, x, create_graph=True)
        if handle is not None and effect == "removed":
            handle.remove()
        when = "second pass"
        (second,) = torch.autograd.grad(first, x, retain_graph=True)
        by_y = torch.autograd.grad(_square(x), x, _number(values["out second pass"]))[0].item()
    ends = {"first": first.item(), "second": second.item()}
    values |= {"x": x.item(), "y": y.item(), "z": z.item(), "by y": by_y, "by x": second.item() - by_y} | ends
    return Run(values, (), tuple(got), ends)


def _square(x: Tensor) -> Tensor:
    return x * x


@functools.cache
def _every_run(graph: str) -> dict[tuple[str, str], Run]:
    run = {"steps": run_steps, "twice": run_twice}[graph]
    plain = run()
    found = {("", "look"): plain}
    for place in PLACES[graph]:
        for effect in EFFECTS[graph]:
            one = run(place, effect)
            changed = tuple(name for name, value in one.values.items() if value != plain.values[name])
            found[place, effect] = one._replace(changed=changed)
    return found


class GradientParts(HookWidget):
    """Put a hook somewhere in a graph, guess what it gets and what the gradient becomes, and run the backward pass.

    Args:
        graph: "steps": one weight, used at three steps, whose parts add up; "twice": a derivative of a derivative.

    Attributes:
        place: where the hook is, one of `PLACES`; "" if it lies in the tray.
        effect: what it does, one of `EFFECTS`.
        guesses: what you typed, by what is asked.
        ran: whether the pass was run. Moving or changing the hook asks anew.

    Raises:
        ValueError: there is no such graph, place, effect or question; or a guess is changed after the run.

    Example:
        >>> parts = GradientParts()
        >>> parts.place = "w"
        >>> parts.guess(got=4, **{"w.grad": 18})
        >>> print(parts.run())
        1 of 2 right.
        the hook gets 18: it waits until all three parts have been added up, 4 + 8 + 6.

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("place", "effect", "guesses", "ran")

    place: Any = traitlets.Unicode("").tag(sync=True)
    effect: Any = traitlets.Unicode("look").tag(sync=True)
    guesses: Any = traitlets.Dict().tag(sync=True)
    ran: Any = traitlets.Bool(False).tag(sync=True)
    _fixed: Any = traitlets.Dict().tag(sync=True)  # words, places and effects of this graph
    _runs: Any = traitlets.Dict().tag(sync=True)  # by "place,effect"
    _layouts: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, graph: str = "steps") -> None:
        if graph not in PLACES:
            raise ValueError(f"graph={graph!r}: choose from {', '.join(PLACES)}")
        self._graph = graph
        runs = {}
        for (place, effect), found in _every_run(graph).items():
            words = {"said": _say(graph, place, effect), "reasons": _reasons(graph, place, effect)}
            values = {name: f"{value:g}" for name, value in found.values.items()}
            runs[f"{place},{effect}"] = found._asdict() | words | {"values": values}
        lay_out = {"steps": place_steps, "twice": place_twice}[graph]
        fixed = {
            "graph": graph,
            "label": "Parts of a gradient" if graph == "steps" else "A gradient of a gradient",
            "places": list(PLACES[graph]),
            "effects": [list(pair) for pair in EFFECTS[graph].items()],
            "asks": _ASKS[graph],
        }
        super().__init__(
            _fixed=fixed, _runs=runs, _layouts={"wide": lay_out(narrow=False), "narrow": lay_out(narrow=True)}
        )
        self._draw()
        keep_state(self, "place", "effect", "guesses", "ran", of=graph)

    def guess(self, **guesses: float) -> None:
        """Say what you expect, by the names `got` and `w.grad`, or `first` and `second`."""
        self.guesses = {name: f"{value:g}" for name, value in guesses.items()}

    def run(self) -> str:
        """Run the backward pass, and say what was right and why."""
        self.ran = True
        return self._told()

    def start_over(self) -> None:
        """Put the hook back, and hide the gradients."""
        with self.hold_trait_notifications():
            self.place, self.effect, self.guesses, self.ran = "", "look", {}, False

    @property
    def gradients(self) -> dict[str, float]:
        """What is asked for; only after the run."""
        if not self.ran:
            raise RuntimeError("the gradients are hidden until you have guessed; then call run(), or press Run")
        return self._run.ends

    @property
    def _run(self) -> Run:
        return _every_run(self._graph)[self.place, self.effect if self.place else "look"]

    def _told(self) -> str:
        asks, reasons = _ASKS[self._graph], _reasons(self._graph, self.place, self.effect)
        wrong = [name for name, value in self._run.ends.items() if self._guessed(name) != value]
        lines = [f"{len(self._run.ends) - len(wrong)} of {len(self._run.ends)} right."]
        for name in wrong:
            verb = " " if name == "got" else " is "
            lines.append(f"{asks[name]}{verb}{self._run.ends[name]:g}: {reasons[name]}")
        return "\n".join(lines)

    def _guessed(self, name: str) -> float | None:
        try:
            return float(self.guesses.get(name, ""))
        except ValueError:
            return None

    @traitlets.validate("place", "effect", "guesses")
    def _check(self, proposal: Mapping[str, Any]) -> Any:
        trait, value = proposal["trait"].name, proposal["value"]
        if trait == "guesses":
            known: list[str] = list(_ASKS[self._graph])
            unknown = [name for name in value if name not in known]
            if unknown:
                raise ValueError(f"nobody asks for {unknown[0]!r}; what is asked: {', '.join(known)}")
            if self.ran and value != self.guesses:
                raise ValueError("the pass has been run, so the guesses stay; move the hook, or call start_over()")
            return value
        known = ["", *PLACES[self._graph]] if trait == "place" else list(EFFECTS[self._graph])
        if value not in known:
            raise ValueError(f"{trait}={value!r}: choose from {', '.join(map(repr, known))}")
        return value

    @traitlets.observe("place", "effect")
    def _ask_anew(self, change: Mapping[str, Any]) -> None:
        if self._received & {"guesses", "ran"}:
            return  # the page asked anew by itself; while the kernel was busy, it may have guessed and run since
        self.ran = False
        self.guesses = {}

    @traitlets.observe("place", "effect", "ran")
    @show_errors
    def _on_change(self, change: Mapping[str, Any]) -> None:
        self._draw()

    def _draw(self) -> None:
        where = f"a hook on {self.place} that {EFFECTS[self._graph][self.effect]}" if self.place else "no hook"
        begin = {
            "steps": "Three steps h = w · h + x use one weight, w = 2. h is 1, 4, 6 and 13",
            "twice": "y = x² and z = y² at x = 1, differentiated twice",
        }[self._graph]
        said = _say(self._graph, self.place, self.effect) if self.ran else "The gradients are hidden."
        self.alt = f"{begin}; {where}. {said}"
        self.png = self._still()

    def _still(self) -> bytes:
        layout = self._layouts["wide"]
        sheet = Sheet.open(layout["size"])
        sheet.rails(layout["rails"])
        for name, (x, y, w, h, word, way, key) in layout["boxes"].items():
            sheet.box(x, y, w, h, facecolor="white", edgecolor=WAYS[way], linewidth=1.5, zorder=2)
            if key:
                sheet.write([x, y - 9], word, 8.5, MUTED)
                sheet.write([x, y + 9], self._value(name, key), 11)
            else:
                sheet.write([x, y], word)
        for key, (x, y, anchor) in layout["labels"].items():
            sheet.write([x, y - 5], self._value("", key), 11, BACKWARD, ha=SIDES[anchor])
        for text, x, y, way in layout["words"]:
            sheet.write([x, y - 4], text, 9, WAYS.get(way, MUTED))
        for place, slot in layout["slots"].items():
            on = place == self.place
            for point in [slot["at"], *slot["also"]]:
                look = {"facecolor": HOOK if on else "white", "edgecolor": HOOK if on else LINE, "zorder": 4}
                sheet.circle(point, layout["radius"], linestyle="-" if on else "--", **look)
                if on and self.effect != "look":
                    sheet.write(point, "×2", 9, "white")
            x, y = slot["text"]
            sheet.write([x, y - 4], slot["lines"][0], 8.5, MUTED, ha=SIDES[slot["anchor"]])
        return sheet.png(self.alt)

    def _value(self, name: str, key: str) -> str:
        known = self.ran or name in self._layouts["wide"]["known"]
        return f"{self._run.values[key]:g}" if known else "?"

    def numbers(self) -> Rows:
        """List the parts and what is asked for, once the pass was run."""
        parts = {
            "steps": {f"part of step {step}": f"out step {step}" for step in (1, 2, 3)},
            "twice": {"path 1, by the x in 2x": "by x", "path 2, through y": "by y"},
        }[self._graph]
        values = [(name, self._run.values[key], "") for name, key in parts.items()]
        asks = [(_ASKS[self._graph][name], end, self.guesses.get(name, "")) for name, end in self._run.ends.items()]
        rows: list[dict[str, object]] = []
        for name, value, guess in [*values, *asks]:
            rows.append({"what": name, "is": f"{value:g}" if self.ran else "?", "you": guess})
        return rows

    def summary(self) -> str:
        """Say what is asked, and after the run what was right."""
        return f"GradientParts: {self._told()}" if self.ran else f"GradientParts: {self.alt}"


def _times(effect: str) -> int:
    return 1 if effect == "look" else 2


def _say(graph: str, place: str, effect: str) -> str:
    run = _every_run(graph)[place, effect if place else "look"]
    values = {name: f"{value:g}" for name, value in run.values.items()}
    if graph == "twice":
        begin = "" if not place else _fired(run)
        total = f"path 1 + path 2 = {values['by x']} + {values['by y']} = {values['second']}"
        return f"{begin}The first derivative is {values['first']}. The second is {total}."
    parts = " + ".join(values[f"out step {step}"] for step in (1, 2, 3))
    if not place:
        return f"The parts of the three steps add up: {parts} = {values['w.grad']}."
    gives = f"returns {values[f'out {place}']}" if effect == "double" else "leaves it as it is"
    begin = f"The hook on {place} fires once. It gets {values[f'in {place}']}, and {gives}. "
    if place == "w":
        return f"{begin}So w.grad is {values['w.grad']}."
    return f"{begin}w.grad is {parts} = {values['w.grad']}."


def _fired(run: Run) -> str:
    got = " and ".join(f"{value:g}" for value in run.got)
    often = {1: "once", 2: "in both passes"}[len(run.got)]
    return f"The hook on y fires {often}, with {got}. "


def _reasons(graph: str, place: str, effect: str) -> dict[str, str]:
    """Why each end is what it is; true whatever was guessed."""
    run = _every_run(graph)[place, effect if place else "look"]
    values = {name: f"{value:g}" for name, value in run.values.items()}
    if graph == "twice":
        return _reasons_twice(values, place, effect)
    parts = [values[f"out step {step}"] for step in (1, 2, 3)]
    total = f"the parts of the steps add up, {' + '.join(parts)}."
    if not place:
        return {"w.grad": total}
    if place == "w":
        got = f"it waits until all three parts have been added up, {' + '.join(parts)}."
        double = f"the hook returned {values['out w']}, twice the sum." if effect == "double" else total
        return {"got": got, "w.grad": double}
    step = int(place[-1])
    if place.startswith("step"):
        grad, before = values[f"out h{step}"], values[f"h{step - 1}"]
        got = f"the part of {place} is the gradient of h{step}, {grad}, times h{step - 1}, {before}."
        return {"got": got, "w.grad": total}
    got = f"the gradient of {place} is w, 2, times that of h{step + 1}, {values[f'out h{step + 1}']}."
    behind = " and ".join(str(each) for each in range(1, step + 1))
    more = f" What the hook returns reaches step{'s' * (step > 1)} {behind}." if effect == "double" else ""
    return {"got": got, "w.grad": total + more}


def _reasons_twice(values: dict[str, str], place: str, effect: str) -> dict[str, str]:
    doubles = place and effect != "look"
    first = "2y · 2x is 2 · 2, and the hook doubles it." if doubles else "it is 2y · 2x, and x and y are 1."
    ways = f"path 1 brings {values['by x']}, and path 2 brings {values['by y']}"
    if not doubles:
        return {"first": first, "second": f"{ways}."}
    why = {
        "double": f", because the hook doubles path 2 in the second pass, too: 2 · {float(values['by y']) / 2:g}.",
        "removed": ". The hook doubled both in the first pass, and in the second pass there is no hook.",
        "detach": ". The detached gradient has no graph, so path 2 ends at it.",
    }[effect]
    return {"first": first, "second": f"{ways}{why}"}
