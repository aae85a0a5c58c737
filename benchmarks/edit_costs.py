"""What it costs to change a layer, to sweep over layers and positions, and to see attention, against plain torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import hookscope
from hookscope.interp.edits import Edit
from tests.shared.sweep_helpers import get_outputs, sweep_by_hand

__all__ = ["attending", "editing", "sweeping"]

TOKENS = 12
LAYERS = [f"transformer.h.{number}{part}" for number in range(6) for part in ("", ".attn", ".mlp")]


def gpt2(width: int, heads: int = 4, layers: int = 6) -> nn.Module:
    """Make a GPT-2 of random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=1000, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    model: nn.Module = GPT2LMHeadModel(config).eval()
    return model


def in_turn(rounds: int, *passes: Callable[[], object]) -> list[float]:
    """Return the median processor time of each pass, the first one's in seconds, the others' as ratios to it."""
    taken: list[list[float]] = [[] for _ in passes]
    for _ in range(rounds + 1):  # the first time warms up
        for times, run in zip(taken, passes, strict=True):
            begin = time.process_time()
            run()
            times.append(time.process_time() - begin)
    first = median(taken[0][1:])
    return [first, *(median(t / f for t, f in zip(times[1:], taken[0][1:], strict=True)) for times in taken[1:])]


def sweeping(width: int, rounds: int) -> tuple[float, float, float]:
    """Patch each of 18 layers at each of 12 positions: seconds of the plain loop, ratio, difference by scale."""
    net = gpt2(width)
    tokens, others = torch.randint(0, 1000, (2, 1, TOKENS))
    known: list[Tensor] = []

    def logit(output: Any) -> Tensor:
        change: Tensor = output.logits[0, -1, 5] - output.logits[0, -1, 7]
        return change

    def plain() -> None:
        new = get_outputs(net, lambda: net(others), LAYERS)
        places = [(slice(None), position) for position in range(TOKENS)]
        known[:] = [sweep_by_hand(net, lambda: net(tokens), LAYERS, new, places, logit)]

    def ours() -> Tensor:
        options = hookscope.SweepOptions(progress=False)
        return hookscope.sweep(
            net, tokens, layers=LAYERS, source=others, positions=range(TOKENS), metric=logit, options=options
        ).values

    seconds, ratio = in_turn(rounds, plain, ours)
    return seconds, ratio, float((ours() - known[0]).abs().max() / known[0].abs().max())


def attending(width: int, heads: int, layers: int, tokens: int, rounds: int) -> float:
    """See every attention map of a GPT-2: the ratio to the pass alone."""
    net, words = gpt2(width, heads, layers), torch.randint(0, 1000, (1, tokens))

    def plain() -> None:
        with torch.no_grad():
            net(words)

    return in_turn(rounds, plain, lambda: hookscope.attention(net, words))[1]


def editing(model: nn.Module, inputs: Tensor, layers: list[str], rounds: int, stay: bool) -> float:
    """Scale what some layers return: the ratio to plain hooks that do the same.

    Args:
        model: the model.
        inputs: what it is called with.
        layers: the layers.
        rounds: how often each pass is timed.
        stay: whether the block stays open, and the hooks on, from pass to pass; else each pass has new ones.

    """

    def scale(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return (output[0] * 0.5, *output[1:]) if isinstance(output, tuple) else output * 0.5

    def hook() -> list[RemovableHandle]:
        return [model.get_submodule(layer).register_forward_hook(scale) for layer in layers]

    def block() -> Edit:
        changes = hookscope.edit(model)
        for layer in layers:
            changes.scale(layer, 0.5)
        return changes

    def plain() -> None:
        handles = hook()
        model(inputs)
        for handle in handles:
            handle.remove()

    def ours() -> None:
        with block():
            model(inputs)

    def of_one_pass() -> Iterator[tuple[float, float]]:
        for _ in range(rounds + 1):
            handles = hook()
            by_hooks = _second(model, inputs)
            for handle in handles:
                handle.remove()
            with block():
                yield _second(model, inputs), by_hooks

    with torch.no_grad():
        if not stay:
            return in_turn(rounds, plain, ours)[1]
        return median(edited / hooked for edited, hooked in [*of_one_pass()][1:])


def _second(model: nn.Module, inputs: Tensor) -> float:
    """Return the processor time of the second of two passes."""
    model(inputs)
    begin = time.process_time()
    model(inputs)
    return time.process_time() - begin
