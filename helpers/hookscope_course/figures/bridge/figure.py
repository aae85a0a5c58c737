"""The bridge: two ranks as two rails with all_reduce between them, and a hook to drag along both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import nn

from hookscope.pictures.colors import BACKWARD, BACKWARD_SOFT, FRAME, HOOK, LINE, MUTED
from hookscope.pictures.picture import Rows
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import SIDES, WAYS, Sheet

__all__ = ["HOOKS", "Bridge", "train_one_step"]

HOOKS = {
    "forward pre-hook": "A forward pre-hook gets the input: {values}.",
    "forward hook": "A forward hook gets the output: {values}.",
    "tensor hook": "A tensor hook on the weight gets the gradient: {values}.",
    "post-accumulate hook": "A post-accumulate hook reads the same gradient from weight.grad: {values}.",
    "communication hook": "A communication hook gets the bucket with the gradient, before all_reduce: {values}.",
    "step pre-hook": "After all_reduce, a step pre-hook of the optimizer reads the mean from weight.grad: {values}.",
}
"""The hooks in their order of firing, each with a sentence about its value on both ranks."""
RECORDED = (
    dict(zip((*HOOKS, "weight"), (2.0, 10.0, 2.0, 2.0, 2.0, 3.0, 4.7), strict=True)),
    dict(zip((*HOOKS, "weight"), (4.0, 20.0, 4.0, 4.0, 4.0, 3.0, 4.7), strict=True)),
)
"""The results of `train_one_step` on two ranks."""


def train_one_step(first: float = 2.0, second: float = 4.0) -> dict[str, float]:
    """On a rank: train a layer with the weight 5 for one step under DDP, with a hook at each place.

    Args:
        first: the input on rank 0.
        second: the input on every other rank.

    Returns:
        The value at each hook, by the names of `HOOKS`, and the new "weight".

    """
    from torch import distributed as dist

    seen: dict[str, float] = {}

    def note(name: str, value: Any) -> None:
        seen[name] = value.item()

    # Without annotations: in this file they are text, and DDP refuses that.
    def average(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        note("communication hook", bucket.buffer())
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 5.0)
    layer.register_forward_pre_hook(lambda module, args: note("forward pre-hook", args[0]))
    layer.register_forward_hook(lambda module, args, output: note("forward hook", output))
    weight: Any = layer.weight
    weight.register_hook(lambda grad: note("tensor hook", grad))
    weight.register_post_accumulate_grad_hook(lambda weight: note("post-accumulate hook", weight.grad))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *given: note("step pre-hook", layer.weight.grad))
    ddp = nn.parallel.DistributedDataParallel(layer)
    ddp.register_comm_hook(None, average)
    ddp(torch.tensor([[float(first if dist.get_rank() == 0 else second)]])).sum().backward()
    optimizer.step()
    note("weight", layer.weight)
    return seen


class Bridge(LazyFigure):
    """Drag a hook along two ranks and see its value on each.

    Args:
        seen: the results of `train_one_step` on rank 0 and on rank 1. Without it, the figure shows a recording with the
            inputs 2 and 4.

    Attributes:
        place: the number of the place at which the hook is.

    Raises:
        ValueError: `seen` is not from two ranks, or there is no such place.

    Example:
        >>> bridge = Bridge()
        >>> bridge.move("tensor hook")
        'A tensor hook on the weight gets the gradient: 2 on rank 0, 4 on rank 1.'
        >>> bridge.values
        ('2', '4')

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("place")

    place: Any = traitlets.Int(0).tag(sync=True)
    _places: Any = traitlets.List().tag(sync=True)
    _ends: Any = traitlets.Dict().tag(sync=True)
    _layouts: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, seen: Sequence[Mapping[str, float]] = RECORDED) -> None:
        if len(seen) != 2 or any({*HOOKS, "weight"} - {*each} for each in seen):
            raise ValueError(
                "Bridge takes the results of train_one_step on two ranks. Write Bridge(group.run(train_one_step)) in a "
                "block `with ranks.start(2) as group:`"
            )
        places = []
        for name, said in HOOKS.items():
            values = [_text(each[name]) for each in seen]
            places.append({"name": name, "values": values, "said": said.format(values=_describe(values))})
        ends = {"input": "forward pre-hook", "output": "forward hook", "new weight": "weight"}
        super().__init__(
            _places=places,
            _ends={end: [_text(each[name]) for each in seen] for end, name in ends.items()},
            _layouts={"wide": _lay_out(narrow=False), "narrow": _lay_out(narrow=True)},
        )
        self._tell()

    def move(self, name: str) -> str:
        """Move the hook to a place and return the sentence about its values there.

        Raises:
            ValueError: there is no place of this name.

        """
        if name not in HOOKS:
            raise ValueError(f"there is no place {name!r}; the places are {', '.join(HOOKS)}")
        self.place = [*HOOKS].index(name)
        said: str = self._places[self.place]["said"]
        return said

    @property
    def values(self) -> tuple[str, ...]:
        """The values at the hook on rank 0 and on rank 1."""
        return tuple(self._places[self.place]["values"])

    @traitlets.validate("place")
    def _check(self, proposal: Mapping[str, Any]) -> int:
        place: int = proposal["value"]
        if place not in range(len(HOOKS)):
            raise ValueError(f"place={place}: the places are 0 to {len(HOOKS) - 1}")
        return place

    @traitlets.observe("place")
    def _tell(self, change: object = None) -> None:
        if self._places:
            said = self._places[self.place]["said"]
            self.alt = f"Two ranks are drawn as two rails, and all_reduce is a bridge between them. {said}"

    def numbers(self) -> Rows:
        """List the values at each place, in the order of firing."""
        return [
            {"hook": each["name"], **{f"rank {rank}": value for rank, value in enumerate(each["values"])}}
            for each in self._places
        ]

    # Both rails with the values at each place.
    def _still(self) -> bytes:
        return _draw(self._layouts["wide"], self._places, self._ends)


