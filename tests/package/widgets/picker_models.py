"""Models and images for the layer picker."""

import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope.widgets import LayerPicker


def make_digit_picker() -> LayerPicker:
    return LayerPicker(samples.digit_cnn(), samples.digit(5))


def make_convs(channels: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(5)
    )


def make_images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 10, 10, generator=torch.Generator().manual_seed(1))
