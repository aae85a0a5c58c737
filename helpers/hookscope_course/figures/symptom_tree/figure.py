"""The symptom tree: click a symptom, answer one to three questions, and find the cause and the fix."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traitlets
from torch import nn

from hookscope.diagnoses import Diagnosis, diagnose
from hookscope.pictures.colors import DOOR, HOOK, INK, LINE, MUTED
from hookscope.pictures.picture import Rows, from_figure
from hookscope.pictures.words import shorten
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay
from hookscope_course.figures.symptom_tree.symptoms import PLACES, SYMPTOMS, Ask, Cure, paths

__all__ = ["SymptomTree"]


class SymptomTree(LazyFigure):
    """Go from a symptom to its cause, by answering one to three questions.

    With a model, a layer and the model's inputs, the tree runs `hookscope.diagnose`, opens the path to the first cause
    that it finds, and shows the line that mends it.

    Args:
        *path: a symptom and answers to begin with; or a model, the name of a layer, and the inputs of the model.
        kwargs: keyword arguments of the model.

    Attributes:
        path: the symptom and the answers that you clicked so far.
        diagnosis: what `hookscope.diagnose` has found; None without a model.

    Raises:
        TraitError: the path is not in the tree.

    Example:
        >>> tree = SymptomTree("My hook is not called", "yes", "no", "layer.forward(x)")
        >>> tree.cure.code
        'x = layer(x)'
        >>> SymptomTree("My hook is not called").summary()
        'My hook is not called → Is the hook registered? Ask hookscope.census(model): no, yes, the model is compiled'

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("path")

    path = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _tree: Any = traitlets.Dict().tag(sync=True)

    _found: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, *path: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        self.diagnosis: Diagnosis | None = None
        if path and isinstance(path[0], nn.Module):
            if len(path) < 2:
                raise TypeError("SymptomTree got a model without a layer. Write SymptomTree(model, 'layer', x)")
            self.diagnosis = diagnose(*path, kwargs=kwargs)
            path = _place(path[0], self.diagnosis)
        super().__init__(
            path=[*path],
            _tree={symptom: _as_dict(ask) for symptom, ask in SYMPTOMS.items()},
            _found=_as_json(self.diagnosis),
        )
        yours = f"{_in_words(self.diagnosis)} " if self.diagnosis else ""
        self.alt = f"{yours}The symptom tree leads from a symptom to its fix. " + " ".join(
            f"{symptom}: {_steps(way)}: {cure.cause} {cure.cure}" for symptom, way, cure in paths()
        )

    @traitlets.validate("path")
    def _check_path(self, proposal: dict[str, Any]) -> list[str]:
        _follow(proposal["value"])
        return list(proposal["value"])

    @property
    def cure(self) -> Cure | None:
        """The cause and the fix at the end of the path; None if a question is still open."""
        place = _follow(self.path)
        return place if isinstance(place, Cure) else None

    def summary(self) -> str:
        """Return the path and its end in words, below the findings for your model."""
        yours = f"{_in_words(self.diagnosis)}\n" if self.diagnosis else ""
        return yours + self._path_in_words()

    def _path_in_words(self) -> str:
        place = _follow(self.path)
        if place is None:
            return f"The symptom tree: {', '.join(SYMPTOMS)}"
        way = " → ".join(self.path)
        if isinstance(place, Cure):
            return f"{way} → {place.cause} {place.cure}"
        answers = ", ".join(answer for answer, _ in place.answers)
        return f"{way} → {place.question} Ask {_line(place.tool)}: {answers}"

    def numbers(self) -> Rows:
        """List what was found for your model, and all paths through the tree."""
        found = self.diagnosis.findings if self.diagnosis else ()
        yours = [
            {
                "what you see": "your model",
                "ask": each.evidence,
                "it was": each.sentence,
                "cure": "",
                "write": each.write,
            }
            for each in found
        ]
        return yours + [
            {
                "what you see": symptom,
                "ask": _steps(way),
                "it was": cure.cause,
                "cure": cure.cure,
                "write": cure.code,
            }
            for symptom, way, cure in paths()
        ]

    def _still(self) -> bytes:
        return _draw(self.alt, self.diagnosis, tuple(self.path))


def _line(code: str) -> str:
    """Write some lines of code as one line of text."""
    return code.replace(":\n    ", ": ").replace("\n", ", then ")


def _steps(way: tuple[tuple[Ask, str], ...]) -> str:
    return "; ".join(f"{ask.question} ({_line(ask.tool)}) {answer}" for ask, answer in way)


def _follow(path: list[str]) -> Ask | Cure | None:
    """Where a path leads."""
    place: Ask | Cure | None = None
    for at, step in enumerate(path):
        options: dict[str, Ask | Cure] = dict(SYMPTOMS) if at == 0 else {}
        if isinstance(place, Ask):
            options = dict(place.answers)
        if step not in options:
            raise traitlets.TraitError(f"path={path}: {step!r} is not one of {[*options]}")
        place = options[step]
    return place


