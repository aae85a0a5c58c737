"""Photographs of five materials, and a small CNN that classifies them at each position of an image."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookscope.samples.bundled import load_bundled

TEXTURE_WEIGHTS = Path(__file__).with_name("texture_cnn.safetensors")
"""The weights that `tools/training/textures.py` writes and `texture_cnn` loads."""
TEXTURE_PICTURES = Path(__file__).with_name("textures.safetensors")
"""The held-out part of each photograph, written by `tools/training/textures.py`."""
TEXTURES = ("brick", "grass", "gravel", "fur", "stars")
"""The materials. The index in this tuple is the class."""
SIDE = 128  # pixels of a held-out image


class Collage(NamedTuple):
    """Four materials in one image.

    Attributes:
        image: float32 in [0, 1], shape (1, 1, 2 · side, 2 · side).
        names: the materials at the top left, top right, bottom left and bottom right.

    """

    image: Tensor
    names: tuple[str, str, str, str]


def texture(name: str = "brick") -> Tensor:
    """Return a photograph of a material that was not in the training data of `texture_cnn`.

    Brick, grass and gravel are from CC0Textures, and the cat's fur is by Stéfan van der Walt (all CC0). The stars are
    part of the Hubble Extreme Deep Field (NASA, public domain). scikit-image ships the complete images.

    Args:
        name: "brick", "grass", "gravel", "fur" or "stars".

    Returns:
        A float32 tensor of shape (1, 1, 128, 128), gray levels in [0, 1]: a batch of one.

    Example:
        >>> texture("fur").shape
        torch.Size([1, 1, 128, 128])

    """
    if name not in TEXTURES:
        raise ValueError(f"no texture {name!r}. Pass one of {', '.join(TEXTURES)}")
    return _pictures()[name].float()[None, None] / 255


def collage(*names: str) -> Collage:
    """Combine four materials into one image.

    Args:
        names: the materials at the top left, top right, bottom left and bottom right. By default brick, grass, fur and
            gravel.

    Returns:
        Collage: the image, float32 of shape (1, 1, 256, 256), and the names of the materials.

    Example:
        >>> picture = collage()
        >>> picture.image.shape, picture.names
        (torch.Size([1, 1, 256, 256]), ('brick', 'grass', 'fur', 'gravel'))

    """
    a, b, c, d = _check_four(names or ("brick", "grass", "fur", "gravel"))
    rows = [torch.cat([texture(left), texture(right)], -1) for left, right in ((a, b), (c, d))]
    return Collage(torch.cat(rows, -2), (a, b, c, d))


def _check_four(names: tuple[str, ...]) -> tuple[str, str, str, str]:
    if len(names) != 4:
        raise ValueError(f"a collage has four materials, not {len(names)}. Pass four names")
    return names[0], names[1], names[2], names[3]


@lru_cache(maxsize=1)
def _pictures() -> dict[str, Tensor]:
    return load_bundled(TEXTURE_PICTURES, "the photographs of materials")


class TextureCNN(nn.Module):
    """A small CNN for gray images of 32×32 pixels or more: four blocks, the mean over all positions, and a head.

    `block1` to `block4` (`conv`, `norm`, `relu`, and `pool` except in the last) return 16, 24, 32 and 48 maps. A pool
    halves the width. `head` is `mean`, `flatten`, `linear`. No ReLU is in-place.

    Example:
        >>> model = TextureCNN().eval()
        >>> model(torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 5])

    """

    def __init__(self) -> None:
        super().__init__()
        self.block1 = _block(1, 16, 7)
        self.block2 = _block(16, 24, 5)
        self.block3 = _block(24, 32, 3)
        self.block4 = _block(32, 48, 3, pool=False)
        self.head = nn.Sequential()
        for name, layer in {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}.items():
            self.head.add_module(name, layer)
        self.head.add_module("linear", nn.Linear(48, len(TEXTURES)))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (N, 5) for images of shape (N, 1, H, W) with values in [0, 1]."""
        x = self.block1(images)
        x = self.block2(x)
        x = self.block3(x)
        x = self.block4(x)
        return self.head(x)  # type: ignore[no-any-return]


def _block(inputs: int, outputs: int, size: int, pool: bool = True) -> nn.Sequential:
    block = nn.Sequential()
    block.add_module("conv", nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False))
    block.add_module("norm", nn.BatchNorm2d(outputs))
    block.add_module("relu", nn.ReLU())
    if pool:
        block.add_module("pool", nn.MaxPool2d(2))
    return block


def texture_cnn(trained: bool = True) -> TextureCNN:
    """Return a `TextureCNN` in eval mode.

    Args:
        trained: load the trained weights of the package (`tools/training/textures.py` made them from the rest of the
            photographs). Otherwise the weights are random, and the same in each call.

    Returns:
        A new model. The global random state does not change.

    Example:
        >>> TEXTURES[int(texture_cnn()(texture("gravel")).argmax())]
        'gravel'

    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = TextureCNN()
    if trained:
        model.load_state_dict(load_bundled(TEXTURE_WEIGHTS, "a trained TextureCNN"))
    return model.eval()
