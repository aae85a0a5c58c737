"""Crop the bundled photographs from those of scikit-image: python -m hookscope.samples.crop_photos.

It needs scikit-image, which ships the complete photographs. hookscope ships the squares, so only this script needs it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.samples.photos import PHOTO_PIXELS, PHOTOS

SIDE = 224  # pixels


def crop_photos() -> dict[str, Tensor]:
    """Return the square in the center of each photograph, uint8 of shape (3, 224, 224), or (1, 224, 224) in gray."""
    from skimage import data

    raw = {"cat": data.chelsea(), "coffee": data.coffee(), "camera": data.camera()}
    raw |= {"rocket": data.rocket(), "astronaut": data.astronaut()}
    return {name: crop(torch.from_numpy(raw[name].copy())) for name in PHOTOS}


def crop(photograph: Tensor) -> Tensor:
    """Cut the largest square out of the center, and shrink it."""
    pixels = photograph.permute(2, 0, 1) if photograph.ndim == 3 else photograph[None]
    height, width = pixels.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[None, :, top : top + side, left : left + side].double()  # so that every machine rounds alike
    small = F.interpolate(square, size=(SIDE, SIDE), mode="bicubic", antialias=True)
    return small[0].clamp(0, 255).round().to(torch.uint8)


def main() -> None:
    """Write the file."""
    from safetensors.torch import save_file

    save_file({name: pixels.contiguous() for name, pixels in crop_photos().items()}, PHOTO_PIXELS)
    print(f"wrote {PHOTO_PIXELS.name}, {PHOTO_PIXELS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
