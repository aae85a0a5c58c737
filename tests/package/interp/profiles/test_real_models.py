"""FLOPs of layers of torchvision's and transformers' models are those of torch's own counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hookscope import census, profile
from tests.shared.language_models import IDS, gpt2, small_vit
from tests.shared.networks import resnet18


@pytest.mark.parametrize("kind", ["resnet18", "vit", "gpt2"])
def test_flops_are_those_of_torchs_counter_and_no_hook_stays(kind: str) -> None:
    make: Any = {"resnet18": resnet18, "vit": small_vit, "gpt2": gpt2}[kind]
    net, x = make(), IDS if kind == "gpt2" else torch.randn(2, 3, 32, 32)
    net.requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        net(x)
    costs = profile(net, x, repeats=1, backward=False)
    theirs = counter.get_flop_counts()
    title = type(net).__name__
    assert costs[""].flops == sum(theirs["Global"].values()) > 0
    for name in costs:
        assert costs[name].flops == sum(theirs.get(f"{title}.{name}" if name else title, {}).values())
    assert not len(census(net))
