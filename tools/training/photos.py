"""Crop the bundled photographs from those of scikit-image: python -m tools.training.photos.

It needs scikit-image, which ships the complete photographs. hookscope ships the squares, so only this script needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.samples.photos import PHOTO_PIXELS, PHOTOS, crop


def crop_photos() -> dict[str, Tensor]:
    """Return the square in the center of each photograph, uint8 of shape (3, 224, 224), or (1, 224, 224) in gray."""
    from skimage import data

    raw = {"cat": data.chelsea(), "coffee": data.coffee(), "camera": data.camera()}
    raw |= {"rocket": data.rocket(), "astronaut": data.astronaut()}
    return {name: crop(torch.from_numpy(raw[name].copy())) for name in PHOTOS}


def main() -> None:
    """Write the file."""
    from safetensors.torch import save_file

    save_file({name: pixels.contiguous() for name, pixels in crop_photos().items()}, PHOTO_PIXELS)
    print(f"wrote {PHOTO_PIXELS.name}, {PHOTO_PIXELS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
