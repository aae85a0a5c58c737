"""Four sealed models with one mistake each: ask a few questions, then name the layer and the mistake."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import Tensor, nn

from hookscope import Table
from hookscope.pictures.colors import FRAME, HOOK, LINE, PAGE
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.learner_state import keep_state
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.kit.still_sheet import open_axes
from hookscope_course.figures.sealed_models.puzzles import BOXES, LAYERS, MISTAKES, QUESTIONS, Puzzle

__all__ = ["SealedModels", "ask_box", "find_layer"]

WORTH, QUESTION, WRONG = 5, 1, 2
"""The points of a box, and what a question and a wrong guess take away."""

# What is said to a guess: [is the layer right][is the mistake right]. `Puzzle.explain` adds the reason.
REPLIES = [
    ["The layer and the mistake are both wrong.", "The mistake is right, but the layer is wrong."],
    ["The layer is right, but the mistake is wrong.", "Right: {layer}, {mistake}. {points} of {worth} points."],
]


class SealedModels(LazyFigure):
    """Four sealed models: each has one mistake. A box is worth 5 points, a question costs 1, a wrong guess 2.

    The figure records the answers to the four questions with hookscope when it is created. `ask` and `accuse` do the
    same as the buttons, and `run` runs the model.

    Args:
        seed: a different seed gives different mistakes in different layers.

    Attributes:
        box: the current box, 1 to 4.
        asked: for each box, your questions in order.
        accused: for each box, your guesses, each as [layer, mistake].

    Example:
        >>> boxes = SealedModels()
        >>> boxes.score
        0
        >>> [row["layer"] for row in boxes.ask("capture").rows]
        ['stem', 'mix', 'gate', 'head']
        >>> boxes.points
        4

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("box", "asked", "accused")

    box = traitlets.Int(1, min=1, max=len(BOXES)).tag(sync=True)
    asked: Any = traitlets.List().tag(sync=True)
    accused: Any = traitlets.List().tag(sync=True)
    _boxes: Any = traitlets.List().tag(sync=True)
    _choices: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, seed: int = 33) -> None:
        chance = random.Random(seed)
        self._puzzles = [Puzzle(box, chance.choice(LAYERS), chance.choice(box.kinds)) for box in BOXES]
        super().__init__(
            asked=[[] for _ in BOXES],
            accused=[[] for _ in BOXES],
            _boxes=[_sealed(puzzle) for puzzle in self._puzzles],
            _choices={
                "layers": list(LAYERS),
                "mistakes": [mistake.name for mistake in MISTAKES],
                "questions": QUESTIONS,
                "worth": WORTH,
                "costs": [QUESTION, WRONG],
                "points": [
                    [_count_points(asked, wrong) for wrong in range(WORTH + 1)] for asked in range(len(QUESTIONS) + 1)
                ],
                "replies": REPLIES,
            },
        )
        self._tell()
        keep_state(self, "box", "asked", "accused", of=seed)

    @traitlets.validate("asked")
    def _check_asked(self, proposal: dict[str, Any]) -> list[list[str]]:
        value: list[list[str]] = proposal["value"]
        if len(value) != len(BOXES) or any(each not in QUESTIONS for box in value for each in box):
            raise traitlets.TraitError(f"asked={value}: pass a list for each box, with names of {list(QUESTIONS)}")
        return value

    @traitlets.validate("accused")
    def _check_accused(self, proposal: dict[str, Any]) -> list[list[list[str]]]:
        value: list[list[list[str]]] = proposal["value"]
        names = {mistake.name for mistake in MISTAKES}
        fits = all(len(each) == 2 and each[0] in LAYERS and each[1] in names for box in value for each in box)
        if len(value) != len(BOXES) or not fits:
            raise traitlets.TraitError(f"accused={value}: pass a list of [layer, mistake] for each box")
        return value

    def ask(self, question: str) -> Table:
        """Ask one of the four questions about the current box; it costs a point the first time.

        Raises:
            ValueError: there is no such question.

        """
        if question not in QUESTIONS:
            raise ValueError(f"there is no question {question!r}; there are {', '.join(QUESTIONS)}")
        if question not in self.asked[self.box - 1]:
            self.asked = self._added(self.asked, question)
        return Table(self._boxes[self.box - 1]["answers"][question], caption=QUESTIONS[question])

    def accuse(self, layer: str, mistake: str) -> str:
        """Guess the layer and the mistake of the current box, and return the verdict.

        Raises:
            ValueError: there is no such layer, or no such mistake.

        """
        if layer not in LAYERS:
            raise ValueError(f"there is no layer {layer!r}; there are {', '.join(LAYERS)}")
        names = [each.name for each in MISTAKES]
        if mistake not in names:
            raise ValueError(f"there is no mistake {mistake!r}; there are: {'; '.join(names)}")
        if not self._is_open(self.box):
            self.accused = self._added(self.accused, [layer, mistake])
        right = self._right(self.box)
        reply = REPLIES[int(layer == right[0])][int(mistake == right[1])]
        reason = self._boxes[self.box - 1]["reasons"][mistake][layer]
        return f"{reply.format(layer=layer, mistake=mistake, points=self.points, worth=WORTH)} {reason}".rstrip()

    def run(self, x: Tensor | None = None) -> Tensor:
        """Run the model of the current box once, with its hooks; the default input is the owner's."""
        return self._puzzles[self.box - 1].run(torch.tensor([[1.0, 2.0]]) if x is None else x)

    @property
    def points(self) -> int:
        """The points that the current box is worth now, or that it gave."""
        return self._worth(self.box)

    @property
    def score(self) -> int:
        """The points of the boxes that are solved."""
        return sum(self._worth(box) for box in range(1, len(BOXES) + 1) if self._is_open(box))

    def _added(self, lists: list[list[Any]], item: Any) -> list[list[Any]]:
        return [[*each, item] if at == self.box - 1 else each for at, each in enumerate(lists)]

    def _right(self, box: int) -> list[str]:
        puzzle = self._puzzles[box - 1]
        return [puzzle.layer, puzzle.mistake.name]

    def _is_open(self, box: int) -> bool:
        return self._right(box) in self.accused[box - 1]

    def _worth(self, box: int) -> int:
        wrong: int = sum(each != self._right(box) for each in self.accused[box - 1])
        return _count_points(len(self.asked[box - 1]), wrong)

    @traitlets.observe("box", "asked", "accused")
    def _tell(self, change: object = None) -> None:
        if not self._boxes:
            return
        told = [
            f"Box {at}, {box['title']}: {box['symptom']} {'Open' if self._is_open(at) else 'Sealed'}, "
            f"{self._worth(at)} points."
            for at, box in enumerate(self._boxes, 1)
        ]
        self.alt = " ".join(["Four sealed models.", *told])

    def summary(self) -> str:
        """Say which boxes are open, and the score."""
        opened = [str(box) for box in range(1, len(BOXES) + 1) if self._is_open(box)]
        return f"Four sealed models; open: {', '.join(opened) or 'none'}; {self.score} of {WORTH * len(BOXES)} points"

    def numbers(self) -> Rows:
        """List the boxes, with the questions and the points of each."""
        return [
            {
                "box": f"{at} {box['title']}",
                "symptom": box["symptom"],
                "asked": ", ".join(self.asked[at - 1]),
                "points": self._worth(at),
                "mistake": ": ".join(self._right(at)) if self._is_open(at) else "?",
            }
            for at, box in enumerate(self._boxes, 1)
        ]

    def _still(self) -> bytes:
        return _draw(self)


