"""The capstone of the language models: a head that was found, proved and steered, tried on new texts; six points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from hookscope import attention, census
from hookscope.samples import STORY_WORDS
from hookscope.samples.stories import PLACES, StoryLM
from hookscope_course.errands import errand_lm, errands
from hookscope_course.practice import Wrong, allows, blind_to
from hookscope_course.practice.probing import Broken, hooks_are, left_on, with_others

Patch = Callable[[nn.Module, Tensor, Tensor, int, int], object]
_COUNT, _BLOCKS, _HEADS, _WIDTH = 100, 2, 4, 16
_MISSING = "not handed in yet"


@allows("hooks")
@blind_to(swallows_errors="point 2 says so, and takes its point away", removes_another_hook="the same")
def check_q4(patch: Patch | None, head: object, control: object, vector: object) -> Wrong | None:
    rubric: list[tuple[str, Callable[[], str | None]]] = [
        ("`patch` puts in that head at the last token, and nothing else", lambda: _wrong_patch(patch)),
        ("`patch` leaves no hook on, also after an error", lambda: _traces(patch)),
        ("`head` carries the place", lambda: _wrong_head(head)),
        ("`control` looks there, and carries nothing", lambda: _wrong_control(head, control)),
        ("`vector` sends everybody to the beach", lambda: _weak(vector)),
        ("a random vector of that length leaves the answers alone", lambda: _rough(vector)),
    ]
    lines, points = [], 0
    for number, (asked, point) in enumerate(rubric, start=1):
        try:
            problem = point()
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
        points += problem is None
        lines.append(f"{number}. {'✓' if problem is None else '✗'} {asked}{f': {problem}' if problem else ''}")
    return None if points == len(rubric) else Wrong("\n".join([f"{points} of {len(rubric)} points.", *lines]))


# -- the head, and its control --------------------------------------------------------------------------------------


def _named(head: object) -> tuple[int, int] | None:
    """Return a head as block and number, or None."""
    if isinstance(head, tuple | list) and len(head) == 2 and all(type(each) is int for each in head):
        block, number = head
        if 0 <= block < _BLOCKS and 0 <= number < _HEADS:
            return block, number
    return None


def _moved(model: StoryLM, block: int, head: int) -> int:
    """How many of 100 answers become the place of the other text, which has the same people, when a head is patched."""
    corrupted = errands(_COUNT, seed=1601).tokens
    clean, places, _ = errands(_COUNT, seed=1601, places=PLACES[::-1])
    return int((_patched(model, clean, corrupted, block, head).argmax(-1) == places).sum())


def _wrong_head(head: object) -> str | None:
    if head is None:
        return _MISSING
    if (named := _named(head)) is None:
        return f"{head!r} is not a head; write (block, head), for example (0, 3)"
    model = errand_lm()
    moved = {
        (block, number): _moved(model, block, number) for block in range(_BLOCKS) for number in range(_HEADS)
    }
    if named == max(moved, key=moved.__getitem__):
        return None
    return (
        f"with the same people and other places, a patch of {named} at the last token moves {moved[named]} of {_COUNT} "
        "answers; a patch of another head moves more"
    )


def _looks(model: StoryLM, block: int) -> list[float]:
    """How much each head of a block looks from the last token to the place in question."""
    tokens, _, looks = errands(_COUNT, seed=1602)
    weights = attention(model, tokens)[f"blocks.{block}.attn"].weights
    return cast(list[float], weights[torch.arange(_COUNT), :, -1, looks].mean(0).tolist())


def _wrong_control(head: object, control: object) -> str | None:
    if control is None:
        return _MISSING
    named, other = _named(head), _named(control)
    if other is None:
        return f"{control!r} is not a head; write (block, head), for example (0, 3)"
    if named is None:
        return "a control is one beside a head, and yours is missing"
    if other == named:
        return "that is your head; a control is another one"
    if other[0] != named[0]:
        return "take one of the same block, so that both have seen the same"
    model = errand_lm()
    looks = _looks(model, other[0])
    if looks[other[1]] < 0.9 * looks[named[1]]:
        return (
            f"it looks there with {looks[other[1]]:.2f}, and your head with {looks[named[1]]:.2f}; a control that does "
            "not look there proves less"
        )
    moved = _moved(model, *other)
    return None if moved <= 5 else f"a patch of it moves {moved} of {_COUNT} answers, so it does carry something"


# -- the patch --------------------------------------------------------------------------------------------------------


def _proj(model: nn.Module, block: int) -> nn.Module:
    return model.get_submodule(f"blocks.{block}.attn.proj")


def _patched(model: StoryLM, clean: Tensor, corrupted: Tensor, block: int, head: int) -> Tensor:
    kept: list[Tensor] = []
    columns = slice(_WIDTH * head, _WIDTH * head + _WIDTH)

    def put(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[:, -1, columns] = kept[0][:, -1, columns]
        return (x,)

    with torch.no_grad():
        with _proj(model, block).register_forward_pre_hook(lambda module, args: kept.append(args[0])):
            model(clean)
        with _proj(model, block).register_forward_pre_hook(put):
            return cast(Tensor, model(corrupted)[:, -1])


def _wrong_patch(patch: Patch | None) -> str | None:
    if patch is None:
        return _MISSING
    model = errand_lm()
    clean, corrupted = (errands(7, seed=seed).tokens for seed in (1603, 1604))
    with torch.no_grad():
        runs = {"clean": model(clean)[:, -1], "corrupted": model(corrupted)[:, -1]}
    for block in range(_BLOCKS):
        for head in range(_HEADS):
            got = patch(model, clean.clone(), corrupted.clone(), block, head)
            wanted = _patched(model, clean, corrupted, block, head)
            if not isinstance(got, Tensor) or got.shape != wanted.shape:
                what = f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
                return f"for 7 texts it returned {what}, not the logits of the last token, (7, 67)"
            if torch.allclose(got, wanted, atol=1e-4):
                continue
            for name, plain in runs.items():
                if torch.allclose(got, plain, atol=1e-4):
                    return f"for head {head} of block {block} it returned the logits of the {name} run, without a patch"
            return f"for head {head} of block {block} the logits are not those of that patch, at that token alone"
    return None


def _traces(patch: Patch | None) -> str | None:
    if patch is None:
        return _MISSING
    tokens = errands(3, seed=1605).tokens
    model = cast(StoryLM, with_others(errand_lm()))
    patch(model, tokens, tokens.flip(0), 1, 0)
    if left := left_on(model):
        return f"{hooks_are(left)} still on the model after a run"
    for block in range(_BLOCKS):
        for call in (1, 2):  # while it keeps, and while it puts in
            model, breaks = errand_lm(), _BreaksLater(call)
            cast(Any, model).norm = nn.Sequential(model.norm, breaks)
            with_others(model)
            before = len(census(model, include_global=False))
            try:
                patch(model, tokens, tokens.flip(0), block, 0)
            except Broken:
                pass
            else:
                if breaks.calls >= call:
                    return "a layer raised an error, and your function kept it to itself"
            left = len(census(model, include_global=False)) - before
            if left > 0:
                return f"a layer raised an error, and {hooks_are(left)} still on the model; use `with` or `finally`"
            if left < 0:
                return "a hook of somebody else is gone; take off your own, and no other"
    return None


class _BreaksLater(nn.Module):
    """Hands on what it gets, and raises at one of its calls."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise Broken("this layer breaks")
        return x


