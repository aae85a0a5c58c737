"""Damaged networks, for chapters in which you find out what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hookscope import samples


def patient() -> nn.Module:
    """Build the digit CNN after an accident: one of its layers has died."""
    net = samples.digit_cnn()
    nn.init.constant_(net.get_submodule("block2.conv").get_parameter("bias"), -100.0)
    return net


def read_late(scans: Iterable[Tensor]) -> list[int]:
    """Read scans with a digit CNN whose hook returns the output for the scan before.

    Args:
        scans: each (1, 1, 28, 28).

    Example:
        >>> read_late(samples.digit(digit) for digit in (5, 3, 8))
        [5, 5, 3]

    """
    net, kept = samples.digit_cnn(), list[Tensor | None]([None])

    def late(module: nn.Module, args: object, output: Tensor) -> Tensor | None:
        kept.append(output)
        return kept.pop(0)

    with torch.no_grad(), net.get_submodule("block1").register_forward_hook(late):
        return [int(net(scan).argmax()) for scan in scans]