def _text(value: float) -> str:
    return f"{value:.4g}"


def _describe(values: Sequence[str]) -> str:
    first, second = values
    return f"{first} on both ranks" if first == second else f"{first} on rank 0, {second} on rank 1"


def _lay_out(*, narrow: bool) -> dict[str, Any]:
    """Return where everything stands. Rank 1 is rank 0 upside down, so that the rails back are neighbors."""
    words: dict[str, list[str]] = {}  # lines, where a name is not broken at its last space
    if narrow:
        width, font, radius = 380, 11, 13
        left, pre, bridge, post, tensor, right = 38, 106, 172, 258, 316, 342
        wide, inner, plate, names = 64, 62, 70, 214
        words = {"post-accumulate hook": ["post-", "accumulate", "hook"], "communication hook": ["comm.", "hook"]}
    else:
        width, font, radius = 830, 13, 15
        left, pre, bridge, post, tensor, right = 76, 215, 355, 560, 668, 754
        wide, inner, plate, names = 96, 110, 104, 222
    height, tall, ahead, back, band, edge = 450, 44, 80, 174, 127, 200
    points = {
        "forward pre-hook": (pre, ahead),
        "forward hook": (post, ahead),
        "tensor hook": (tensor, back),
        "post-accumulate hook": (post, back),
        "communication hook": (bridge, back),
        "step pre-hook": (pre, back),
    }

    def flip(rank: int, *way: tuple[float, float]) -> list[list[float]]:
        return [[x, height - y if rank else y] for x, y in way]

    def slot(rank: int, name: str) -> dict[str, Any]:
        (at,) = flip(rank, points[name])
        x, y = points[name]
        lines = words.get(name, name.rsplit(" ", 1))
        if y == back:  # between the frames, once for both ranks
            side = (0, "middle") if name != "communication hook" else (22, "start")
            return {"at": at, "lines": [] if rank else lines, "text": [x + side[0], names], "anchor": side[1]}
        return {"at": at, "lines": lines, "text": [x, height - 46 if rank else 36], "anchor": "middle"}

    rails: list[dict[str, Any]] = []
    boxes: list[list[Any]] = []
    for rank in (0, 1):
        to_layer = (left + wide / 2, ahead), (bridge - inner / 2 - 2, ahead)
        from_layer = (bridge + inner / 2, ahead), (right - wide / 2 - 2, ahead)
        rails += [{"way": "forward", "points": flip(rank, *way)} for way in (to_layer, from_layer)]
        turn = (right, ahead + tall / 2), (right, back), (left + wide / 2 + 2, back)
        rails.append({"way": "backward", "points": flip(rank, *turn)})
        for name, x, y, size in (
            ("input", left, ahead, wide),
            ("layer", bridge, ahead, inner),
            ("output", right, ahead, wide),
            ("new weight", left, back, wide),
        ):
            ((_, there),) = flip(rank, (x, y))
            boxes.append([rank, name, x, there, size, tall, "forward" if y == ahead else "backward"])
    stops = [*points.values()]
    ways: list[tuple[tuple[float, float], ...]] = [*pairwise(stops)]
    ways[1] = (stops[1], (right, ahead), (right, back), stops[2])
    return {
        "size": [width, height],
        "font": font,
        "radius": radius,
        "frames": [
            {"rect": [4, 4 if rank == 0 else height - edge, width - 8, edge - 4], "title": f"rank {rank}"}
            | {"at": [left, 30 if rank == 0 else height - 22]}
            for rank in (0, 1)
        ],
        "rails": rails,
        "boxes": boxes,
        "slots": [[slot(rank, name) for name in points] for rank in (0, 1)],
        "tracks": [[flip(rank, *way) for way in ways] for rank in (0, 1)],
        "meet": [flip(rank, (bridge, back), (bridge, height / 2 - 12)) for rank in (0, 1)],
        "deck": [bridge - 14, back, 28, height - 2 * back],
        "plate": [plate, 40],
        "plates": [flip(rank, *((min(x, right - plate / 2 - 8), band) for x, _ in stops)) for rank in (0, 1)],
    }


