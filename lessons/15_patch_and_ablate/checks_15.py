"""Exercises of chapter 15: which cells of a sweep can change, one row patched by hand, a mean over other texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope import capture, census, sweep
from hookscope.samples import StoryLM
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.probing import CALLS_NOTHING, SWALLOWED, Breaks, swallows

_LAYERS, _DIFFERS = 5, 3


def _hooks_on(model: nn.Module) -> int:
    return len(census(model, include_global=False))


def check_q1(count: object) -> Wrong | None:
    if isinstance(count, Tensor | np.generic) and count.ndim == 0:
        count = count.item()
    if isinstance(count, bool) or not isinstance(count, int | float):
        return Wrong(f"the answer is a number, not a {count.__class__.__name__}")
    model = StoryLM(width=8, heads=2, blocks=_LAYERS).eval()
    text = torch.randint(20, 40, (1, 7))
    other = text.clone()
    other[0, _DIFFERS] = 50
    found = sweep(
        model, text, "tokens", other, metric=lambda logits: logits[0, -1, 0], positions=range(7), progress=False
    )
    expected = int((found.values != found.baseline).sum())
    if count == expected:
        return None
    reasons: dict[float, str] = {
        _LAYERS: "there are five layers, but the sweep patches the embedding alone",
        _DIFFERS: "3 is the position where the texts differ; asked for is at how many positions the answer can change",
        0: "at position 3 the two texts differ, and the rows after it take from there",
    }
    return Wrong(reasons.get(float(count), f"not {count:g}: where the texts have the same word, nothing is put in"))


# -- one row ------------------------------------------------------------------------------------------------------


class _Keeps(nn.Module):
    """A layer whose output somebody has kept."""

    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x * 2
        return self.kept


@allows("hooks")
@blind_to(swallows_errors=CALLS_NOTHING)
def check_q2(patch_row: Callable[[nn.Module, int, Tensor], Any]) -> Wrong | None:
    for texts, tokens, width, dtype in ((2, 5, 4, torch.float32), (3, 7, 6, torch.float64)):
        for position in (1, tokens - 2):
            layer = _Keeps()
            x, values = (torch.rand(shape, dtype=dtype) for shape in ((texts, tokens, width), (texts, width)))
            if wrong := _wrong_row(patch_row, layer, position, x, values):
                return wrong
    return None


def _wrong_row(
    patch_row: Callable[[nn.Module, int, Tensor], Any], layer: _Keeps, position: int, x: Tensor, values: Tensor
) -> Wrong | None:
    handle = patch_row(layer, position, values)
    try:
        output = layer(x)
    except (IndexError, RuntimeError) as error:
        return Wrong(f"torch says: {error}. In the output, axis 0 counts the texts, and axis 1 the tokens")
    if not torch.equal(layer.kept, 2 * x):
        return Wrong("the tensor that the layer returned was written to; change a copy, and return that")
    if not isinstance(output, Tensor) or output.shape != x.shape:
        return Wrong("with your hook, the layer no longer returns a tensor (batch, tokens, width)")
    if torch.equal(output, 2 * x):
        return Wrong("nothing is changed; a hook has to return the copy that it changed")
    if not torch.equal(output[:, position], values):
        return Wrong(f"row {position} is not `values`; axis 0 counts the texts, and axis 1 the tokens")
    others = [place for place in range(x.shape[1]) if place != position]
    if not torch.equal(output[:, others], 2 * x[:, others]):
        return Wrong(f"row {position} is right, but other rows were changed as well")
    if not isinstance(handle, RemovableHandle):
        return Wrong(f"the row is right, but `patch_row` returned {handle!r}; return the handle")
    handle.remove()
    return Wrong("`remove()` on the handle you returned did not take your hook off") if _hooks_on(layer) else None


# -- a mean over other texts --------------------------------------------------------------------------------------


@blind_to(returns_detached="nothing goes backward: a run under no_grad is right, too")
def check_q3(mean_ablate: Callable[[nn.Module, nn.Module, Tensor, Tensor], object]) -> Wrong | None:
    for width, tokens, name, dtype in (
        (8, 5, "blocks.0.attn", torch.float32),
        (12, 7, "blocks.1.mlp", torch.float64),
    ):
        model = StoryLM(width=width, heads=2).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        inputs, others = torch.randint(60, (2, tokens)), torch.randint(60, (3, tokens))
        if wrong := _wrong_mean(mean_ablate, model, name, inputs, others):
            return wrong
    model = StoryLM(width=8, heads=2).eval()
    layer = model.blocks[0].attn
    model.head = Breaks()  # type: ignore[assignment]
    texts = torch.randint(60, (2, 4))
    told = swallows(lambda: mean_ablate(model, layer, texts, texts))  # type: ignore[arg-type]
    if left := _hooks_on(model):
        return Wrong(f"a layer raised an error, and {left} hooks are still on the model; use `with` or `finally`")
    return Wrong(SWALLOWED) if told else None


def _wrong_mean(
    mean_ablate: Callable[[nn.Module, nn.Module, Tensor, Tensor], object],
    model: nn.Module,
    name: str,
    inputs: Tensor,
    others: Tensor,
) -> Wrong | None:
    layer = model.get_submodule(name)
    outputs = []
    with torch.no_grad():
        for texts in (others, inputs):
            with capture(model, name) as seen:
                model(texts)
            outputs.append(seen[name].output)
    result = mean_ablate(model, layer, inputs, others)
    if left := _hooks_on(model):
        return Wrong(f"{left} hooks are still on the model; remove every handle")
    if not isinstance(result, Tensor):
        return Wrong(f"your function returned {result!r}; return what the model returns")

    def is_with(values: Tensor) -> bool:
        with torch.no_grad(), layer.register_forward_hook(lambda module, args, output: values.expand_as(output)):
            wanted = model(inputs)
        return result.shape == wanted.shape and torch.allclose(result, wanted, atol=1e-4)

    of_others, of_inputs = outputs
    if is_with(of_others.mean(0)):
        return None
    if is_with(of_inputs.mean(0)):
        return Wrong("that is the mean over `inputs`, the texts that you ask about; take it over `others`")
    if is_with(torch.zeros_like(of_inputs)):
        return Wrong("that is with zeros in its place; asked for is the mean over `others`")
    if is_with(of_others.mean((0, 1))):
        return Wrong("you took the mean over the tokens, too; each position has a mean of its own, over axis 0")
    if is_with(of_inputs):
        return Wrong("that is what the model returns when nothing is changed")
    return Wrong("the model returned something else than with the mean over `others`, over axis 0, in its place")
