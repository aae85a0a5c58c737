"""Run a model on one digit with hooks on one of its layers, and leave the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import why_uncalled
from hookscope.layers.find import Which, find_layers
from hookscope.preserve import preserve_model, preserve_rng_state

__all__ = ["DigitModel", "DigitPass", "list_scores"]

Hook = Callable[..., Any]


@dataclass(frozen=True)
class DigitPass:
    """What a layer received and returned in its first call, and the probabilities at the end."""

    received: Tensor
    returned: Tensor
    probabilities: Tensor

    @property
    def read(self) -> int:
        """The digit with the largest probability."""
        return int(self.probabilities.argmax())


def list_scores(before: DigitPass, after: DigitPass) -> list[tuple[str, float, float]]:
    """Return for each digit its name, its probability, and what that was before."""
    both = zip(after.probabilities.tolist(), before.probabilities.tolist(), strict=True)
    return [(str(digit), now, was) for digit, (now, was) in enumerate(both)]


class DigitModel:
    """A model that reads digits, with one of its layers and one digit.

    Args:
        model: returns scores of shape (1, classes).
        digit: one gray image (1, 1, H, W); a copy of it is kept.
        layer: one layer, as `find_layers` takes it; the end of a dotted name is enough.

    """

    def __init__(self, model: nn.Module, digit: Tensor, layer: Which) -> None:
        if not isinstance(digit, Tensor) or digit.ndim != 4 or digit.shape[:2] != (1, 1):
            what = f"has the shape {tuple(digit.shape)}" if isinstance(digit, Tensor) else f"is {type(digit).__name__}"
            raise ValueError(f"digit {what}. Pass one gray image (1, 1, height, width), as samples.digit(5) returns it")
        names = dict(model.named_modules())
        if isinstance(layer, str) and layer not in names and any(name.endswith(f".{layer}") for name in names):
            layer = f"**.{layer}"
        found = find_layers(model, layer)
        if len(found) != 1:
            raise ValueError(
                f"layer={layer!r} picks {len(found)} layers, {', '.join(list(found)[:6])}. Name one of them"
            )
        ((self.name, self.layer),) = found.items()
        self.model, self.digit = model, digit.detach().clone()

    @property
    def path(self) -> str:
        """The layer as an expression of Python."""
        if all(part.isidentifier() for part in self.name.split(".")):
            return f"model.{self.name}"
        return f"model.get_submodule({self.name!r})" if self.name else "model"

    def run(self, *, pre_hook: Hook | None = None, hook: Hook | None = None) -> DigitPass:
        """Run the model once, in eval mode and without gradients, with these hooks on the layer."""
        received: list[Any] = []
        returned: list[Any] = []

        def note_args(module: nn.Module, args: tuple[Any, ...]) -> None:
            received.append(_copy(args[0] if args else None))

        def note_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            returned.append(_copy(output))

        with ExitStack() as stack:
            stack.enter_context(preserve_model(self.model))
            stack.enter_context(preserve_rng_state(self.model, self.digit))
            for each in (pre_hook, note_args):
                if each is not None:
                    stack.enter_context(self.layer.register_forward_pre_hook(each))
            for each in (hook, note_output):
                if each is not None:
                    stack.enter_context(self.layer.register_forward_hook(each))
            self.model.eval()
            with torch.no_grad():
                scores = self.model(self.digit.clone())
        if not received:
            raise ValueError(f"the layer {self.name!r} {why_uncalled(self.layer)}")
        if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 1:
            what = f"a tensor {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise TypeError(
                f"{type(self.model).__name__} returns {what}. Pass a model that returns scores (1, classes)"
            )
        return DigitPass(received[0], returned[0], scores.softmax(dim=1)[0])

    def read_all(self, images: Tensor) -> list[int]:
        """Return the digit that the model reads in each image of a batch."""
        with preserve_model(self.model), preserve_rng_state(self.model, images), torch.no_grad():
            self.model.eval()
            return list(map(int, self.model(images).argmax(dim=1)))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
