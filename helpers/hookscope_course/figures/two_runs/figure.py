"""Two runs and one arrow: carry a value from a clean run into a corrupted one, and find the cells that matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import Tensor, nn

from hookscope import SweepOptions, capture, samples, sweep
from hookscope.pictures.colors import FORWARD, HOOK, INK, LINE, MUTED
from hookscope.pictures.palette import COOLWARM
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import open_axes

__all__ = ["MEASURES", "TwoRuns"]

CLEAN = "when Mary and Leo went to the park , Leo gave the ball to"
CORRUPTED = "when Mary and Leo went to the park , Mary gave the ball to"
LAYERS = (
    "tokens", "blocks.0.attn", "blocks.0.mlp", "blocks.0", "blocks.1.attn", "blocks.1.mlp", "blocks.1",
)  # fmt: skip
MEASURES = ("probability", "logits")


class TwoRuns(LazyFigure):
    """Carry one value from a clean run into a corrupted one, and see what the model answers then.

    Each box is what one layer returned at one position. The numbers are those of `hookscope.sweep`, computed when the
    figure is made. A cell is red if the answer of the corrupted run becomes that of the clean one. From Python, `patch`
    does what a click does.

    Args:
        model: a `samples.StoryLM`.
        clean: a text. The answer is the word that the model says next.
        corrupted: a text with as many words and another answer.
        layers: the names of the layers, from the first to the last.

    Attributes:
        tried: the cells that were patched, in order, each as [row, position]. They are counted.
        at: the cell that is patched now; empty if none is.
        shown: whether all cells show their color.
        measure: what the colors show then: "probability", or "logits" for the logit difference of the two answers.

    Raises:
        ValueError: the two texts have different lengths, or the same answer.

    Example:
        >>> runs = TwoRuns()
        >>> runs.patch("tokens", 10)
        "tokens at 10 'Leo': the answer becomes Mary, 0.98."
        >>> runs
        Two runs: Mary (0.98) and Leo (0.98); 1 patch, 1 of 7 red boxes found

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("tried", "at", "shown", "measure")

    tried: Any = traitlets.List().tag(sync=True)
    at: Any = traitlets.List().tag(sync=True)
    shown: Any = traitlets.Bool(False).tag(sync=True)
    measure: Any = traitlets.Enum(MEASURES, "probability").tag(sync=True)
    _fixed: Any = traitlets.Dict().tag(sync=True)
    _cells: Any = traitlets.List().tag(sync=True)  # rows of cells

    def __init__(
        self,
        model: nn.Module | None = None,
        clean: str = CLEAN,
        corrupted: str = CORRUPTED,
        layers: Sequence[str] = LAYERS,
    ) -> None:
        model = samples.story_lm() if model is None else model
        runs = [_Run(model, text, layers) for text in (clean, corrupted)]
        good, bad = runs
        if good.tokens.shape != bad.tokens.shape:
            counts = good.tokens.shape[1] - 1, bad.tokens.shape[1] - 1
            raise ValueError(f"the texts have {counts[0]} and {counts[1]} words. Pass two texts of the same length")
        if good.answer == bad.answer:
            raise ValueError(f"the answer to both texts is {good.answer!r}. Pass two texts with different answers")
        self._runs, self._layers = runs, tuple(layers)
        answers = [good.answer, bad.answer]
        super().__init__(
            _fixed={
                "layers": list(layers),
                "words": [good.words, bad.words],
                "differ": [at for at, pair in enumerate(zip(good.words, bad.words, strict=True)) if pair[0] != pair[1]],
                "answers": answers,
                "runs": [run.measured(answers) for run in runs],
            },
            _cells=_sweep_all(model, good, bad, layers),
        )
        self._tell()

    @traitlets.validate("tried", "at")
    def _check_cells(self, proposal: dict[str, Any]) -> list[Any]:
        value = [*proposal["value"]]
        is_one = proposal["trait"].name == "at"
        rows, columns = len(self._layers), self._runs[0].tokens.shape[1]
        for cell in [value] if is_one and value else value if not is_one else []:
            fits = isinstance(cell, list | tuple) and len(cell) == 2
            if not fits or cell[0] not in range(rows) or cell[1] not in range(columns):
                raise traitlets.TraitError(f"{cell} is no cell: pass [row, position], below {rows} and {columns}")
        return value

    def patch(self, layer: str, position: int) -> str:
        """Patch one cell, and return what happens; a cell that is tried for the first time is counted.

        Raises:
            ValueError: the figure has no such layer or position.

        """
        columns = self._runs[0].tokens.shape[1]
        if layer not in self._layers:
            raise ValueError(f"there is no layer {layer!r} in the figure; there are {', '.join(self._layers)}")
        if position not in range(columns):
            raise ValueError(f"there is no position {position}: there are {columns}, counted from 0")
        cell = [self._layers.index(layer), position]
        with self.hold_sync():
            if not self.shown and cell not in self.tried:
                self.tried = [*self.tried, cell]
            self.at = cell
        said: str = self._cell(cell)["said"]
        return said

    @property
    def red(self) -> list[tuple[str, int]]:
        """The red cells, each as (layer, position), from the first layer to the last."""
        return [
            (layer, at)
            for layer, row in zip(self._layers, self._cells, strict=True)
            for at, cell in enumerate(row)
            if cell["red"]
        ]

    @property
    def found(self) -> int:
        """How many of the red cells were patched."""
        return sum(self._cell(cell)["red"] for cell in self.tried)

    def _cell(self, cell: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = self._cells[cell[0]][cell[1]]
        return found

    @traitlets.observe("tried", "at", "shown", "measure")
    def _tell(self, change: object = None) -> None:
        if not self._cells:
            return
        texts = [f"{kind} run: {run.text} → {run.answer}, {run.chance}." for kind, run in self._named()]
        size = f"{len(self._layers)} layers by {len(self._cells[0])} positions"
        score = f"{self._score()}." + (" All cells show their color." if self.shown else "")
        arrow = f"An arrow goes from the clean to the corrupted run: {self._cell(self._arrow)['said']}"
        self.alt = f"Two runs of a model as grids, {size}. {' '.join(texts)} {arrow} {score}"

    def _named(self) -> Any:
        return zip(("Clean", "Corrupted"), self._runs, strict=True)

    @property
    def _arrow(self) -> Any:
        """The cell of the still picture: the one that is patched, or the first word that differs."""
        return self.at or [0, self._fixed["differ"][0]]

    def _score(self) -> str:
        patches = len(self.tried)
        return f"{patches} patch{'' if patches == 1 else 'es'}, {self.found} of {len(self.red)} red boxes found"

    def summary(self) -> str:
        """Say what both runs answer, and the score."""
        good, bad = self._runs
        return f"Two runs: {good.answer} ({good.chance}) and {bad.answer} ({bad.chance}); {self._score()}"

    def numbers(self) -> Rows:
        """List both runs, and the cells that were patched; once all are shown, every cell that has an effect."""
        answers = self._fixed["answers"]

        def row(what: str, p: Sequence[str], logits: float) -> dict[str, object]:
            return {"what": what, **dict(zip(answers, p, strict=True)), "logit difference": f"{logits:.2f}"}

        runs = zip(("clean run", "corrupted run"), self._fixed["runs"], strict=True)
        rows = [row(kind, each["p"], each["logits"]) for kind, each in runs]
        cells = [[at, column] for at, line in enumerate(self._cells) for column in range(len(line))]
        listed = [cell for cell in cells if not self._cell(cell)["same"]] if self.shown else self.tried
        for cell in listed or [self._arrow]:
            found = self._cell(cell)
            rows.append(row(f"patch {found['name']}", found["p"], found["logits"]))
        return rows

    def _still(self) -> bytes:
        return _draw(self)


class _Run:
    """One text: its tokens and words, what each layer returns, and the answer."""

    def __init__(self, model: nn.Module, text: str, layers: Sequence[str]) -> None:
        self.text, self.tokens = text, samples.story_tokens(text)
        self.words = samples.story_words(self.tokens)
        with torch.no_grad(), capture(model, *layers) as seen:
            self.logits: Tensor = model(self.tokens)[0, -1].double()
        self.outputs = [seen[layer].output for layer in layers]
        self.answer = samples.STORY_WORDS[int(self.logits.argmax())]
        self.chance = _short(self.logits.softmax(-1).max().item())

    def measured(self, answers: Sequence[str]) -> dict[str, Any]:
        """What both answers have in this run, as `_describe` says it of a cell."""
        first, second = (self.logits[_token(answer)] for answer in answers)
        chances = [float((each - self.logits.logsumexp(-1)).exp()) for each in (first, second)]
        return _measures(chances, float(first - second))


def _token(word: str) -> int:
    return samples.STORY_WORDS.index(word)


def _short(value: float) -> str:
    """A probability with two digits behind the point, or three if it is small."""
    return f"{value:.2f}" if value >= 0.01 else f"{value:.3f}"


def _measures(chances: Sequence[float], gap: float) -> dict[str, Any]:
    """The probabilities of both answers, in words and as the length of a bar, and their logit difference."""
    bars = [round(chance, 4) for chance in chances]
    return {"p": [_short(chance) for chance in chances], "bars": bars, "logits": round(gap, 4)}


def _sweep_all(model: nn.Module, good: _Run, bad: _Run, layers: Sequence[str]) -> list[list[dict[str, Any]]]:
    """All that the page shows of each cell, now or later."""
    answers = good.answer, bad.answer
    first, second = map(_token, answers)
    metrics = {
        first: lambda logits: logits[0, -1].softmax(-1)[first],
        second: lambda logits: logits[0, -1].softmax(-1)[second],
        "gap": lambda logits: logits[0, -1, first] - logits[0, -1, second],
        "says": lambda logits: logits[0, -1].argmax(),
    }
    options = SweepOptions(tokens=bad.words, progress=False)
    swept = {
        name: sweep(
            model,
            bad.tokens,
            layers=list(layers),
            source=good.tokens,
            metric=metric,
            positions=range(len(bad.words)),
            options=options,
        )
        for name, metric in metrics.items()
    }
    shares = {}
    for measure, name in zip(MEASURES, (first, "gap"), strict=True):
        found = swept[name]
        shares[measure] = found.changes / ((found.source or 0.0) - found.baseline)
    return [
        [
            _describe(
                f"{layer} at {at} {word!r}",
                answers,
                [float(swept[token].values[row, at]) for token in (first, second)],
                float(swept["gap"].values[row, at]),
                [float(shares[measure][row, at]) for measure in MEASURES],
                says=samples.STORY_WORDS[int(swept["says"].values[row, at])],
                same=torch.equal(good.outputs[row][0, at], bad.outputs[row][0, at]),
            )
            for at, word in enumerate(good.words)
        ]
        for row, layer in enumerate(layers)
    ]


def _describe(
    name: str,
    answers: Sequence[str],
    chances: Sequence[float],
    gap: float,
    shares: Sequence[float],
    *,
    says: str,
    same: bool,
) -> dict[str, Any]:
    good, bad = answers
    if same:
        said = "both runs have the same value there, so nothing changes."
    elif says == good:
        said = f"the answer becomes {good}, {_short(chances[0])}."
    else:
        said = f"the answer {'stays' if says == bad else 'becomes'} {says}; {good} has {_short(chances[0])}."
    return {
        "name": name,
        "said": f"{name}: {said}",
        **_measures(chances, gap),
        "shares": [round(share, 3) for share in shares],
        "same": same,
        "red": says == good,
    }


def _mix(share: float) -> tuple[float, float, float]:
    """White at 0, red at 1, blue at -1."""
    end = COOLWARM[-1 if share >= 0 else 0] / 255
    part = min(abs(share), 1.0)
    red, green, blue = (1 - part * (1 - float(value)) for value in end)
    return red, green, blue


def _draw(figure_: TwoRuns) -> bytes:
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    fixed, cells, arrow = figure_._fixed, figure_._cells, figure_._arrow
    rows, columns = len(cells), len(cells[0])
    side, gap, high, head = 4.6, 2.4, 1.25, 4.4
    width, height = side + 2 * columns + gap + 0.4, head + high * rows + 3.4
    figure, axes = open_axes((width, height), 1 / 0.265, dpi=120)
    left = [side, side + columns + gap]
    centers = []
    for at, (kind, run) in enumerate(figure_._named()):
        says = f"{kind} run: the answer is {run.answer}, {run.chance}"
        axes.text(left[at] + columns / 2, 0.7, says, ha="center", va="center", fontsize=9.5, color=INK)
        for column, word in enumerate(fixed["words"][at]):
            look: dict[str, Any] = {"weight": "bold", "color": HOOK} if column in fixed["differ"] else {"color": MUTED}
            x = left[at] + column + 0.5
            axes.text(x, head - 0.15, f"{column} {word}", rotation=90, ha="center", va="bottom", fontsize=7.6, **look)
        for row in range(rows):
            y = head + high * (row + 0.5)
            if not at:
                name = fixed["layers"][row]
                axes.text(side - 0.25, y, name, ha="right", va="center", fontsize=8.2, color=INK)
            for column in range(columns):
                cell, is_here = cells[row][column], [row, column] == [*arrow]
                known = at and (figure_.shown or [row, column] in figure_.tried or is_here)
                share = cell["shares"][MEASURES.index(figure_.measure)] if known else 0.0
                x = left[at] + column + 0.5
                edge: dict[str, Any] = {"edgecolor": HOOK if is_here else FORWARD, "linewidth": 2.4 if is_here else 0.8}
                style = "round,pad=0,rounding_size=0.18"
                box = FancyBboxPatch((x - 0.4, y - 0.48), 0.8, 0.96, boxstyle=style, facecolor=_mix(share), **edge)
                axes.add_patch(box)
                if is_here:
                    centers.append((x, y))
    tip: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14, "color": HOOK, "linewidth": 2, "zorder": 5}
    axes.add_patch(FancyArrowPatch(*centers, connectionstyle="arc3,rad=-0.18", **tip))
    found = figure_._cell(arrow)
    for at, (word, chance) in enumerate(zip(fixed["answers"], found["bars"], strict=True)):
        y = head + high * rows + 1.0 + 1.2 * at
        axes.text(side - 0.25, y, word, ha="right", va="center", fontsize=9, color=INK)
        axes.barh(y, columns * chance, left=side, height=0.8, color=(_mix(1), LINE)[at])
        axes.barh(y, columns, left=side, height=0.8, facecolor="none", edgecolor=LINE, linewidth=0.8)
        axes.text(side + columns + 0.3, y, found["p"][at], ha="left", va="center", fontsize=9, color=INK)
    words = found["said"].partition(": ")[0]
    axes.text(
        left[1] + 1.6,
        head + high * rows + 1.6,
        f"with {words}\nfrom the clean run",
        va="center",
        fontsize=9,
        color=HOOK,
    )
    return from_figure(figure, figure_.alt).png
