"""A sweep takes a quarter of the time that the plain loop of hooks takes, and gives the same."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from hookscope import sweep
from tests.shared.swept import by_hand, outputs_of

LAYERS = [f"transformer.h.{i}{part}" for i in range(6) for part in ("", ".attn", ".mlp")]


def logit(output):
    return output.logits[0, -1, 5] - output.logits[0, -1, 7]


def measured(width: int, rounds: int) -> tuple[float, float]:
    """The ratio of the least processor times, measured in turn, and the largest difference as a share of the scale."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=6, n_embd=width, n_head=4, vocab_size=1000, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    net: nn.Module = GPT2LMHeadModel(config).eval()
    tokens, others = torch.randint(0, 1000, (2, 1, 12))

    def plain():
        new = outputs_of(net, lambda: net(others), LAYERS)
        return by_hand(net, lambda: net(tokens), LAYERS, new, [(slice(None), p) for p in range(12)], logit)

    def ours():
        return sweep(net, tokens, LAYERS, others, positions=range(12), metric=logit, progress=False)

    ours()
    least = {plain: float("inf"), ours: float("inf")}
    for _ in range(rounds):
        for function in least:
            begin = time.process_time()
            result = function()
            least[function] = min(least[function], time.process_time() - begin)
            if function is plain:
                known = result
    apart = (result.values - known).abs().max() / known.abs().max()
    print(f"{width} wide: {least[ours] / least[plain]:.3f} of {least[plain]:.2f} s, apart {apart:.1e}")
    return least[ours] / least[plain], float(apart)


def test_216_patches_of_gpt2_128_wide_take_a_quarter_of_the_plain_loop() -> None:
    ratio, apart = measured(128, 2)
    assert ratio <= 0.25
    assert apart <= 1e-5


@pytest.mark.slow
def test_216_patches_of_gpt2_768_wide_take_a_third_of_the_plain_loop() -> None:
    ratio, apart = measured(768, 2)
    assert ratio <= 0.35
    assert apart <= 1e-5
