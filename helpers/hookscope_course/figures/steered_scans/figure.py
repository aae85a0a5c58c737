"""Push the output of a layer toward another class, step by step, and see which scans the model reads differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import Tensor, nn

from hookscope.pictures.colors import CHANGED_SOFT, DOOR, FORWARD_SOFT, to_rgb
from hookscope.pictures.picture import Rows, from_figure
from hookscope.preserve import preserve_model
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import gray
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay

__all__ = ["STRENGTHS", "SteeredScans", "read_pushed"]

STRENGTHS = tuple(step / 20 for step in range(21))
"""The default strengths of the player."""
_ROW = 12  # scans in a row
_COLORS = {"start": FORWARD_SOFT, "goal": CHANGED_SOFT, "other": DOOR}


def read_pushed(model: nn.Module, layer: str, push: Tensor, images: Tensor, strength: float) -> list[int]:
    """Return the class of each image while a hook adds `strength * push` to the output of the layer.

    Args:
        model: returns logits (N, classes).
        layer: the name of the layer.
        push: a tensor with the shape of the output for one image.
        images: a batch.
        strength: the factor of the push.

    Example:
        >>> from hookscope import samples
        >>> read_pushed(samples.digit_cnn(), "block3", torch.zeros(32, 7, 7), samples.digit(5), 1)
        [5]

    """

    def add_push(module: nn.Module, args: object, output: Tensor) -> Tensor:
        return output + strength * push

    hooked = model.get_submodule(layer)
    with preserve_model(model), torch.no_grad(), hooked.register_forward_hook(add_push):
        model.eval()
        return list(map(int, model(images).argmax(dim=1)))


class SteeredScans(LazyFigure):
    """Make a push stronger and watch which scans turn.

    The background of each scan shows what the model reads: blue is the digit at strength 0, pink is the goal of the
    push, gray is any other digit. A marked scan that reaches the goal has a green frame and a check mark. The figure
    makes all runs when it is created, with a plain forward hook.

    Args:
        model: returns logits (N, classes).
        layer: the name of the layer with the hook.
        pushes: tensors by name, each with the shape of the output for one image.
        images: gray scans, (N, 1, H, W).
        goal: the class that the first push leads to.
        strengths: the factor of the push at each step, starting at 0.
        marked: the indices of the scans to repair; they have a frame, and the others are the control.

    Attributes:
        push: the name of the chosen push.
        step: the index of the chosen strength in `strengths`.

    Raises:
        ValueError: `pushes` is empty, or the chosen push or step does not exist.

    Example:
        >>> from hookscope import samples
        >>> figure = SteeredScans(samples.digit_cnn(), "block3", {"none": torch.zeros(32, 7, 7)}, samples.digit(5), 8)
        >>> figure.step = 2
        >>> figure.read
        [5]

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("push", "step")

    push: Any = traitlets.Unicode("").tag(sync=True)
    step: Any = traitlets.Int(0).tag(sync=True)
    _data: Any = traitlets.Dict().tag(sync=True)  # all runs; nothing is asked of the kernel

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        pushes: Mapping[str, Tensor],
        images: Tensor,
        goal: int,
        *,
        strengths: Sequence[float] = STRENGTHS,
        marked: Collection[int] = (),
    ) -> None:
        if not pushes:
            raise ValueError("there is no push. Pass at least one tensor with its name")
        reads = {
            name: [read_pushed(model, layer, push, images, strength) for strength in strengths]
            for name, push in pushes.items()
        }
        data = {
            "scans": [gray(1 - image, 0, 1) for image in images],
            "strengths": list(strengths),
            "pushes": list(pushes),
            "reads": reads,
            "goal": goal,
            "layer": layer,
            "marked": sorted(marked),
        }
        self._images = images.detach().clone()
        super().__init__(_data=data, push=next(iter(pushes)))
        self._describe()

    @property
    def strength(self) -> float:
        """The factor of the push."""
        return float(self._data["strengths"][self.step])

    @property
    def read(self) -> list[int]:
        """The class of each scan with the chosen push."""
        return list(self._data["reads"][self.push][self.step])

    def count(self, push: str, strength: float) -> int:
        """Return how many scans the model reads as the goal."""
        step = self._data["strengths"].index(strength)
        return int(self._data["reads"][push][step].count(self._data["goal"]))

    @traitlets.validate("push", "step")
    def _check(self, proposal: Mapping[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "step" and self._data and not 0 <= value < len(self._data["strengths"]):
            raise ValueError(f"step={value}: choose from 0 to {len(self._data['strengths']) - 1}")
        if name == "push" and self._data and value not in self._data["pushes"]:
            raise ValueError(f"push={value!r}: choose from {', '.join(map(repr, self._data['pushes']))}")
        return value

    @traitlets.observe("push", "step")
    def _on_change(self, change: object) -> None:
        if self._data and self.push:
            self._describe()

    def _describe(self) -> None:
        self.alt = (
            f"{len(self._images)} scans. With {self.strength:g} times the push {self.push!r} on {self._data['layer']}, "
            f"they are read as {_counts(self.read)}.{self._score()}"
        )

    def _score(self) -> str:
        marked, others = self._data["marked"], len(self._images) - len(self._data["marked"])
        if not marked:
            return ""
        start = self._data["reads"][self._data["pushes"][0]][0]
        repaired = sum(self.read[at] == self._data["goal"] for at in marked)
        changed = sum(self.read[at] != start[at] for at in range(len(start)) if at not in marked)
        return f" Repaired: {repaired} of {len(marked)}. Changed: {changed} of the other {others}."

    def numbers(self) -> Rows:
        """List the classes at some strengths, for each push."""
        return [
            {"push": name, "strength": f"{self._data['strengths'][step]:g}", "read as": _counts(reads[step])}
            for name, reads in self._data["reads"].items()
            for step in self._shown_steps()
        ]

    def _shown_steps(self) -> list[int]:
        """Return six steps, the first and the last among them."""
        last = len(self._data["strengths"]) - 1
        return sorted({round(last * part / 5) for part in range(6)})

    # The first push at some strengths, and all others at the largest.
    def _still(self) -> bytes:
        from matplotlib.figure import Figure

        first, *others = self._data["pushes"]
        steps = self._shown_steps()
        rows = [(first, step) for step in steps] + [(name, steps[-1]) for name in others]
        shown = range(min(_ROW, len(self._images)))
        figure = Figure(figsize=(0.72 * len(shown) + 1.6, 0.92 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), len(shown), squeeze=False)
        start = self._data["reads"][first][0]
        for line, (name, step) in zip(grid, rows, strict=True):
            strength = self._data["strengths"][step]
            line[0].set_ylabel(f"{name}, {strength:g}", rotation=0, ha="right", va="center", fontsize=8)
            for at, axes in zip(shown, line, strict=True):
                read = self._data["reads"][name][step][at]
                kind = "start" if read == start[at] else "goal" if read == self._data["goal"] else "other"
                paper = torch.tensor(to_rgb(_COLORS[kind]))
                ink = self._images[at, 0].cpu()[..., None]
                axes.imshow((paper * (1 - ink)).numpy())
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(str(read), fontsize=9, labelpad=1, weight="bold" if read != start[at] else "normal")
                axes.spines[:].set_linewidth(3 if at in self._data["marked"] else 0.5)
        return from_figure(figure, self.alt).png


def _counts(read: list[int]) -> str:
    """Say how many scans are read as which digit, the most frequent first."""
    return ", ".join(f"{digit} ({count})" for digit, count in Counter(read).most_common())
