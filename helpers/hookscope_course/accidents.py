"""Damaged networks, for chapters in which you find out what is wrong with them."""

from __future__ import annotations

from torch import nn

from hookscope import samples


def patient() -> nn.Module:
    """Build the digit CNN after an accident: one of its layers has died."""
    net = samples.digit_cnn()
    nn.init.constant_(net.get_submodule("block2.conv").get_parameter("bias"), -100.0)
    return net
