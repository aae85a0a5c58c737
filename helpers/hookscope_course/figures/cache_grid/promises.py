"""What `CacheGrid` promises, in Python and on the page; the tests of all figures read it."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from hookscope_course.figures.cache_grid.figure import CacheGrid
from hookscope_course.figures.kit.promises import Controls, Promises


def make_gpt2() -> nn.Module:
    """Make a GPT-2 of 2 layers with 2 heads, 16 wide."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=32, bos_token_id=0, eos_token_id=0)
    return cast(nn.Module, GPT2LMHeadModel(config).eval())


PROMISES: dict[str, Promises] = {
    "CacheGrid": Promises(
        lambda net: CacheGrid(net, "transformer.h.0"),
        {"change": "output[:, -1]", "marks": ["0,0,4"], "ran": True},
        refused=(
            ("marks", ["0,1,3"], "there is no cell '0,1,3'"),
            ("change", "grad", "choose from 'output[:, 3]'"),
        ),
        model=make_gpt2,
        reveal={"ran": True},
        hidden="hits",
        is_random=True,
    ),
}

CONTROLS: dict[str, Controls] = {
    "CacheGrid": Controls(
        "The cache as a grid",
        """
from hookscope_course.figures import CacheGrid

from transformers import GPT2Config, GPT2LMHeadModel
gpt = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=100, bos_token_id=None, eos_token_id=None))
grid = CacheGrid(gpt.eval(), "transformer.h.0")
grid
""",
        (
            "button:has-text('output[:, -1]')",
            "button[aria-label='with the cache, call 1, token 4']",
            "button:has-text('Run generate()')",
        ),
        "grid.change, grid.marks, grid.ran",
        "output[:, -1] ['0,0,4'] True",
        "button[aria-label='with the cache, call 1, token 4']",
        ("ArrowDown", "Space"),
        "output[:, 3] ['0,1,5'] False",
    ),
}
