"""A dot for each story, a line for each measure: click a dot to read its story."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets
from matplotlib.figure import Figure
from torch import Tensor

from hookscope import samples
from hookscope.pictures.colors import DATA, HOOK, INK, LINE
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay

__all__ = ["StoryDots"]

_AXIS = (-6, 11)  # figures of the same stories have one axis, so that they can be compared


class StoryDots(LazyFigure):
    """See what many stories lose without a head, and click a dot to read its story.

    Each row has a dot for each story, a line for their mean, and a ring for one story of yours.

    Args:
        tokens: the stories, int64, (stories, words).
        falls: a number for each story, by the name of the measure.
        yours: the number of your story, by the same names.

    Attributes:
        story: the chosen story, by its index; −1: none.

    Raises:
        ValueError: a row has more or fewer numbers than there are stories.

    Example:
        >>> from hookscope_course.chapters.ch15_stories import gift_stories
        >>> dots = StoryDots(gift_stories(2).tokens, {"off": torch.tensor([1.0, 2.0])}, {"off": torch.tensor([1.5])})
        >>> dots.story = 1
        >>> print(dots.sentence)
        when Mary and Olga went to the library , Olga gave the apple to … off: 2.00.

    """

    _esm, _css = assets(Path(__file__).with_suffix(""))
    replay = Replay.alone("story")

    story = traitlets.Int(-1).tag(sync=True)
    _data = traitlets.Dict().tag(sync=True)

    def __init__(self, tokens: Tensor, falls: Mapping[str, Tensor], yours: Mapping[str, Tensor], **chosen: Any) -> None:
        if wrong := [name for name, numbers in falls.items() if len(numbers) != len(tokens)]:
            raise ValueError(
                f"{wrong[0]!r} has {len(falls[wrong[0]])} numbers, but there are {len(tokens)} stories. "
                "Pass a number for each story"
            )
        self._falls, self._yours = dict(falls), {name: yours[name].item() for name in falls}
        self._texts = [" ".join(samples.story_words(row)[1:]) for row in tokens]
        numbers = [*torch.cat([*falls.values()]).tolist(), *self._yours.values()]
        self._axis = (min(_AXIS[0], *numbers), max(_AXIS[1], *numbers))
        data = {
            "names": [*falls],
            "falls": [[round(number, 3) for number in each.tolist()] for each in falls.values()],
            "yours": [round(number, 3) for number in self._yours.values()],
            "means": [round(each.mean().item(), 3) for each in falls.values()],
            "texts": self._texts,
            "axis": self._axis,
        }
        super().__init__(_data=data, **chosen)
        self._describe()

    @property
    def sentence(self) -> str:
        """The chosen story and its numbers."""
        if self.story < 0:
            return "No story is chosen."
        told = "; ".join(f"{name}: {numbers[self.story].item():.2f}" for name, numbers in self._falls.items())
        return f"{self._texts[self.story]} … {told}."

    @traitlets.validate("story")
    def _check(self, proposal: dict[str, Any]) -> int:
        story, last = int(proposal["value"]), len(self._texts) - 1
        if not -1 <= story <= last:
            raise traitlets.TraitError(f"story={story} is out of range. Pass -1 to {last}")
        return story

    @traitlets.observe("story")
    def _describe(self, change: object = None) -> None:
        if self._data:  # not while it is made
            told = " ".join(
                f"{name}: your story {self._yours[name]:.2f}, mean {numbers.mean().item():.2f}."
                for name, numbers in self._falls.items()
            )
            self.alt = f"A dot for each of {len(self._texts)} stories. {told} {self.sentence}"

    def summary(self) -> str:
        """Say how many stories there are, and which is chosen."""
        return f"{len(self._texts)} stories. {self.sentence}"

    def numbers(self) -> Rows:
        """List the mean and the ends of each row, beside your story and the chosen one."""
        rows: list[dict[str, object]] = []
        for name, numbers in self._falls.items():
            large = (numbers.abs() >= abs(self._yours[name])).float().mean().item()
            row: dict[str, object] = {
                "falls with": name,
                "your story": f"{self._yours[name]:.2f}",
                "mean": f"{numbers.mean().item():.2f}",
            }
            row |= {"lowest": f"{numbers.min().item():.2f}", "highest": f"{numbers.max().item():.2f}"}
            row |= {"at least as large as yours": f"{large:.0%}"}
            rows.append(row | ({"chosen": f"{numbers[self.story].item():.2f}"} if self.story >= 0 else {}))
        return rows

    def _still(self) -> bytes:
        figure = Figure(figsize=(8.4, 0.5 + 0.62 * len(self._falls)), layout="constrained")
        axes = figure.subplots()
        # Stories that would hide each other stand one above the other.
        places = torch.linspace(-0.28, 0.28, 9).repeat(len(self._texts) // 9 + 1)[: len(self._texts)]
        for line, (name, numbers) in enumerate(self._falls.items()):
            axes.plot(numbers, line + places, "o", color=DATA[0], alpha=0.3, markersize=4, markeredgewidth=0)
            axes.plot([numbers.mean()] * 2, [line - 0.38, line + 0.38], color=INK, linewidth=2)
            ring = {"color": "none", "markeredgecolor": DATA[1], "markeredgewidth": 2.5, "markersize": 13}
            axes.plot(self._yours[name], line, "o", **ring)  # type: ignore[arg-type]
            if self.story >= 0:
                axes.plot(numbers[self.story], line + places[self.story], "o", color=HOOK, markersize=8)
        axes.axvline(0, color=LINE, linewidth=1, zorder=0)
        axes.set(
            xlim=self._axis,
            yticks=range(len(self._falls)),
            yticklabels=[*self._falls],
            xlabel="← better without      fall of the logit difference      the model needs it →",
        )
        axes.invert_yaxis()
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return from_figure(figure, self.alt).png
