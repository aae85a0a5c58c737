"""Exercises of chapter 15: patch one row, how much a patch restores, the head that copies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hookscope import attention, capture
from hookscope.samples import STORY_WORDS, StoryLM, story_lm, story_tokens
from hookscope.samples.stories import SelfAttention
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.check_helpers import (
    ERROR_HIDDEN,
    BreakingLayer,
    add_foreign_hooks,
    count_hooks,
    format_count,
    hides_errors,
)
from hookscope_course.practice.exercise_kinds import adds_hook, find_left_hooks, runs_model

# -- one row ------------------------------------------------------------------------------------------------------


class _Keeps(nn.Module):
    """A layer whose output somebody has kept."""

    kept: Tensor
    given: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.given = x.clone()
        self.kept = x * 2
        return self.kept


@adds_hook(
    (2, 5, 4, 1, torch.float32),
    (2, 5, 4, 3, torch.float32),
    (3, 7, 6, 1, torch.float64),
    (3, 7, 6, 5, torch.float64),
    right="the row is right",
)
def check_q1(
    patch_row: Callable[[nn.Module, int, Tensor], Any],
    texts: int,
    tokens: int,
    width: int,
    position: int,
    dtype: torch.dtype,
) -> Wrong | None:
    x, values = (torch.rand(shape, dtype=dtype) for shape in ((texts, tokens, width), (texts, width)))
    layer, asked = _Keeps(), x.clone()
    patch_row(layer, position, values)
    try:
        layer(torch.rand_like(x))
        output = layer(x)  # a hook fires at each call
    except (IndexError, RuntimeError) as error:
        return Wrong(f"torch says: {error}. In the output, axis 0 is the text and axis 1 is the token")
    if not torch.equal(layer.given, asked):
        return Wrong("you changed the input of the layer; you should change its output, so register a forward hook")
    if not torch.equal(layer.kept, 2 * asked):
        return Wrong("you wrote into the tensor that the layer returned; you should change a copy and return it")
    if not isinstance(output, Tensor) or output.shape != x.shape:
        return Wrong("your hook returned something else; it should return a tensor of shape (batch, tokens, width)")
    if torch.equal(output, 2 * x):
        return Wrong("your hook did not change the output; at each call, it should return the changed copy")
    if not torch.equal(output[:, position], values):
        return Wrong(f"row {position} should be `values`; in the output, axis 0 is the text and axis 1 is the token")
    others = [place for place in range(x.shape[1]) if place != position]
    if not torch.equal(output[:, others], 2 * x[:, others]):
        return Wrong(f"row {position} is right, but you also changed other rows; they should stay the same")
    if not layer(torch.rand_like(x, requires_grad=True)).requires_grad:
        return Wrong(
            "the rows are right, but your copy is cut off from the graph; clone without `.detach()` or `.data`"
        )
    return None


# -- how much a patch restores --------------------------------------------------------------------------------------

Restores = Callable[[nn.Module, nn.Module, int, Tensor, Tensor, Callable[[Tensor], Any]], object]


@allows("hooks")
@blind_to(returns_detached="nothing goes backward: a run under no_grad is right, too")
def check_q2(restored: Restores) -> Wrong | None:
    for width, tokens, name, at, dtype in (
        (8, 5, "blocks.0", 3, torch.float32),
        (12, 7, "blocks.1.attn", 6, torch.float64),
        (8, 6, "tokens", 2, torch.float64),
    ):
        model = _random_model(width).to(dtype)
        clean = torch.randint(30, (1, tokens))
        corrupted = clean.clone()
        corrupted[0, at - 1 : at + 1] += torch.randint(1, 30, (2,))
        if wrong := _wrong_share(restored, model, name, at, clean, corrupted):
            return wrong
    for run, after in enumerate(("first", "second", "third")):
        model = StoryLM(width=8, heads=2).eval()
        model.head = _BreaksLater(run)  # type: ignore[assignment]
        layer, texts = model.blocks[0].attn, torch.randint(60, (1, 4))
        told = hides_errors(lambda: restored(model, layer, 2, texts, texts.flip(1), _measure))  # type: ignore[arg-type]  # noqa: B023
        if left := count_hooks(model):
            return Wrong(
                f"a layer raised an error in the {after} run, and {format_count(left)} still on the model; "
                "remove your hooks with `with` or in a `finally`"
            )
        if told:
            return Wrong(ERROR_HIDDEN)
    return None


def _random_model(width: int) -> StoryLM:
    model = StoryLM(width=width, heads=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def _measure(logits: Tensor) -> Tensor:
    return logits[0, -1, 3] - logits[0, -1, 5]


class _BreaksLater(BreakingLayer):
    """Raises at the call with a number, from 0, and at all after it."""

    def __init__(self, first: int) -> None:
        super().__init__()
        calls = count()  # no attribute: a sweep puts those back after each run
        self.is_over: Callable[[], bool] = lambda: next(calls) >= first

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        if self.is_over():
            return super().forward(x)
        return torch.cat([x, x], -1)  # logits for at least 16 tokens


def _wrong_share(
    restored: Restores, model: StoryLM, name: str, at: int, clean: Tensor, corrupted: Tensor
) -> Wrong | None:
    layer = model.get_submodule(name)
    with torch.no_grad(), capture(model, name) as seen:
        high = _measure(model(clean)).item()
    with torch.no_grad(), capture(model, name) as other:
        low = _measure(model(corrupted)).item()
    rows, of_corrupted = seen[name].output, other[name].output

    def patched(text: Tensor, source: Tensor, where: slice) -> float:
        def put(module: nn.Module, args: object, output: Tensor) -> Tensor:
            output = output.clone()
            output[:, where] = source[:, where]
            return output

        with torch.no_grad(), layer.register_forward_hook(put):
            return _measure(model(text)).item()

    one, every = slice(at, at + 1), slice(None)
    there = patched(corrupted, rows, one)
    expected = (there - low) / (high - low)
    answer = restored(add_foreign_hooks(model), layer, at, clean, corrupted, _measure)
    if left := find_left_hooks(model):
        return left
    if isinstance(answer, Tensor | np.generic) and answer.ndim == 0:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return Wrong(f"your function returned {answer!r}; it should be a number")

    def is_close(other: float) -> bool:
        return math.isclose(answer, other, rel_tol=1e-3, abs_tol=1e-4)

    if is_close(expected):
        return None
    back = patched(clean, of_corrupted, one)
    direction = "the row should come from `clean` and go into `corrupted`"
    told = (
        (0.0, "your patch did not change the measure; the row should come from the run on `clean`"),
        (
            there / high,
            "you divided by the measure of the clean run; it should be `(patched - low) / (high - low)`, where `low` "
            "is the measure of the corrupted run",
        ),
        (there, "you returned the measure of the patched run; compare it with the measures of the other two runs"),
        (there - low, "you returned the change in the measure; divide it by the full difference, `high - low`"),
        (1 - expected, "you returned the share that is still missing; it should be the share that the patch restores"),
        ((back - low) / (high - low), f"you patched in the wrong direction; {direction}"),
        ((high - back) / (high - low), f"you patched in the wrong direction; {direction}"),
        (
            (patched(corrupted, rows, every) - low) / (high - low),
            "you patched all rows; you should patch only the row at `position`",
        ),
        (
            there / low,
            "you divided by the measure of the corrupted run; it should be `(patched - low) / (high - low)`, where "
            "`low` is this measure",
        ),
    )
    return Wrong(
        next(
            (words for other, words in told if is_close(other)),
            f"your function returned {answer:.3f}, but it should be {expected:.3f}; the measure is {low:.3f} in the "
            f"corrupted run, {there:.3f} with the patch and {high:.3f} in the clean run",
        )
    )


# -- the head that copies -----------------------------------------------------------------------------------------

_HEADS, _WIDTH = 4, 16
_NOUNS = [*STORY_WORDS[11:27], *STORY_WORDS[35:51]]


def _break_logits(copying_head: Callable[..., object]) -> tuple[nn.Module, Callable[[], object]]:
    model = story_lm()
    model.head = BreakingLayer()  # type: ignore[assignment]
    return model, lambda: copying_head(model, story_tokens("the dog the dog"))


@allows("hooks")
@runs_model(broken=_break_logits, comes_off=True)
def check_q3(copying_head: Callable[[StoryLM, Tensor], object]) -> Wrong | None:
    places = torch.randperm(_HEADS).tolist()
    for length, place, decoy in zip((8, 6, 8, 7), places, (True, True, False, True), strict=True):
        model = _reordered(place, decoy).to(torch.float32 if decoy else torch.float64)
        rows = torch.cat([story_tokens(words + words) for words in (random.sample(_NOUNS, length) for _ in range(20))])
        before = {name: value.clone() for name, value in model.state_dict().items()}
        add_foreign_hooks(model)
        answer = copying_head(model, rows)
        if left := find_left_hooks(model):
            return left
        if any(not torch.equal(value, before[name]) for name, value in model.state_dict().items()):
            return Wrong("you changed the weights of the model; use a hook to replace the head's values with zeros")
        if isinstance(answer, Tensor | np.generic) and answer.ndim == 0:
            answer = answer.item()
        if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < _HEADS:
            return Wrong(f"your function returned {answer!r}; it should be a number from 0 to {_HEADS - 1}")
        if wrong := _wrong_head(model, rows, length, answer):
            return wrong
    return None


def _attention_of(model: StoryLM) -> SelfAttention:
    return cast(SelfAttention, model.get_submodule("blocks.1.attn"))


def _reordered(place: int, decoy: bool) -> StoryLM:
    """`story_lm()` with the heads of its last attention in another order.

    Args:
        place: where the head stands that copies.
        decoy: give a head the queries and keys of that one, only stronger, so that it looks there even more; what it
            takes from there is still its own.

    """
    model = story_lm()
    attn = _attention_of(model)
    rows = torch.cat([story_tokens(words + words) for words in (random.sample(_NOUNS, 8) for _ in range(20))])
    copies = min(range(_HEADS), key=lambda head: _right(model, rows, 8, head))
    others = [head for head in range(_HEADS) if head != copies]
    random.shuffle(others)
    with torch.no_grad():
        weight = attn.qkv.weight.clone().view(3, _HEADS, _WIDTH, -1)
        bias = attn.qkv.bias.clone().view(3, _HEADS, _WIDTH)
        columns = attn.proj.weight.clone().view(-1, _HEADS, _WIDTH)
        if decoy:
            for each in (weight, bias):
                each[:2, others[0]] = each[:2, copies]
                each[0, others[0]] *= 1.5
        order = [*others[:place], copies, *others[place:]]
        attn.qkv.weight.copy_(weight[:, order].flatten(0, 2))
        attn.qkv.bias.copy_(bias[:, order].flatten())
        attn.proj.weight.copy_(columns[:, order].flatten(1))
    return model


def _right(model: StoryLM, rows: Tensor, length: int, head: int, shift: int = 0) -> int:
    """How many words of the second half the model says rightly when zeros stand in the place of a head.

    With a `shift` of 1, each prediction is wrongly compared with the word at its own position.
    """

    def away(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[..., _WIDTH * head : _WIDTH * head + _WIDTH] = 0
        return (x,)

    with torch.no_grad(), _attention_of(model).proj.register_forward_pre_hook(away):
        best = model(rows).argmax(-1)
    wanted = rows[:, length + 2 - shift : rows.shape[1] - shift]
    return int((best[:, length + 1 : -1] == wanted).sum())


def _wrong_head(model: StoryLM, rows: Tensor, length: int, answer: int) -> Wrong | None:
    right = [_right(model, rows, length, head) for head in range(_HEADS)]
    expected = min(range(_HEADS), key=lambda head: right[head])
    if answer == expected:
        return None
    places, second = rows[:, length + 2 :].numel(), torch.arange(length + 1, 2 * length + 1)
    looks = attention(model, rows)["blocks.1.attn"].weights[:, :, second, second - length + 1].mean((0, 2))
    told = f"you chose head {answer}; without it, the model is right at {right[answer]} of {places} positions"
    shifted = [_right(model, rows, length, head, shift=1) for head in range(_HEADS)]
    causes = [
        (int(looks.argmax()), f"{told}. This head looks most at the right position, but looking there is not enough"),
        (max(range(_HEADS), key=lambda head: right[head]), f"{told}, the most of all; it should be the fewest"),
        (
            min(range(_HEADS), key=lambda head: shifted[head]),
            f"{told}; you should compare each prediction with the *next* word of the row, not with the word at its own "
            "position",
        ),
    ]
    same = ". The answer is not the same for every model" if answer == 3 else ""
    fitting = [words for head, words in causes if head == answer]
    if len(fitting) == 1:  # if several mistakes lead to this head, none is named
        return Wrong(fitting[0] + same)
    if answer == int(looks.argmax()):
        told = f"{told}. This head looks most at the right position"
    return Wrong(f"{told}; it should be the head without which the model is right at the fewest{same}")
