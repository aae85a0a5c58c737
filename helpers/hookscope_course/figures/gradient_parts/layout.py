"""Where everything stands in the two graphs of `GradientParts`, wide and narrow, as plain numbers and texts.

A box is center, size, name, way, and the name of its value, or "" if it has none. A flight is the points that a value
travels along, the name of the value, and what is known when it has arrived. The flights of a wave start together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["place_steps", "place_twice"]

Layout = dict[str, Any]


def place_steps(*, narrow: bool) -> Layout:
    """Place three steps with one weight: h on top, their gradients below, and the parts on the edges to `w`."""
    if narrow:
        states, steps, size, font, radius = (36, 136, 236, 340), (80, 180, 280), (380, 366), 11, 10
        wide, tall, top, back, join, ends = 56, 40, 50, 138, 246, (332, 116)
        slot_y = 202
    else:
        states, steps, size, font, radius = (54, 298, 542, 774), (176, 420, 658), (830, 366), 13, 14
        wide, tall, top, back, join, ends = 92, 44, 46, 140, 254, (336, 150)
        slot_y = 208
    half, half_tall, middle = wide / 2, tall / 2, steps[1]
    boxes: dict[str, list[Any]] = {}
    for number, x in enumerate(states):
        boxes[f"h{number}"] = [x, top, wide, tall, f"h{number}", "forward", f"h{number}"]
        if number:
            word = "grad" if narrow else f"grad of h{number}"
            boxes[f"grad h{number}"] = [x, back, wide, tall, word, "backward", f"in h{number}"]
    rails: list[Layout] = []
    words = []
    signs = ("· w + 2", "· w − 2", "· w + 1")
    slots: Layout = {}
    labels: Layout = {"out step 2": [middle + 10, join - 14, "start"]}
    for number, x in enumerate(steps, start=1):
        before, after = states[number - 1], states[number]
        if narrow:
            rails.append({"way": "forward", "points": [[before + half, top], [after - half - 2, top]]})
            words.append([signs[number - 1].replace(" ", ""), (before + after) / 2, top - tall / 2 - 8, "forward"])
            rails.append({"way": "backward", "points": [[after - half, back], [before + half + 2, back]]})
            if number == 1:
                rails.pop()
                rails.append({"way": "backward", "points": [[after - half, back], [x, back], [x, back + 16]]})
            start: float = back
        else:
            rails.append({"way": "forward", "points": [[before + half, top], [x - 42, top]]})
            rails.append({"way": "forward", "points": [[x + 40, top], [after - half - 2, top]]})
            boxes[f"forward {number}"] = [x, top, 80, tall, signs[number - 1], "forward", ""]
            boxes[f"back {number}"] = [x, back, 80, tall, f"step {number}", "backward", ""]
            rails.append({"way": "backward", "points": [[after - half, back], [x + 42, back]]})
            if number > 1:
                rails.append({"way": "backward", "points": [[x - 40, back], [before + half + 2, back]]})
            start = back + tall / 2
        if number == 2:
            rails.append({"way": "backward", "points": [[x, start], [x, join - 13]]})
        else:
            side = -13 if number == 1 else 13
            rails.append({"way": "backward", "points": [[x, start], [x, join], [middle + side, join]]})
            labels[f"out step {number}"] = [(x + middle) / 2, join - 8, "middle"]
        text = [x + radius + 6, slot_y + 4]
        slots[f"step {number}"] = _slot([x, slot_y], f"{'step' if narrow else 'hook on step'} {number}", text, "start")
        if number < 3:
            under = [after, back + half_tall + font + 4]  # under the box whose gradient the hook gets
            slots[f"h{number}"] = _slot(
                [after - half - (12 if narrow else 17), back], f"hook on h{number}", under, "middle"
            )
    low, broad = ends
    rails.append({"way": "backward", "points": [[middle, join + 12], [middle, low - tall / 2 - 2]]})
    boxes["w.grad"] = [middle, low, broad, tall, "w.grad, w = 2", "backward", "w.grad"]
    on_w = [middle, (join + 12 + low - tall / 2) / 2 - 3]
    slots["w"] = _slot(on_w, "hook on w", [middle + radius + 6, on_w[1] + 4], "start")
    return {
        "size": [*size],
        "font": font,
        "radius": radius,
        "boxes": boxes,
        "rails": rails,
        "slots": slots,
        "labels": labels,
        "words": words,
        "plus": [middle, join],
        "known": ["h0", "h1", "h2", "h3", "grad h3"],
        "tray": [size[0] - (54 if narrow else 100), low],
        "waves": _waves_of_steps(states, steps, back, join, low, slots),
    }


def _waves_of_steps(
    states: tuple[int, ...], steps: tuple[int, ...], back: float, join: float, low: float, slots: Layout
) -> list[Any]:
    waves: list[Any] = []
    middle = steps[1]
    for number in (3, 2, 1):
        x, hook = steps[number - 1], slots.get(f"h{number}")
        if hook is None:
            waves.append([_flight([[states[number], back], [x, back]], f"out h{number}")])
        else:
            waves.append([_flight([[states[number], back], hook["at"]], f"in h{number}", fires=f"h{number}")])
            waves.append([_flight([hook["at"], [x, back]], f"out h{number}")])
        at = slots[f"step {number}"]["at"]
        down = _flight([[x, back], at], f"in step {number}", fires=f"step {number}")
        wave = [down]
        if number > 1:
            wave.append(_flight([[x, back], [states[number - 1], back]], f"in h{number - 1}", [f"grad h{number - 1}"]))
        waves.append(wave)
        last = [at, [x, join]] if number != 2 else [at, [x, join - 30]]
        waves.append([_flight(last, f"out step {number}", [f"out step {number}"])])
    together = [_flight([[x, join], [middle, join]], f"out step {n}") for n, x in enumerate(steps, start=1)]
    waves.append(together)
    waves.append([_flight([[middle, join], slots["w"]["at"]], "in w", fires="w")])
    waves.append([_flight([slots["w"]["at"], [middle, low]], "out w", ["w.grad"])])
    return waves


def place_twice(*, narrow: bool) -> Layout:
    """Place x, y and z, the first derivative below them, and the two ways on which the second comes back to x."""
    if narrow:
        second, x, y, z, size, font, radius = 45, 148, 262, 344, (380, 286), 11, 10
        wide, tall, top, back, low = 60, 44, 60, 188, 252
        hook_x, ends = 211, ("1st derivative", "2nd derivative")
    else:
        second, x, y, z, size, font, radius = 78, 268, 540, 762, (830, 300), 13, 14
        wide, tall, top, back, low = 108, 48, 60, 194, 264
        hook_x, ends = 392, ("first derivative", "second derivative")
    half, up, down, middle = wide / 2, top - 12, top + 12, (top + back) / 2
    boxes = {
        "second": [second, top, wide + (22 if narrow else 28), tall, ends[1], "backward", "second"],
        "x": [x, top, wide, tall, "x", "forward", "x"],
        "y": [y, top, wide, tall, "y = x²", "forward", "y"],
        "z": [z, top, wide, tall, "z = y²", "forward", "z"],
        "first": [x, back, wide + (22 if narrow else 10), tall, ends[0], "backward", "first"],
        "grad y": [y, back, wide, tall, "grad" if narrow else "grad of y", "backward", "in first pass"],
        "start": [z, back, wide, tall, "grad" if narrow else "grad of z", "backward", "z"],
    }
    by_x, by_y = [[x, back - tall / 2], [x, top + tall / 2 + 2]], [[x, back + tall / 2], [x, low], [y, low]]
    rails = [
        {"way": "forward", "points": [[x + half, up], [y - half - 2, up]]},
        {"way": "forward", "points": [[y + half, up], [z - half - 2, up]]},
        {"way": "backward", "points": [[z - half, back], [y + half + 2, back]]},
        {"way": "backward", "points": [[y - half, back], [x + half + (13 if narrow else 7), back]]},
        {"way": "backward", "dotted": True, "points": by_x},
        {"way": "backward", "dotted": True, "points": [*by_y, [y, back + tall / 2 + 2]]},
        {"way": "backward", "dotted": True, "points": [[y, back - tall / 2], [y, top + tall / 2 + 2]]},
        {"way": "backward", "dotted": True, "points": [[y - half, down], [x + half + 2, down]]},
        {
            "way": "backward",
            "dotted": True,
            "points": [[x - half, top], [second + half + (13 if narrow else 16), top]],
        },
    ]
    lift = font + 4
    above = back - (tall / 2 + 6 if narrow else 8)  # in the narrow drawing, words between two boxes have no room
    pass_x = hook_x + (21 if narrow else 40)
    words = [
        ["· 2y", (y + z) / 2, above, "backward"],
        ["· 2x", hook_x - radius - (8 if narrow else 24), above, "backward"],
        ["path 1", x - (26 if narrow else 30), middle + 4, "backward"],
        ["path 2", (x + y) / 2, low - 7, "backward"],
        ["pass 2", pass_x, down + lift + (6 if narrow else 8), "soft"],
        ["pass 1", pass_x, above if narrow else back - radius - 6, "soft"],
    ]
    slot = _slot([hook_x, down], "hook on y", [hook_x + (6 if narrow else 12), middle + 4], "start")
    slot["also"] = [[hook_x, back]]
    if narrow:
        slot["lines"], slot["text"] = ["hook", "on y"], [hook_x + 10, middle]
    labels = {
        "by x": [x + 8, middle + 4, "start"],
        "by y": [(x + half + hook_x) / 2 if not narrow else x + half + 10, down + lift + 2, "middle"],
        "in second pass": [y + 8, middle + 4, "start"],
    }
    first = [
        [_flight([[z, back], [y, back]], "in first pass", ["grad y"])],
        [_flight([[y, back], [hook_x, back]], "in first pass", fires="y")],
        [_flight([[hook_x, back], [x, back]], "out first pass", ["first"])],
    ]
    again = [
        [_flight([*by_y, [y, back], [y, down]], "in second pass", ["in second pass"])],
        [_flight([[y, down], [hook_x, down]], "in second pass", fires="y")],
        [_flight([[hook_x, down], [x, down]], "out second pass", ["by y"]), _flight(by_x, "by x", ["by x"])],
        [_flight([[x, top], [second, top]], "second", ["second"])],
    ]
    return {
        "size": [*size],
        "font": font,
        "radius": radius,
        "boxes": boxes,
        "rails": rails,
        "slots": {"y": slot},
        "labels": labels,
        "words": words,
        "plus": None,
        "known": ["x", "y", "z", "start"],
        "tray": None,
        "waves": [*first, *again],
    }


def _slot(at: Sequence[float], line: str, text: Sequence[float], anchor: str) -> Layout:
    return {"at": [*at], "lines": [line], "text": [*text], "anchor": anchor, "also": []}


def _flight(points: Sequence[Any], value: str, knows: list[str] | None = None, fires: str = "") -> Layout:
    return {"points": points, "value": value, "knows": knows or [], "fires": fires}
