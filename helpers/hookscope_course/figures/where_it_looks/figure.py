"""Click a class and see which positions of a layer speak for it; take a step, and see the model change its mind."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import traitlets
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor, nn

from hookscope.pictures.picture import Rows, from_figure
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.samples import denormalize
from hookscope.widgets.base import assets, show_errors
from hookscope_course.figures.kit import KIT
from hookscope_course.figures.kit.digit_images import draw_bars, gray, percent
from hookscope_course.figures.kit.lazy_figure import LazyFigure
from hookscope_course.figures.kit.replay import ALL, Choice, Replay

__all__ = ["WhereItLooks"]

STEPS = 20  # of the slider


@dataclass(frozen=True)
class _Toward:
    """What one class asks of the layer: its map, and where the steps toward it lead."""

    positions: Tensor  # (h, w): gradient of the logit times output, summed over the channels
    probabilities: Tensor  # (steps, classes)


def _list_steps(figure: WhereItLooks) -> Iterator[Choice]:
    for (number, _), step in product(figure._classes, range(STEPS + 1)):
        yield {"target": number, "step": step}


class WhereItLooks(LazyFigure):
    """Click a class and see where a layer speaks for it (red) or against it (blue); step toward it in that layer.

    The map is the gradient of the class's logit times the layer's output, position by position (HiResCAM). The step is
    a forward hook that moves the output against the gradient of the cross-entropy of that class.

    Args:
        model: returns logits (1, classes).
        image: a gray image (1, 1, H, W), or a photograph (1, 3, H, W) as `samples.photo` returns it.
        layer: the name of a layer that returns maps (1, C, h, w).
        names: a name for each class; by default their numbers.
        classes: the classes to choose from; by default the ten with the largest logits.
        most: the longest step, as a share of the norm of the layer's output.

    Attributes:
        target: the class that is looked at.
        step: how far the output has moved, from 0 to 20, where 20 is `most`.
        read: the class with the largest probability after the step.

    Raises:
        ValueError: there is no such layer or class, or the layer returns no maps.

    Example:
        >>> from hookscope import samples
        >>> figure = WhereItLooks(samples.digit_cnn(), samples.digit(1), "block3", most=0.14)
        >>> figure.read, figure.target
        (8, 8)
        >>> figure.target, figure.step = 1, 1
        >>> print(figure.sentence)
        The output of block3 has moved by 0.7 % of its norm: the model reads 1 (64.3 %), no longer 8.

    """

    _esm, _css = assets(KIT / "digits", Path(__file__).with_suffix(""))
    replay = Replay(("target", "step"), {ALL: _list_steps})

    target = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)
    _image = traitlets.Unicode("").tag(sync=True)
    _classes: traitlets.List[list[Any]] = traitlets.List().tag(sync=True)  # [class, name] each
    _layer = traitlets.Unicode("").tag(sync=True)
    _most = traitlets.Float(0.0).tag(sync=True)
    _reach = traitlets.Float(0.0).tag(sync=True)  # the end of the color bar, which all classes share
    _map = traitlets.Dict().tag(sync=True)  # columns, a value from -1 to 1 for each position, and which is highest
    _shown = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        model: nn.Module,
        image: Tensor,
        layer: str,
        *,
        names: Sequence[str] = (),
        classes: Sequence[int] = (),
        most: float = 0.1,
    ) -> None:
        modules = dict(model.named_modules())
        if layer not in modules:
            raise ValueError(f"layer={layer!r}: the model has no such layer. It has {', '.join([*modules][1:8])}, …")
        self._model, self._module, self._input = model, modules[layer], image.detach().clone()
        self._names, self._known = names, dict[int, _Toward]()
        self._before = self._run(None)[0]
        chosen = [*classes] or self._before.topk(min(10, len(self._before))).indices.sort().values.tolist()
        wrong = [each for each in chosen if not 0 <= each < len(self._before)]
        if wrong:
            raise ValueError(f"classes has {wrong[0]}. Pass classes from 0 to {len(self._before) - 1}")
        colors = image[0, 0] if image.shape[1] == 1 else denormalize(image)[0]
        self._pixels = colors
        best = int(self._before.argmax())
        super().__init__(
            _image=gray(colors, 0, 1) if colors.ndim == 2 else _photo(colors),
            _classes=[[each, self._name(each)] for each in chosen],
            _layer=layer,
            _most=most,
            target=best if best in chosen else chosen[0],
        )
        self._draw()

    @property
    def read(self) -> int:
        """The class with the largest probability after the step."""
        return int(self.probabilities.argmax())

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the logits after the step, (classes,)."""
        return self._after

    @property
    def positions(self) -> Tensor:
        """What each position of the layer's output adds to the logit of `target`, (h, w)."""
        return self._toward(self.target).positions

    @property
    def sentence(self) -> str:
        """What has just happened."""
        return str(self._shown["sentence"])

    def _name(self, number: int) -> str:
        return self._names[number] if self._names else str(number)

    def _run(self, change: Tensor | None) -> Tensor:
        """Return the probabilities for each change of the layer's output: all of them go through the rest at once."""

        def move(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            return None if change is None else output + change

        with preserve_model(self._model), preserve_rng_state(self._model, self._input), torch.no_grad():
            self._model.eval()
            with self._module.register_forward_hook(move):
                logits: Tensor = self._model(self._input.clone())
        return logits.softmax(dim=1)

    def _toward(self, target: int) -> _Toward:
        if target not in self._known:
            kept: list[Tensor] = []

            def ask(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                if not isinstance(output, Tensor) or output.ndim != 4:
                    raise ValueError(
                        f"the layer {self._layer!r} does not return maps (1, C, h, w). Name a layer that does"
                    )
                kept.append(output if output.requires_grad else output.detach().requires_grad_())
                return kept[0]

            with preserve_model(self._model), preserve_rng_state(self._model, self._input), torch.enable_grad():
                self._model.eval()
                with self._module.register_forward_hook(ask):
                    logits = self._model(self._input.clone())
                (of_logit,) = torch.autograd.grad(logits[0, target], kept[0], retain_graph=True)
                loss = F.cross_entropy(logits, torch.tensor([target], device=logits.device))
                (grad,) = torch.autograd.grad(loss, kept[0])
            output = kept[0].detach()
            shares = torch.linspace(0, self._most, STEPS + 1).to(output)[:, None, None, None]
            steps = -shares * output.norm() * grad / grad.norm().clamp(min=1e-30)  # no gradient, no step
            self._known[target] = _Toward((of_logit * output).sum(dim=1)[0], self._run(steps))
        return self._known[target]

    @traitlets.validate("target", "step")
    def _check(self, proposal: dict[str, Any]) -> int:
        name, value = proposal["trait"].name, int(proposal["value"])
        allowed = range(STEPS + 1) if name == "step" else [number for number, _ in self._classes]
        if value not in allowed:
            raise traitlets.TraitError(f"{name}={value}: pass one of {[*allowed]}")
        return value

    @traitlets.observe("target", "step")
    @show_errors
    def _changed(self, change: object) -> None:
        if hasattr(self, "_pixels") and self._layer:
            self._draw()

    def _draw(self) -> None:
        toward, share = self._toward(self.target), self._most * self.step / STEPS
        self._after = toward.probabilities[self.step] if self.step else self._before
        # One scale for all classes, so that a faint map is a weak one.
        self._reach = self._reach or max(float(self._toward(n).positions.abs().max()) for n, _ in self._classes) or 1.0
        with self.hold_sync():
            self.code = _source(self._layer, share)
            self._map = {
                "columns": toward.positions.shape[1],
                "cells": [round(value / self._reach, 3) for value in toward.positions.flatten().tolist()],
                "highest": int(toward.positions.argmax()),
            }
            self._shown = {
                "sentence": self._sentence(share),
                "words": self._words(),
                "place": self._place(),
                "rows": [[name, float(self._after[n]), float(self._before[n])] for n, name in self._classes],
                "read": self._name(self.read),
                "turned": self.read != int(self._before.argmax()),
            }
            self.alt = (
                f"An image, a map of {self._layer} over it, and bars of the classes. {self.sentence} {self._words()} "
                f"{self._place()}"
            )

    def _sentence(self, share: float) -> str:
        was, reads = self._name(int(self._before.argmax())), self._name(self.read)
        sure = percent(float(self._after.max()))
        if not self.step:
            return f"Nothing has moved: the model reads {reads} ({sure})."
        turned = f", no longer {was}" if reads != was else ", as before"
        moved = f"The output of {self._layer} has moved by {percent(share)} of its norm"
        return f"{moved}: the model reads {reads} ({sure}){turned}."

    def _words(self) -> str:
        most = f"{float(self.positions.max()):+.2f}".replace("-", "−")
        return (
            f"Red positions raise the logit of {self._name(self.target)}, blue ones lower it. The framed position adds "
            f"the most: {most}."
        )

    def _place(self) -> str:
        """Return in words where the frame is, for who does not see it."""
        row, column = divmod(int(self.positions.argmax()), self.positions.shape[1])
        high, wide = self.positions.shape
        return f"It is in row {row + 1} of {high}, column {column + 1} of {wide}."

    def numbers(self) -> Rows:
        """List the probability of each class, before the step and after it."""
        return [
            {"class": name, "before the step": percent(was), "after it": percent(now)}
            for name, now, was in self._shown["rows"]
        ]

    def _still(self) -> bytes:
        figure = Figure(figsize=(8, 3.8), layout="constrained")
        image, chart = figure.subplots(1, 2)
        pixels = self._pixels if self._pixels.ndim == 2 else self._pixels.mean(dim=0)
        shown = pixels.cpu().numpy()
        image.imshow(shown, cmap="gray_r" if self._pixels.ndim == 2 else "gray", vmin=0, vmax=1)
        values, ends = self.positions.cpu(), {"vmin": -self._reach, "vmax": self._reach}
        high, wide = shown.shape
        alpha = (0.75 * values.abs() / self._reach).numpy()
        image.imshow(values.numpy(), cmap="coolwarm", alpha=alpha, extent=(-0.5, wide - 0.5, high - 0.5, -0.5), **ends)
        row, column = divmod(int(values.argmax()), values.shape[1])
        down, across = high / values.shape[0], wide / values.shape[1]
        corner = (column * across - 0.5, row * down - 0.5)
        image.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="black", lw=2))
        scale = ScalarMappable(Normalize(-self._reach, self._reach), "coolwarm")
        figure.colorbar(scale, ax=image, location="bottom", shrink=0.6, label="added to the logit")
        image.set(xticks=[], yticks=[])
        image.set_title(f"for and against {self._name(self.target)}")
        draw_bars(chart, [(name, was, now) for name, now, was in self._shown["rows"]])
        return from_figure(figure, self.alt).png


def _source(layer: str, share: float) -> str:
    return (
        "def step(module, args, output):\n"
        f"    return output - {share:.3f} * output.norm() * grad / grad.norm()\n\n"
        f"with model.get_submodule({layer!r}).register_forward_hook(step):\n    logits = model(image)"
    )


def _photo(colors: Tensor) -> str:
    pixels = (255 * colors).round().byte().permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