def _as_dict(place: Ask | Cure) -> dict[str, Any]:
    if isinstance(place, Cure):
        return {"cause": place.cause, "cure": place.cure, "code": place.code}
    answers = [[answer, _as_dict(then)] for answer, then in place.answers]
    return {"question": place.question, "tool": place.tool, "answers": answers}


def _place(model: nn.Module, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the path to the first cause; () if the tree does not have it."""
    is_list = isinstance(model.get_submodule(diagnosis.layer), (nn.ModuleList, nn.ModuleDict))
    if diagnosis.cause == "never_called" and not is_list:
        return ()
    is_pre = diagnosis.cause == "fires" and "pre_hook" in [each.cause for each in diagnosis.findings]
    return PLACES.get("pre_hook" if is_pre else diagnosis.cause, ())


def _as_json(diagnosis: Diagnosis | None) -> dict[str, Any]:
    return {"caption": diagnosis.caption, "rows": diagnosis.rows} if diagnosis else {}


def _in_words(diagnosis: Diagnosis) -> str:
    first = diagnosis.findings[0]
    write = f" Write {_line(first.write)}" if first.write else ""
    return f"{diagnosis.caption}. {first.sentence} It shows in this: {first.evidence}.{write}"


def _draw(alt: str, diagnosis: Diagnosis | None, path: tuple[str, ...]) -> bytes:
    """The tree from left to right: the symptom, the questions with their answers, the causes.

    The findings for a model stand above it, and its path is outlined.
    """
    from matplotlib.figure import Figure

    ends = [*paths()]
    high = 2.35
    head = 1.0 if diagnosis else 0.0  # inches
    tall = 0.165 * high * len(ends) + 0.2
    figure = Figure(figsize=(11, tall + head), dpi=100)
    axes = figure.add_axes((0, 0, 1, tall / (tall + head)))
    if diagnosis:
        first = diagnosis.findings[0]
        shown = [diagnosis.caption, first.sentence, first.evidence, _line(first.write)]
        looks: tuple[dict[str, Any], ...] = ({"color": MUTED}, {"weight": "bold"}, {}, {"family": "monospace"})
        for at, (text, look) in enumerate(zip(shown, looks, strict=True)):
            y = 1 - (0.2 + 0.21 * at) / (tall + head)
            figure.text(0.01, y, shorten(text, 150), va="center", fontsize=9, parse_math=False, **look)
    axes.set(xlim=(0, 110), ylim=(high * len(ends), 0))
    axes.set_axis_off()
    ink, soft, answered = INK, MUTED, HOOK

    def middle(of: list[int]) -> float:
        return high * (of[0] + of[-1] + 1) / 2

    def line(start: tuple[float, float], end: tuple[float, float]) -> None:
        bend = start[0] + 1.2
        axes.plot([start[0], bend, bend, end[0]], [start[1], start[1], end[1], end[1]], color=LINE, linewidth=1)

    def words(x: float, y: float, text: str, columns: int, **look: Any) -> None:
        axes.text(x, y, textwrap.fill(text, columns), va="center", linespacing=1.12, **look)

    reached: dict[tuple[str, ...], list[int]] = {}  # the ends behind each step
    for at, (symptom, way, _) in enumerate(ends):
        for depth in range(len(way)):
            reached.setdefault((symptom, *(answer for _, answer in way[:depth])), []).append(at)
    for at, (symptom, way, cure) in enumerate(ends):
        own = high * (at + 0.5)
        for depth, (ask, answer) in enumerate(way):
            key = (symptom, *(each for _, each in way[:depth]))
            x, here = (19, 36, 53)[depth], middle(reached[key])
            if reached[key][0] == at:
                words(x, here, ask.question, (20, 20, 17)[depth], fontsize=7.6, color=ink)
            if depth == len(way) - 1:
                line((x + 12.5, here), (69.4, own))
                words(70, own, answer, 23, fontsize=7.2, color=answered)
            elif reached[*key, answer][0] == at:
                there = middle(reached[*key, answer])
                line((x + 12.5, here), (x + 16.6, there))
                above = 0.55 if len(answer) < 5 else 1.1  # a long one reaches over the question behind it
                words(x + 14.1, there - above, answer, 23, fontsize=7.2, color=answered)
        if reached[symptom,][0] == at:
            here = middle(reached[symptom,])
            words(1, here, symptom, 16, fontsize=9, weight="bold", color=ink)
            line((15.6, here), (18.4, here))
            if at:
                axes.axhline(high * at, color=DOOR, linewidth=1)
        yours = diagnosis is not None and path == (symptom, *(answer for _, answer in way))
        outline: dict[str, Any] = {"boxstyle": "round", "fill": False, "edgecolor": HOOK}
        mark: dict[str, Any] = {"weight": "bold", "bbox": outline} if yours else {}
        words(86, own, cure.cause, 40, fontsize=7.2, color=ink if yours else soft, **mark)
    return from_figure(figure, alt).png