# -- the vector -------------------------------------------------------------------------------------------------------


def _answers(model: StoryLM, tokens: Tensor, vector: Tensor) -> Tensor:
    def push(module: nn.Module, args: object, output: Tensor) -> Tensor:
        pushed = output.clone()
        pushed[:, -1] += vector
        return pushed

    with torch.no_grad(), model.blocks[0].register_forward_hook(push):
        return cast(Tensor, model(tokens)[:, -1].argmax(-1))


def _misfit(vector: object) -> str | None:
    if vector is None:
        return _MISSING
    if not isinstance(vector, Tensor) or vector.shape != (64,):
        what = f"shape {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
        return f"hand in 64 numbers in a tensor, not {what}"
    if not bool(torch.isfinite(vector).all()) or not bool(vector.any()):
        return "the vector has to be finite, and not all zeros"
    return None


def _weak(vector: Any) -> str | None:
    if misfit := _misfit(vector):
        return misfit
    model, vector = errand_lm(), vector.detach().float()
    beach = STORY_WORDS.index("beach")
    inland = [place for place in PLACES if place != "beach"]
    for where, tokens in (
        ("texts", errands(_COUNT, seed=1606).tokens),
        ("texts in which nobody goes to the beach", errands(_COUNT, seed=1607, places=inland).tokens),
    ):
        sent = int((_answers(model, tokens, vector) == beach).sum())
        if sent < 0.9 * _COUNT:
            return f"in {sent} of {_COUNT} {where} the model says *beach*; bring it to 90"
    return None


def _rough(vector: Any) -> str | None:
    if misfit := _misfit(vector):
        return misfit
    model, vector = errand_lm(), vector.detach().float()
    tokens, places, _ = errands(_COUNT, seed=1608)
    chance = torch.Generator().manual_seed(1609)
    right = 0
    for _ in range(10):
        random = torch.randn(64, generator=chance)
        right += int((_answers(model, tokens, random * vector.norm() / random.norm()) == places).sum())
    return None if right >= 9 * _COUNT else (
        f"with random vectors of that length, {right // 10} of {_COUNT} texts end right; yours is so long that any does harm"
    )  # fmt: skip
