"""Run a model without and with a forward pre-hook on one layer, and restore the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import why_uncalled
from hookscope.preserve import preserve_model, preserve_rng_state

__all__ = ["HookEffect", "HookedLayer", "check_image"]

PreHook = Callable[[nn.Module, tuple[Any, ...]], Any]


@dataclass(frozen=True)
class HookEffect:
    """The input of the layer without and with the hook, and the resulting probabilities."""

    original: Tensor
    edited: Tensor
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class HookedLayer:
    """A model, one of its layers, the name of this layer, and the image (1, C, H, W) for each run."""

    model: nn.Module
    layer: nn.Module
    name: str
    image: Tensor

    def run(self, hook: PreHook) -> HookEffect:
        """Run the model without and with the hook, with the same random numbers."""
        original, before = self._run()
        edited, after = self._run(hook)
        return HookEffect(original, edited, before, after)

    def _run(self, *hooks: PreHook) -> tuple[Tensor, Tensor]:
        """Return the input of the layer in its first call, and the probabilities."""
        name = repr(self.name) if self.name else type(self.model).__name__
        got: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Any, ...]) -> None:
            if not got:
                got.append(_check_editable(name, args).detach().clone())

        with ExitStack() as stack:
            stack.enter_context(preserve_model(self.model))
            stack.enter_context(preserve_rng_state(self.model, self.image))
            for hook in (*hooks, note):
                stack.enter_context(self.layer.register_forward_pre_hook(hook))
            self.model.eval()
            with torch.no_grad():
                scores = self.model(self.image.clone())
        if not got:
            raise ValueError(f"layer {name} {why_uncalled(self.layer)}")
        if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 1:
            what = f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise TypeError(
                f"{type(self.model).__name__} returned {what}. Pass a model that returns scores of shape (1, classes)"
            )
        return got[0], scores.detach().softmax(dim=1)[0]


def check_image(image: object) -> Tensor:
    """Return a copy of an image (C, H, W) or (1, C, H, W) as a batch of one."""
    if not isinstance(image, Tensor):
        raise TypeError(f"image is of type {type(image).__name__}. Pass a tensor of shape (C, H, W) or (1, C, H, W)")
    shape = tuple(image.shape)
    if not image.is_floating_point():
        raise TypeError(f"image has dtype {image.dtype}, but a model needs floats. Pass image.float() / 255")
    if len(shape) == 4 and shape[0] != 1:
        raise ValueError(f"image has shape {shape}, so it contains {shape[0]} images. Pass one of them: image[:1]")
    if len(shape) not in (3, 4) or 0 in shape:
        raise ValueError(f"image has shape {shape}. Pass one image of shape (C, H, W) or (1, C, H, W)")
    if shape[-3] not in (1, 3):
        last = len(shape) == 3 and shape[-1] in (1, 3)
        fix = "Its channels come last, so pass image.permute(2, 0, 1)" if last else "Pass one with 1 or 3 channels"
        raise ValueError(f"image has shape {shape}, so its axis of channels has length {shape[-3]}. {fix}")
    copy = image.detach().clone()
    return copy if len(shape) == 4 else copy[None]


def _check_editable(name: str, args: tuple[Any, ...]) -> Tensor:
    """Return the tensor that the hook edits; raise an error if it cannot."""
    if not args:
        raise TypeError(
            f"layer {name} gets its input as a keyword argument, which a pre-hook with (module, args) does not get. "
            "Choose another layer"
        )
    x = args[0]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = f"a tensor of dtype {x.dtype}" if isinstance(x, Tensor) else f"an object of type {type(x).__name__}"
        raise TypeError(f"layer {name} gets {what}. Choose a layer that gets a tensor of floats")
    if x.ndim < 3:
        raise TypeError(
            f"layer {name} gets an input of shape {tuple(x.shape)}, without rows and columns. Choose an earlier layer"
        )
    return x
