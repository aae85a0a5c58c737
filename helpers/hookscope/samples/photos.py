"""Five photographs, as a CNN that was trained on ImageNet expects them."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.samples.bundled import load_bundled

PHOTO_PIXELS = Path(__file__).with_name("photos.safetensors")
"""The photographs, written by tools/training/photos.py."""
PHOTOS = ("cat", "coffee", "camera", "rocket", "astronaut")
"""The names of the photographs."""
SIDE = 224
"""Height and width of a photograph, in pixels."""
# The mean and the standard deviation of red, green and blue in the photographs of ImageNet.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photo(name: str = "cat") -> Tensor:
    """Return a photograph, normalized with the mean and the standard deviation of ImageNet.

    The cat is by Stéfan van der Walt, the coffee by Rachel Michetti, and the camera, in gray, by Lav Varshney (all
    CC0). The rocket (SpaceX) and the astronaut Eileen Collins (NASA) are in the public domain. scikit-image ships the
    complete images. These are the squares in their centers.

    Args:
        name: "cat", "coffee", "camera", "rocket" or "astronaut".

    Returns:
        A float32 tensor of shape (1, 3, 224, 224): a batch of one. `denormalize` returns its colors.

    Raises:
        ValueError: there is no photograph of that name; suggests a similar name.

    Example:
        >>> photo("coffee").shape
        torch.Size([1, 3, 224, 224])

    """
    if name not in PHOTOS:
        near = get_close_matches(str(name), PHOTOS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f". Pass one of {', '.join(PHOTOS)}"
        raise ValueError(f"no photo {name!r}{hint}")
    return normalize(_load()[name].expand(3, -1, -1)[None].float() / 255)


def crop(photograph: Tensor) -> Tensor:
    """Cut the largest square out of the center, and shrink it."""
    pixels = photograph.permute(2, 0, 1) if photograph.ndim == 3 else photograph[None]
    height, width = pixels.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[None, :, top : top + side, left : left + side].double()  # so that every machine rounds alike
    small = F.interpolate(square, size=(SIDE, SIDE), mode="bicubic", antialias=True)
    return small[0].clamp(0, 255).round().to(torch.uint8)


def normalize(colors: Tensor) -> Tensor:
    """Return red, green and blue from 0 to 1, of shape (N, 3, H, W), as the network expects them."""
    mean, std = _constants(colors)
    return (colors - mean) / std


def denormalize(images: Tensor) -> Tensor:
    """Return the colors of normalized images, for example to draw what you changed in a photograph.

    Args:
        images: as `photo` returns them, of shape (N, 3, H, W) or (3, H, W).

    Returns:
        Red, green and blue from 0 to 1, of the same shape. Values outside are set to 0 or 1.

    Example:
        >>> colors = denormalize(photo("cat"))
        >>> bool((colors >= 0).all() and (colors <= 1).all())
        True

    """
    if images.ndim not in (3, 4) or images.shape[-3] != 3:
        raise ValueError(f"images has the shape {tuple(images.shape)}. Pass (N, 3, H, W) or (3, H, W)")
    mean, std = _constants(images)
    return (images * std + mean).clamp(0, 1)


def _constants(like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values, dtype=like.dtype, device=like.device) for values in (_MEAN, _STD))
    return mean[:, None, None], std[:, None, None]


@lru_cache(maxsize=1)
def _load() -> dict[str, Tensor]:
    return load_bundled(PHOTO_PIXELS, "the photographs")
