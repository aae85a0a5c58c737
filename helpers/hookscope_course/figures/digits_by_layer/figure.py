"""See after which layer digits lie with their class: a scatter with a slider for the layer, and a chart over depth."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from hookscope import capture
from hookscope.layers.find import Which
from hookscope.pictures.colors import LINE, RIGHT, WRONG
from hookscope.pictures.picture import Rows, from_figure
from hookscope.preserve import preserve_model
from hookscope.widgets.base import assets
from hookscope_course.figures.kit.digit_images import gray
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import Replay

__all__ = ["DigitsByLayer", "class_centers", "pull"]

_CLASSES = 10
_ANGLES = 2 * math.pi * torch.arange(_CLASSES) / _CLASSES
_ANCHORS = torch.stack(
    [_ANGLES.sin(), -_ANGLES.cos()], 1
).double()  # clockwise from the top, as on a clock; y runs down
_THOUSANDTHS = 1000  # positions travel as integers
_COLORS = {"right": RIGHT, "wrong": WRONG, "other": LINE}


def class_centers(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean features of each digit, (10, F)."""
    return torch.stack([features[labels == digit].mean(0) for digit in range(_CLASSES)])


def pull(known: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Return how strongly each asked digit is pulled to each class, (N, 10); a row sums to 1.

    The pull falls with the squared distance to the center of the class. How fast it falls is fitted to the known
    digits, each held against centers that were made without it, so that the pull is as sure as it is right.

    Args:
        known: features of the digits that make the centers, (M, F).
        labels: their classes, at least two digits of each.
        asked: features of the digits to place, (N, F).

    """
    centers, rows = class_centers(known, labels), torch.arange(len(known))
    distances = _squared_distances(known, centers)
    unit = distances[rows, labels].mean().clamp(min=1e-30)
    many = torch.bincount(labels, minlength=_CLASSES).double()
    distances[rows, labels] *= ((many / (many - 1)) ** 2)[labels]  # the own digit left out of the center
    rates = torch.logspace(-3, 3, 61).double() / unit
    shares = (-distances * rates[:, None, None]).log_softmax(2)  # all rates at once: many small steps are slow
    rate = rates[shares[:, rows, labels].mean(1).argmax()]
    return (-_squared_distances(asked, centers) * rate).softmax(1)


def _squared_distances(features: Tensor, centers: Tensor) -> Tensor:
    """Return (N, 10), without the shortcut of `cdist` by a product, which rounds where distances are small."""
    return torch.cdist(features, centers, compute_mode="donot_use_mm_for_euclid_dist").double() ** 2


class DigitsByLayer(LazyFigure):
    """Move through the layers, and see where digits lie between the centers of the ten classes.

    Each layer has ten centers: the mean feature of each class, made from the known digits. The figure lays the centers
    on a circle. A digit that is not among the known ones lies between them, the nearer to a center, the stronger it is
    pulled there (see `pull`). It counts as right if the nearest center is that of its class.

    Args:
        networks: names and models. All have the same layers, and get images (N, 1, H, W).
        feature: what is compared, a function that makes (N, F) of an output (N, …).
        known: images and labels that make the centers.
        asked: images and labels of the digits that are placed.
        layers: which layers, as `find_layers` takes them.

    Attributes:
        depth: which layer; 0 stands for the pixels, before any layer.
        network: the name of one of the networks.
        digit: the class that is marked.
        picked: one of the asked digits, by its index; −1: none.

    Example:
        >>> from hookscope import samples
        >>> train, test = samples.digits("train"), samples.digits("test")
        >>> known = train.images[:360], train.labels[:360]
        >>> figure = DigitsByLayer({"trained": samples.digit_cnn()}, lambda output: output.mean((2, 3)), known, test)
        >>> figure.depth = figure.names.index("block3.relu")
        >>> print(figure.sentence)
        After block3.relu, 239 of 360 digits are nearest to the center of their class. Of the 29 fives, 24 are.

    """

    _esm, _css = assets(Path(__file__).with_suffix(""))
    replay = Replay.alone("depth", "network", "digit", "picked")

    depth = traitlets.Int(0).tag(sync=True)
    network = traitlets.Unicode("").tag(sync=True)
    digit = traitlets.Int(5).tag(sync=True)
    picked = traitlets.Int(-1).tag(sync=True)
    _data = traitlets.Dict().tag(sync=True)  # all that the page needs; nothing else is asked of the kernel

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        feature: Callable[[Tensor], Tensor],
        known: tuple[Tensor, Tensor],
        asked: tuple[Tensor, Tensor],
        layers: Which = "block*.*",
        **chosen: Any,
    ) -> None:
        images, self._labels = asked
        self.names: list[str] = []
        self._pulls: dict[str, list[Tensor]] = {}
        for name, model in networks.items():
            learned, found = (_features(model, each, layers, feature) for each in (known[0], images))
            if self.names and [*found] != self.names:
                raise ValueError(f"{name!r} has the layers {[*found]}, not {self.names}. Pass networks that are alike")
            self.names = [*found]
            self._pulls[name] = [pull(learned[layer], known[1], found[layer]) for layer in found]
        self.networks = [*networks]
        strip = images[:, 0].reshape(-1, images.shape[-1])  # the digits below one another
        data = {
            "names": self.names,
            "networks": self.networks,
            "labels": _digits(self._labels),
            "right": self.right,
            "images": gray(strip, 0, 1),
            "places": {name: [_packed(each @ _ANCHORS) for each in pulls] for name, pulls in self._pulls.items()},
            "reads": {name: [_digits(each.argmax(1)) for each in pulls] for name, pulls in self._pulls.items()},
        }
        super().__init__(_data=data, network=self.networks[0], **chosen)
        self._describe()

    @property
    def right(self) -> dict[str, list[int]]:
        """For each network, how many digits are right, in the pixels and after each layer."""
        return {
            name: [int((each.argmax(1) == self._labels).sum()) for each in pulls] for name, pulls in self._pulls.items()
        }

    @property
    def pulls(self) -> Tensor:
        """How strongly each digit is pulled to each class at the chosen depth, (N, 10)."""
        return self._pulls[self.network][self.depth]

    @property
    def sentence(self) -> str:
        """How many digits are right at the chosen depth."""
        reads, mine = self.pulls.argmax(1), self._labels == self.digit
        where = f"After {self.names[self.depth]}" if self.depth else "In the pixels, before any layer"
        of = f" of the {self.network} network" if self.depth and len(self.networks) > 1 else ""
        right, total = int((reads == self._labels).sum()), len(reads)
        own, many = int((reads[mine] == self.digit).sum()), int(mine.sum())
        return (
            f"{where}{of}, {right} of {total} digits are nearest to the center of their class. "
            f"Of the {many} {_PLURALS[self.digit]}, {own} {'is' if own == 1 else 'are'}."
        )

    @traitlets.validate("depth", "digit", "picked")
    def _check(self, proposal: dict[str, Any]) -> int:
        name, value = proposal["trait"].name, proposal["value"]
        low, high = {
            "depth": (0, len(self.names) - 1),
            "digit": (0, _CLASSES - 1),
            "picked": (-1, len(self._labels) - 1),
        }[name]
        if not low <= value <= high:
            raise traitlets.TraitError(f"{name}={value} is out of range. Pass {low} to {high}")
        return int(value)

    @traitlets.validate("network")
    def _check_network(self, proposal: dict[str, Any]) -> str:
        if proposal["value"] not in self.networks:
            raise traitlets.TraitError(f"there is no network {proposal['value']!r}. Pass one of {self.networks}")
        return str(proposal["value"])

    @traitlets.observe("depth", "network", "digit")
    def _describe(self, change: object = None) -> None:
        if self.network and self._data:  # not while it is made
            self.alt = (
                f"{len(self._labels)} digits between the centers of ten classes on a circle, and a chart of how many "
                f"are right after each layer. {self.sentence}"
            )

    def numbers(self) -> Rows:
        """List how many digits are right at each depth, for each network."""
        right = self.right
        return [
            {"after": layer, **{name: right[name][depth] for name in self.networks}}
            for depth, layer in enumerate(self.names)
        ]

    # The pixels, the layer where most are right, and the chart.
    def _still(self) -> bytes:
        figure = Figure(figsize=(11, 3.7), layout="constrained")
        before, after, chart = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
        best = max(range(len(self.names)), key=self.right[self.network].__getitem__)
        for axes, depth in ((before, 0), (after, best)):
            self._draw_scatter(axes, depth)
        for name, style in zip(self.networks, ("o-", "s--", "^:"), strict=False):
            chart.plot(self.right[name], style, label=name)
        chart.axhline(self.right[self.network][0], color="black", ls=":", lw=1, label="pixels")
        chart.set(xticks=range(len(self.names)), ylim=(0, len(self._labels)), ylabel=f"right, of {len(self._labels)}")
        chart.set_xticklabels(self.names, rotation=60, ha="right", fontsize=8)
        chart.legend(fontsize=8, loc="best")
        return from_figure(figure, self.alt).png

    def _draw_scatter(self, axes: Axes, depth: int) -> None:
        pulls = self._pulls[self.network][depth]
        for (x, y), label, read in zip((pulls @ _ANCHORS).tolist(), self._labels, pulls.argmax(1), strict=True):
            own = int(label) == self.digit
            color = _COLORS["other"] if not own else _COLORS["right" if read == label else "wrong"]
            look: dict[str, Any] = {
                "fontsize": 9 if own else 5,
                "fontweight": "bold" if own else "normal",
                "zorder": 3 if own else 2,
            }
            axes.text(x, y, str(int(label)), color=color, ha="center", va="center", **look)
        for digit, (x, y) in enumerate(_ANCHORS.tolist()):
            axes.text(1.16 * x, 1.16 * y, str(digit), ha="center", va="center", fontsize=11)
        axes.set(xlim=(-1.3, 1.3), ylim=(1.3, -1.3), xticks=[], yticks=[], aspect="equal")
        name = self.names[depth]
        axes.set_title(f"{name}: {self.right[self.network][depth]} of {len(self._labels)}", fontsize=10)


_PLURALS = ("zeros", "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines")


def _features(
    model: nn.Module, images: Tensor, layers: Which, feature: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return the features of the images and of what each layer makes of them, all from one pass."""
    with preserve_model(model), torch.no_grad(), capture(model, layers) as seen:
        model.eval()
        model(images)
    found = {"pixels": feature(images)} | {name: feature(seen[name].output) for name in seen}
    for name, each in found.items():
        if not isinstance(each, Tensor) or each.ndim != 2 or len(each) != len(images):
            what = f"a tensor {tuple(each.shape)}" if isinstance(each, Tensor) else type(each).__name__
            raise ValueError(f"feature returns {what} for {name}. It must return ({len(images)}, F), a row per digit")
    return found


def _digits(values: Tensor) -> str:
    return "".join(str(int(value)) for value in values)


def _packed(places: Tensor) -> str:
    whole = (places * _THOUSANDTHS).round().short().numpy().astype("<i2")
    return base64.b64encode(whole.tobytes()).decode("ascii")
