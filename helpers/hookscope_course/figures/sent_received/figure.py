"""What you sent, and what a layer received, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
import traitlets
from matplotlib.figure import Figure
from torch import Tensor, nn

from hookscope.layers.find import Which
from hookscope.pictures.picture import Rows, from_figure
from hookscope.widgets.base import assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import a, draw_bars, gray, percent
from hookscope_course.figures.kit.digit_passes import DigitModel, DigitPass
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import ALL, Choice, Replay

__all__ = ["SentReceived"]


def _list_clicks(figure: SentReceived) -> Iterator[Choice]:
    for place, picked in product(("layer", "door"), ("", "sent", "received")):
        yield {"place": place, "picked": picked}


class SentReceived(LazyFigure):
    """Compare the digit that you send with the image that a layer receives.

    A hook on the layer stores the image that the layer receives. The figure asks which of the two images the model
    would read as it reads yours, and tells after a click. Then it shows the two best scores for each image: for yours,
    a pre-hook passes it to the layer. A switch moves the hook from the layer to the whole model.

    Args:
        model: returns scores of shape (1, classes).
        digit: one gray image (1, 1, H, W).
        layer: a layer that receives one gray image; the end of its dotted name is enough.

    Attributes:
        place: at whose exit the hook is, ``"layer"`` or ``"door"``, the whole model.
        picked: the image that was clicked, ``"sent"`` or ``"received"``; empty before.

    Raises:
        ValueError: the digit has another shape, or the layer receives something else.
        LayerNotFoundError: there is no such layer.

    Example:
        >>> from hookscope import samples
        >>> figure = SentReceived(samples.digit_cnn(), samples.digit(5))
        >>> bool((figure.received == figure.sent).all())
        True

    """

    _esm, _css = assets(KIT / "scene", KIT / "digits", Path(__file__).with_suffix(""))
    replay = Replay(("place", "picked"), {ALL: _list_clicks})

    place = traitlets.Enum(["layer", "door"], "layer").tag(sync=True)
    picked = traitlets.Enum(["", "sent", "received"], "").tag(sync=True)
    _places = traitlets.Dict().tag(sync=True)  # the words on the switch
    _shown = traitlets.Dict().tag(sync=True)  # all that the page draws

    def __init__(self, model: nn.Module, digit: Tensor, layer: Which = "block1") -> None:
        self._at = {"layer": DigitModel(model, digit, layer), "door": DigitModel(model, digit, "")}
        inside, kind = self._at["layer"], type(model).__name__
        seen = self._passes("layer")  # refuses a layer that does not fit
        super().__init__(_places={"door": kind, "layer": inside.name})
        self._draw(*seen)

    @property
    def sent(self) -> Tensor:
        """The image that you sent."""
        return self._at["door"].digit.clone()

    @property
    def received(self) -> Tensor:
        """The image that the hook took."""
        return self._got.received

    @traitlets.observe("place")
    @show_errors
    def _changed(self, change: object) -> None:
        self._draw(*self._passes(self.place))

    def _passes(self, place: str) -> tuple[DigitPass, DigitPass]:
        """Run the model with your image in the place of what the layer would receive, and as it is."""
        model = self._at[place]
        got, sent = model.run(), model.digit
        if not isinstance(got.received, Tensor) or got.received.shape != sent.shape:
            what = tuple(got.received.shape) if isinstance(got.received, Tensor) else type(got.received).__name__
            raise ValueError(
                f"the layer {model.name!r} receives {what}, and you sent {tuple(sent.shape)}. Pick the first layer, "
                "which still receives an image"
            )
        return model.run(pre_hook=lambda module, args: (sent.clone(), *args[1:])), got

    def _draw(self, yours: DigitPass, got: DigitPass) -> None:
        self._yours, self._got = yours, got
        both = torch.cat([self.sent, got.received])
        self._ends = ends = min(0.0, float(both.min())), max(1.0, float(both.max()))
        where = self._where
        sides = {}
        for key, each, image in (("sent", yours, self.sent), ("received", got, got.received)):
            best = each.probabilities.topk(2)
            sides[key] = {
                "title": "you sent" if key == "sent" else f"{where} received",
                "given": f"If {where} receives this:",
                "src": gray(image, *ends),
                "alt": f"{'The digit that you sent' if key == 'sent' else f'What {where} received'}: {_ink(image)}.",
                "best": [[str(int(n)), float(p)] for p, n in zip(*best, strict=True)],
                "read": each.read,
                "reads": f"reads {a(each.read)}",
            }
        # The still picture cannot be clicked, so it and its words tell all.
        ask = f"Which image must {where} receive, so that the model reads {a(yours.read)}? Click it."
        self._shown = {"sentence": self._sentence(), "ask": ask if yours.read != got.read else "", **sides}
        self.alt = " ".join(
            [f"Two images side by side. {self._sentence()}", *(str(side["alt"]) for side in sides.values())]
        )

    @property
    def _where(self) -> str:
        model = self._at[self.place]
        return model.name.rpartition(".")[2] or type(model.model).__name__

    def _sentence(self) -> str:
        sent, got = self.sent, self._got.received
        reads = f"the model reads {a(self._got.read)} ({percent(float(self._got.probabilities.max()))})"
        if torch.equal(sent, got):
            return f"{self._where} received exactly what you sent, and {reads}."
        if torch.allclose(got, 1 - sent, atol=1e-6):
            what = f"{_ink(got)}: each value is 1 minus yours"
        else:
            what = f"another image: {int((sent != got).sum())} of {sent.numel()} values differ"
        would = f" From your image, it would read {a(self._yours.read)}." if self._yours.read != self._got.read else ""
        return f"You sent {_ink(sent)}. {self._where} received {what}. From this image, {reads}.{would}"

    def numbers(self) -> Rows:
        """List the two best scores for each image."""
        return [
            {"image": side["title"], "": place, "digit": name, "probability": percent(share)}
            for side in (self._shown["sent"], self._shown["received"])
            for place, (name, share) in zip(("best", "second"), side["best"], strict=True)
        ]

    def _still(self) -> bytes:
        figure = Figure(figsize=(7, 4.6))
        sides = ((self._shown["sent"], self.sent), (self._shown["received"], self._got.received))
        for column, (side, image) in enumerate(sides):
            shown = figure.add_subplot(2, 2, column + 1, position=(0.04 + 0.5 * column, 0.26, 0.42, 0.66))
            shown.imshow(image[0, 0].cpu().numpy(), cmap="gray", vmin=self._ends[0], vmax=self._ends[1])
            shown.set(xticks=[], yticks=[])
            shown.set_title(side["title"])
            bars = figure.add_subplot(2, 2, column + 3, position=(0.08 + 0.5 * column, 0.05, 0.28, 0.15))
            draw_bars(bars, [(name, share, share) for name, share in side["best"]])
        return from_figure(figure, self.alt).png


def _ink(image: Tensor) -> str:
    middle = (float(image.min()) + float(image.max())) / 2
    return "a black digit on white" if float(image.median()) > middle else "a white digit on black"