def find_layer(box: int) -> Table:
    """Return for each question whether its answer tells you the layer, with a column for each possible mistake.

    An answer tells you the layer if it differs for each of the four layers.

    Example:
        >>> find_layer(1).rows[1]
        {'question': 'record', 'it is never called': 'yes', 'it has no hook': 'yes'}

    """
    chosen = BOXES[box - 1]
    rows: list[dict[str, object]] = []
    for question in QUESTIONS:
        row: dict[str, object] = {"question": question}
        for kind, mistake in zip(chosen.kinds, chosen.mistakes, strict=True):
            answers = {str(Puzzle(chosen, layer, kind).answer(question)) for layer in LAYERS}
            row[mistake.name] = "yes" if len(answers) == len(LAYERS) else "no"
        rows.append(row)
    return Table(rows, caption=f"Box {box}: does the answer tell you the layer?")


def ask_box(seal: Callable[[nn.Module], object]) -> str:
    """Return what the four questions show of a box that you seal.

    Args:
        seal: registers hooks on a model with the layers stem, mix, gate and head.

    Example:
        >>> print(ask_box(lambda model: None).partition("record")[0].strip())
        census: Which hooks does each layer have?

    """
    answers = {question: Puzzle(BOXES[2], "", "", seal).answer(question) for question in QUESTIONS}
    return "\n\n".join(str(Table(rows, caption=f"{name}: {QUESTIONS[name]}")) for name, rows in answers.items())


def _count_points(asked: int, wrong: int) -> int:
    return max(0, WORTH - QUESTION * asked - WRONG * wrong)


def _sealed(puzzle: Puzzle) -> dict[str, Any]:
    """All that the page shows of a box, now or later."""
    layer = puzzle.layer
    return {
        "title": puzzle.box.title,
        "symptom": puzzle.symptom(),
        "answers": {question: puzzle.answer(question) for question in QUESTIONS},
        "right": [layer, puzzle.mistake.name],
        "code": puzzle.mistake.code.replace("LAYER", layer),
        "cure": puzzle.mistake.cure.replace("LAYER", layer),
        "reasons": {
            mistake.name: {
                each: "" if (each, mistake) == (layer, puzzle.mistake) else puzzle.explain(each, mistake)
                for each in LAYERS
            }
            for mistake in MISTAKES
        },
    }


def _draw(boxes: SealedModels) -> bytes:
    import textwrap

    from matplotlib.patches import FancyBboxPatch

    figure, axes = open_axes((90, 25), 10, dpi=110)
    for at, box in enumerate(boxes._boxes):
        x = 1.5 + 22.2 * at
        opened = boxes._is_open(at + 1)
        look: dict[str, Any] = {
            "facecolor": PAGE if opened else FRAME,
            "edgecolor": HOOK if opened else LINE,
        }
        axes.add_patch(FancyBboxPatch((x, 1.5), 20.5, 22, boxstyle="round,pad=0,rounding_size=1", lw=1.6, **look))
        axes.text(x + 10.2, 4, f"{at + 1} · {box['title']}", ha="center", va="center", fontsize=10, weight="bold")
        axes.text(x + 1.2, 6.4, textwrap.fill(box["symptom"], 31), va="top", fontsize=7.6, linespacing=1.35)
        seal = ": ".join(box["right"]) if opened else "sealed"
        words = textwrap.fill(f"{seal} ({boxes._worth(at + 1)} points)", 31)
        axes.text(x + 10.2, 21.4, words, ha="center", va="center", fontsize=7.6, color=HOOK)
    return from_figure(figure, boxes.alt).png
