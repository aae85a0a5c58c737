"""Networks that several tests need, named by what they are; those that are hard to watch are in `awkward_models`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.shared.awkward_models import Net


def make_calls_twice(layer: nn.Module | None = None) -> Net:
    """Build a model that calls its one layer, `fc`, twice."""
    return Net(lambda self, x: self.fc(self.fc(x)), fc=nn.Linear(4, 4) if layer is None else layer)


def make_two_heads() -> Net:
    """Build a model that uses its input twice inside of `trunk`, a dict of layers that nobody calls."""
    trunk = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    return Net(lambda self, x: (self.trunk["a"](x), self.trunk["b"](x)), trunk=trunk)


def make_checkpointed(block: nn.Module, reentrant: bool = False) -> Net:
    """Build a model that runs its one part, `block`, in a checkpoint."""
    run = partial(checkpoint, use_reentrant=reentrant)
    return Net(lambda self, x: run(self.block, x), block=block)


def make_projected_attention(
    run: Callable[..., Tensor],
    width: int = 8,
    wrap: Callable[[nn.Linear], nn.Module] = lambda layer: layer,
    bias: bool = True,
    **more: Any,
) -> Net:
    """Build an attention with a layer for its queries, `q`, one for its keys, `k`, and one for its values, `v`."""
    return Net(run, **{name: wrap(nn.Linear(width, width, bias=bias)) for name in "qkv"}, **more).eval()


def resnet18(classes: int = 1000) -> nn.Module:
    """Build a ResNet of torchvision with random weights, in eval()."""
    from torchvision import models

    torch.manual_seed(0)
    model: nn.Module = models.resnet18(weights=None, num_classes=classes).eval()
    return model