def _draw(layout: Mapping[str, Any], places: Sequence[Mapping[str, Any]], ends: Mapping[str, Sequence[str]]) -> bytes:
    sheet = Sheet.open(layout["size"])
    for each in layout["frames"]:
        sheet.panel(*each["rect"], facecolor=FRAME, edgecolor=LINE)
        sheet.write(each["at"], each["title"], weight="bold")
    sheet.rails(layout["rails"])
    x, y, w, h = layout["deck"]
    sheet.panel(x, y, w, h, facecolor=BACKWARD_SOFT, edgecolor=BACKWARD, linewidth=2, zorder=2)
    sheet.write([x + w / 2, y + h / 2], "all_reduce", color=BACKWARD, rotation=90)
    for rank, name, x, y, w, h, way in layout["boxes"]:
        sheet.box(x, y, w, h, facecolor="white", edgecolor=WAYS[way], linewidth=1.5, zorder=3)
        sheet.write([x, y - 9], name, 8.5, MUTED)
        sheet.write([x, y + 9], ends[name][rank] if name in ends else "× 5", 11)
    for rank, slots in enumerate(layout["slots"]):
        for slot, place in zip(slots, places, strict=True):
            sheet.circle(slot["at"], layout["radius"], facecolor=HOOK, edgecolor="white", zorder=4)
            sheet.write(slot["at"], place["values"][rank], 10, "white", weight="bold")
            for line, words in enumerate(slot["lines"]):
                x, y = slot["text"]
                sheet.write([x, y + 15 * line], words, 9, MUTED, ha=SIDES[slot["anchor"]], va="baseline")
    return sheet.png("the bridge")
