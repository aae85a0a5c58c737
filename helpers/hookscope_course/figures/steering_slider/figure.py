"""Move the strength of a steering vector on a slider, and read what the model writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets
from torch import Tensor, nn

from hookscope.pictures.colors import DATA, MUTED
from hookscope.pictures.picture import Rows, from_figure
from hookscope.samples import STORY_WORDS, story_tokens, story_words
from hookscope.widgets.base import assets
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay

__all__ = ["STRENGTHS", "SteeringSlider", "write_pushed"]

STRENGTHS = tuple(step / 4 for step in range(-8, 33))
"""Where the slider can stand: from −2 to 8, in quarters."""
RANDOM = 20
"""How many random vectors there are; the control is their mean."""
_ZERO = STRENGTHS.index(0)
_PUSHES = ("vector", "random")


def write_pushed(
    model: nn.Module, layer: str, vector: Tensor, tokens: Tensor, at: int | None = None, words: int = 4
) -> tuple[Tensor, Tensor]:
    """Write with the vector added at each of the strengths, all in one batch.

    Args:
        model: returns logits of the next token, (N, T, vocabulary), for tokens (N, T).
        layer: the name of the layer whose output is pushed, (N, T, width).
        vector: what is added, times the strength, (width,).
        tokens: the text, (1, T).
        at: the position that is pushed; None pushes every token, also each that was just written.
        words: how many words are written, each the most likely one.

    Returns:
        The probabilities of the first new word, (strengths, vocabulary), and the words, (strengths, words).

    """
    pushes = torch.tensor(STRENGTHS)[:, None, None] * vector.detach()

    def push(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if at is None:
            return output + pushes
        pushed = output.clone()
        pushed[:, at : at + 1] += pushes
        return pushed

    text = tokens.expand(len(STRENGTHS), -1)
    first: Tensor | None = None
    with torch.no_grad(), model.get_submodule(layer).register_forward_hook(push):
        for _ in range(words):
            likely = model(text)[:, -1].softmax(-1)
            first = likely if first is None else first
            text = torch.cat([text, likely.argmax(-1, keepdim=True)], dim=1)
    assert first is not None
    return first, text[:, tokens.shape[1] :]


class SteeringSlider(LazyFigure):
    """Multiply a steering vector by a strength from −2 to 8, and see what the model writes.

    The figure shows how likely the words are that you want, how likely no word of any group is, and the same for random
    vectors of the same length, on average. The curves appear as far as the slider has been. All runs are made by the
    model when the figure is made, with a plain forward hook.

    Args:
        model: a `story_lm()`, or another model of its vocabulary.
        layer: the name of the layer whose output is pushed.
        vector: the steering vector, (width,).
        text: the text to go on with.
        groups: two names, each with its words. The first is what you want.
        rest: the name of all other words.
        places: names, each with a position; None stands for every token.
        seed: of the random vectors.

    Attributes:
        strength: one of `STRENGTHS`.
        place: one of the names in `places`.
        explored: by place, the lowest and the highest strength where the slider has been, as indices.

    Raises:
        ValueError: there are not two groups; or a strength or place that there is not.

    Example:
        >>> from hookscope import samples
        >>> verbs = {"plural verbs": samples.stories.MANY_DO, "singular verbs": samples.stories.ONE_DOES}
        >>> slider = SteeringSlider(samples.story_lm(), "blocks.0", torch.zeros(64), "the baker near the cat", verbs)
        >>> slider.strength = 2
        >>> slider.group
        'singular verbs'

    """

    _esm, _css = assets(KIT / "scene", Path(__file__).with_suffix(""))
    replay = Replay.alone("strength", "place", "explored")

    strength: Any = traitlets.Float(0.0).tag(sync=True)
    place: Any = traitlets.Unicode("").tag(sync=True)
    explored: Any = traitlets.Dict().tag(sync=True)
    _data: Any = traitlets.Dict().tag(sync=True)  # all runs; nothing is asked of the kernel

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        vector: Tensor,
        text: str,
        groups: Mapping[str, Collection[str]],
        *,
        rest: str = "another word",
        places: Mapping[str, int | None] | None = None,
        seed: int = 0,
    ) -> None:
        if len(groups) != 2:
            raise ValueError(f"there are {len(groups)} groups. Pass two, first the one that you want")
        places = places or {"every token": None}
        vector = vector.detach()
        random = torch.randn(RANDOM, len(vector), generator=torch.Generator().manual_seed(seed)).to(vector)
        random = random * vector.norm() / random.norm(dim=1, keepdim=True)
        members = [[STORY_WORDS.index(word) for word in words] for words in groups.values()]
        tokens = story_tokens(text)
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for name, at in places.items():
            runs[name] = {}
            for kind, pushes in zip(_PUSHES, (vector[None], random), strict=True):
                found = [write_pushed(model, layer, pushed, tokens, at) for pushed in pushes]
                likely = torch.stack([each for each, _ in found]).mean(0)
                shares = torch.stack([likely[:, each].sum(-1) for each in members], 1)
                shares = torch.cat([shares, (1 - shares.sum(1, keepdim=True)).clamp(min=0)], 1)
                runs[name][kind] = [
                    {"words": story_words(row), "shares": share}
                    for row, share in zip(found[0][1], shares.double().round(decimals=4).tolist(), strict=True)
                ]
        data = {
            "strengths": list(STRENGTHS),
            "text": text,
            "names": [*groups, rest],
            "groups": {word: n for n, words in enumerate(groups.values()) for word in words},
            "places": list(places),
            "random": RANDOM,
            "runs": runs,
        }
        explored = {name: [_ZERO, _ZERO] for name in places}
        super().__init__(_data=data, place=next(iter(places)), explored=explored)
        self._describe()

    @property
    def best(self) -> float:
        """The strength at which the words that you want are most likely."""
        shares = [run["shares"][0] for run in self._data["runs"][self.place]["vector"]]
        return STRENGTHS[max(range(len(shares)), key=shares.__getitem__)]

    @property
    def written(self) -> str:
        """The text with what the model writes at the chosen strength."""
        return f"{self._data['text']} {' '.join(self._run['words'])}"

    @property
    def probability(self) -> float:
        """How likely the words are that you want, at the chosen strength."""
        return float(self._run["shares"][0])

    @property
    def group(self) -> str:
        """The group of the first word that the model writes."""
        return str(self._data["names"][self._data["groups"].get(self._run["words"][0], 2)])

    @property
    def _run(self) -> dict[str, Any]:
        run: dict[str, Any] = self._data["runs"][self.place]["vector"][STRENGTHS.index(self.strength)]
        return run

    @traitlets.validate("strength", "place")
    def _check(self, proposal: Mapping[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "strength" and value not in STRENGTHS:
            raise ValueError(f"strength={value:g}: choose from −2 to 8, in steps of 0.25")
        if name == "place" and self._data and value not in self._data["places"]:
            raise ValueError(f"place={value!r}: choose from {', '.join(map(repr, self._data['places']))}")
        return value

    @traitlets.observe("strength", "place")
    def _on_change(self, change: object) -> None:
        if not self._data or not self.explored:
            return  # while it is made
        now = STRENGTHS.index(self.strength)
        low, high = self.explored[self.place]
        self.explored = {**self.explored, self.place: [min(low, now), max(high, now)]}
        self._describe()

    def _describe(self) -> None:
        wanted, _, rest = self._data["names"]
        random = self._data["runs"][self.place]["random"][STRENGTHS.index(self.strength)]
        self.alt = (
            f"A slider for the strength, at {self.strength:g}, and four curves from −2 to 8. The model writes: "
            f"{self.written}. {_upper(wanted)}: {_percent(self.probability)}; {rest}: "
            f"{_percent(self._run['shares'][2])}; with random pushes {wanted}: {_percent(random['shares'][0])}, "
            f"{rest}: {_percent(random['shares'][2])}."
        )

    def numbers(self) -> Rows:
        """List what the model writes at the whole strengths."""
        wanted, _, rest = self._data["names"]
        runs = self._data["runs"][self.place]
        return [
            {
                "strength": f"{STRENGTHS[n]:g}",
                wanted: _percent(runs["vector"][n]["shares"][0]),
                rest: _percent(runs["vector"][n]["shares"][2]),
                f"{wanted}, random pushes": _percent(runs["random"][n]["shares"][0]),
                f"{rest}, random pushes": _percent(runs["random"][n]["shares"][2]),
                "it writes": " ".join(runs["vector"][n]["words"]),
            }
            for n in range(0, len(STRENGTHS), 4)
        ]

    # With all curves: the still image has no slider.
    def _still(self) -> bytes:
        from matplotlib.figure import Figure

        wanted, _, rest = self._data["names"]
        runs = self._data["runs"][self.place]
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes, texts = figure.subplots(2, 1, height_ratios=[2.2, 1])
        curves = (
            ("vector", 0, "-", DATA[0], wanted),
            ("vector", 2, "--", DATA[1], rest),
            ("random", 0, ":", MUTED, f"{wanted}, mean of {RANDOM} random pushes"),
            ("random", 2, ":", DATA[1], f"{rest}, mean of {RANDOM} random pushes"),
        )
        for kind, group, style, color, name in curves:
            axes.plot(STRENGTHS, [run["shares"][group] for run in runs[kind]], style, color=color, label=name)
        axes.set(xlabel="strength", ylabel="probability", xlim=(-2, 8), ylim=(-0.02, 1.02))
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        texts.set_axis_off()
        for line, strength in enumerate((0, 1, 4, 8)):
            words = " ".join(runs["vector"][STRENGTHS.index(strength)]["words"])
            look: dict[str, Any] = {"fontsize": 10, "va": "top"}
            texts.text(0, 1 - 0.28 * line, f"{strength}:  {self._data['text']} ", color=MUTED, **look)
            texts.text(0.36, 1 - 0.28 * line, words, weight="bold", **look)
        return from_figure(figure, self.alt).png


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
