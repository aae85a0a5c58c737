"""Cover a digit with the smallest square that makes a model read another one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import traitlets
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from hookscope.pictures.colors import DARK
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import a, compare_scores, draw_bars, gray, percent
from hookscope_course.figures.kit.digit_passes import DigitModel, DigitPass, list_scores
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.occlusion import STEP, count_reads, cover_source, run_covered, sweep

__all__ = ["FoolingSquare"]

_LARGEST = 10  # the largest square that a hint tries everywhere; all sizes take seconds


class FoolingSquare(LazyFigure):
    """Cover part of a digit by a pre-hook, and make the model read the goal with the smallest square.

    Each change runs the model twice, without the hook and with it. What the page shows as code is the hook that runs.

    Args:
        model: returns scores of shape (1, classes).
        digit: one gray image (1, 1, H, W).
        goal: the digit that the model should read.

    Attributes:
        row: the first row of the square.
        column: the first column of the square.
        size: the side of the square; 0 covers nothing. The square is always inside the image.
        goal: the digit that the model should read.
        mapped: show what the model reads with this square in each of many places.
        hinted: say how small the square can be.
        tries: how many different squares the model has read.
        best: for each digit, the side of the smallest square that has made the model read it.

    Raises:
        ValueError: the digit has another shape.

    Example:
        >>> from hookscope import samples
        >>> figure = FoolingSquare(samples.digit_cnn(), samples.digit(9), goal=4)
        >>> figure.size, figure.row, figure.column = 5, 4, 13
        >>> print(figure.sentence)
        A 5 × 5 square covers 25 pixels: the model reads a 4 (50.2 %).

    """

    _esm, _css = assets(KIT / "digits", Path(__file__).with_suffix(""))

    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    size = traitlets.Int(0).tag(sync=True)
    goal = traitlets.Int(4).tag(sync=True)
    mapped = traitlets.Bool(False).tag(sync=True)
    hinted = traitlets.Bool(False).tag(sync=True)
    tries = traitlets.Int(0).tag(sync=True)
    best = traitlets.Dict().tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)
    _height = traitlets.Int(0).tag(sync=True)
    _width = traitlets.Int(0).tag(sync=True)
    _goals = traitlets.List(traitlets.Int()).tag(sync=True)
    _map = traitlets.Dict().tag(sync=True)  # the size, the step and the cells
    _shown = traitlets.Dict().tag(sync=True)  # all else that changes

    def __init__(self, model: nn.Module, digit: Tensor, goal: int = 4) -> None:
        self._model = DigitModel(model, digit, "")
        self._tried: set[tuple[int, int, int]] = set()
        self._reads: dict[int, Counter[int]] = {}  # what is read in all places, for each size
        before = self._model.run()
        goals = [n for n in range(len(before.probabilities)) if n != before.read]
        if goal not in goals:
            raise ValueError(f"goal={goal}: the model reads {a(before.read)} already. Pass one of {goals}")
        height, width = digit.shape[-2:]
        super().__init__(_height=height, _width=width, _goals=goals, goal=goal)
        self._draw(before, before)

    @property
    def sentence(self) -> str:
        """What the hook has just done to the reading."""
        return str(self._shown["sentence"])

    @property
    def received(self) -> Tensor:
        """What the model received from the hook."""
        return self._after.received

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the scores with the hook, (classes,)."""
        return self._after.probabilities

    @traitlets.validate("size", "row", "column", "goal")
    def _check(self, proposal: dict[str, Any]) -> int:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "goal":
            if value not in self._goals:
                raise traitlets.TraitError(f"goal={value}: pass one of {self._goals}")
            return int(value)
        most = (
            min(self._height, self._width) if name == "size" else {"row": self._height, "column": self._width}[name] - 1
        )
        if not 0 <= value <= most:
            raise traitlets.TraitError(f"{name}={value} is out of range. Pass 0 to {most}")
        return int(value)

    @traitlets.observe("size", "row", "column", "goal", "mapped", "hinted")
    @show_errors
    def _changed(self, change: object) -> None:
        # A larger square, or one beyond the edge, moves back into the image.
        row, column = min(self.row, self._height - self.size), min(self.column, self._width - self.size)
        if (row, column) != (self.row, self.column):
            with self.hold_trait_notifications():
                self.row, self.column = row, column
            return  # that has drawn it
        self._draw(self._model.run(), run_covered(self._model, row, column, self.size))

    def _draw(self, before: DigitPass, after: DigitPass) -> None:
        self._before, self._after = before, after
        square = (self.size, self.row, self.column)
        with self.hold_sync():
            if self.size:
                self._tried.add(square)
                known = self.best.get(str(after.read), self.size)
                self.best = {**self.best, str(after.read): min(known, self.size)}
            self.tries = len(self._tried)
            self.code = (
                f"{cover_source(self.row, self.column, self.size)}\n\n"
                "with model.register_forward_pre_hook(cover):\n    scores = model(digit)"
            )
            side = self.size or 7
            if self.mapped and self._map.get("size") != side:
                self._map = {"size": side, "step": STEP, "cells": sweep(self._model, side)}
            self._shown = {
                "sentence": self._sentence(),
                "score": self._score(),
                "hint": self._hint() if self.hinted else "",
                "src": gray(after.received, 0, 1),
                "rows": list_scores(before, after),
                "read": after.read,
                "was": before.read,
            }
            self.alt = f"{a(before.read).capitalize()} and ten bars of the scores. {self.sentence} {self._score()}"

    def _sentence(self) -> str:
        was, now = self._before, self._after
        share = percent(float(now.probabilities.max()))
        if not self.size:
            return f"Nothing is covered: the model reads {a(now.read)} ({share})."
        still = "still reads" if now.read == was.read else "reads"
        article = "An" if self.size in (8, 11, 18) else "A"
        covered = f"{article} {self.size} × {self.size} square covers {self.size**2} pixels"
        return f"{covered}: the model {still} {a(now.read)} ({share})."

    def _score(self) -> str:
        best = self.best.get(str(self.goal))
        found = f"{best} × {best}, {best**2} pixels" if best else "none yet"
        return f"Squares tried: {self.tries}. Smallest that gives {a(self.goal)}: {found}."

    def _hint(self) -> str:
        for size in range(1, _LARGEST + 1):
            if size not in self._reads:
                self._reads[size] = count_reads(self._model, size)
            if places := self._reads[size][self.goal]:
                where = "only one place" if places == 1 else f"{places} places"
                return f"It can be as small as {size} × {size}, in {where} of {self._reads[size].total()}."
        return f"No square up to {_LARGEST} × {_LARGEST} makes it read {a(self.goal)}."

    def numbers(self) -> Rows:
        """List the probability of every digit, without and with the hook."""
        return compare_scores(self._shown["rows"])

    def _still(self) -> bytes:
        figure = Figure(figsize=(8, 3.8))
        image, bars = figure.subplots(1, 2)
        image.imshow(self._after.received[0, 0].cpu().numpy(), cmap="gray", vmin=0, vmax=1)
        image.add_patch(
            Rectangle(
                (self.column - 0.5, self.row - 0.5), self.size, self.size, fill=False, edgecolor=DARK["hook"], lw=3
            )
        )
        image.set(xticks=[], yticks=[])
        image.set_title(f"reads {self._after.read}")
        draw_bars(bars, [(name, was, share) for name, share, was in self._shown["rows"]])
        return from_figure(figure, self.alt).png
