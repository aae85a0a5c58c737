"""Load scanned digits, and a small CNN that classifies digits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookscope.samples.bundled import load_bundled

Split = Literal["test", "train", "all"]

# `tools/training/digits.py` writes it, `digit_cnn` loads it.
WEIGHTS = Path(__file__).with_name("digit_cnn.safetensors")
SCANS = WEIGHTS.with_name("digits.safetensors")
_TRAIN = 1437  # of 1797: four of five


class Digits(NamedTuple):
    """Images of digits with their labels. It unpacks to `images, labels`.

    Attributes:
        images: float32 in [0, 1], shape (N, 1, 28, 28): white strokes on black.
        labels: int64, shape (N,), 0 to 9.

    """

    images: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.images.shape))
        counts = torch.bincount(self.labels, minlength=10).tolist()
        each = " ".join(f"{label}:{count}" for label, count in enumerate(counts))
        kind = str(self.images.dtype).removeprefix("torch.")
        return f"{len(self.labels)} images from scikit-learn digits\nimages {shape} {kind}, labels {each}"


def digits(split: Split = "test") -> Digits:
    """Load the 1797 handwritten digits that scikit-learn ships, in the format of MNIST.

    They are the test part of the "Optical Recognition of Handwritten Digits" data set (E. Alpaydin, C. Kaynak; UCI,
    1998): 8×8 scans with 17 gray levels, enlarged here to 28×28 with an empty border. 1437 of them are in "train" and
    360 in "test", after a fixed shuffle. The same people wrote both parts.

    Args:
        split: "test", "train" (the training data of `digit_cnn`), or "all".

    Returns:
        Digits: new tensors in each call, always in the same order.

    Example:
        >>> images, labels = digits()
        >>> images.shape, labels[:8].tolist()
        (torch.Size([360, 1, 28, 28]), [7, 9, 4, 7, 0, 2, 6, 1])

    """
    parts = {"train": slice(None, _TRAIN), "test": slice(_TRAIN, None), "all": slice(None)}
    if split not in parts:
        raise ValueError(f"no split {split!r}. Pass 'test', 'train' or 'all'")
    images, labels = _load()
    return Digits(images[parts[split]].clone(), labels[parts[split]].clone())


def digit(label: int = 5, index: int = 0) -> Tensor:
    """Return one digit of the test split. `digit(1)` is one of the three digits that `digit_cnn` gets wrong.

    Args:
        label: the digit, 0 to 9.
        index: which image of this digit, counted from 0.

    Returns:
        A float32 tensor of shape (1, 1, 28, 28), values in [0, 1]: a batch of one.

    Example:
        >>> digit(5).shape
        torch.Size([1, 1, 28, 28])

    """
    images, labels = digits("test")
    if not isinstance(label, int) or label not in range(10):
        raise ValueError(f"no digit {label!r}. Pass 0 to 9")
    found = images[labels == label]
    if index not in range(len(found)):
        raise IndexError(
            f"no index {index}: there are {len(found)} test images of a {label}. Pass 0 to {len(found) - 1}"
        )
    return found[index : index + 1].clone()


@lru_cache(maxsize=1)
def _load() -> tuple[Tensor, Tensor]:
    """Read, enlarge and shuffle the digits. Callers must copy the result."""
    import numpy as np

    raw = load_bundled(SCANS, "the handwritten digits")
    # The one generator whose values never change between versions.
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(raw["labels"])))
    scans = raw["images"][order].double().unsqueeze(1) / 16
    # Pad first, so that a stroke at the edge of the scan fades out instead of ending in a straight line.
    enlarged = F.interpolate(F.pad(scans, (1, 1, 1, 1)), size=(24, 24), mode="bicubic", align_corners=False)
    # 8 bits, as in MNIST. In double precision no value is so close to a rounding boundary that machines could differ.
    levels = F.pad(enlarged, (2, 2, 2, 2)).clamp(0, 1).mul(255).round().float()
    return levels / 255, raw["labels"][order].long()


class DigitCNN(nn.Module):
    """A small CNN for 28×28 images: three blocks and a head, with a name for each layer.

    `block1` (`conv`, `relu`) returns 16 maps of 28×28, `block2` (`conv`, `relu`, `pool`) 24 of 14×14, and `block3` (the
    same layers) 32 of 7×7. `head` is `flatten`, `linear`. No ReLU is in-place.

    Example:
        >>> model = DigitCNN()
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
        >>> model.block3(torch.zeros(1, 24, 14, 14)).shape
        torch.Size([1, 32, 7, 7])

    """

    def __init__(self) -> None:
        super().__init__()
        self.block1 = _build_block(conv=nn.Conv2d(1, 16, 5, padding=2), relu=nn.ReLU())
        self.block2 = _build_block(conv=nn.Conv2d(16, 24, 3, padding=1), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
        self.block3 = _build_block(conv=nn.Conv2d(24, 32, 3, padding=1), relu=nn.ReLU(), pool=nn.MaxPool2d(2))
        self.head = _build_block(flatten=nn.Flatten(), linear=nn.Linear(32 * 7 * 7, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (N, 10) for images of shape (N, 1, 28, 28) with values in [0, 1]."""
        x = self.block1(images)
        x = self.block2(x)
        x = self.block3(x)
        return self.head(x)  # type: ignore[no-any-return]


def _build_block(**layers: nn.Module) -> nn.Sequential:
    block = nn.Sequential()
    for name, layer in layers.items():
        block.add_module(name, layer)
    return block


def digit_cnn(trained: bool = True) -> DigitCNN:
    """Return a `DigitCNN` in eval mode.

    Args:
        trained: load the trained weights of the package, which `tools/training/digits.py` made from the train split.
            Otherwise the weights are random, and the same in each call.

    Returns:
        A new model. The global random state does not change.

    Example:
        >>> int(digit_cnn()(digit(5)).argmax())
        5

    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = DigitCNN()
    if trained:
        model.load_state_dict(load_bundled(WEIGHTS, "a trained DigitCNN"))
    return model.eval()
