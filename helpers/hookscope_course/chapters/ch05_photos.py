"""Code of the chapters for the photographs: the network with or without its weights, and more cats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope import samples
from hookscope.samples.efficientnet import PHOTO_WEIGHTS

__all__ = ["load_photo_cnn", "name_part_of_cat", "vary_cat"]

# In pixels of samples.photo("cat"): the center and the radius of a disk.
_EYES = ((86, 73, 30), (102, 182, 26))
_NOSE = ((185, 142, 26),)
MISSING = (
    f"NOTE: the weights of the photo network are missing ({PHOTO_WEIGHTS}). It goes on untrained, so what it says on "
    "this page means nothing. The folder notebooks/ has the page with the results of the trained network. "
    "Other networks on the page are as they should be."
)


def load_photo_cnn() -> samples.PhotoCNN:
    """Return `samples.photo_cnn()`; if its weights are not installed, say so, and return an untrained network.

    Example:
        >>> load_photo_cnn().training
        False

    """
    if samples.has_photo_weights():
        return samples.photo_cnn()
    print(MISSING)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return samples.PhotoCNN().eval()


def name_part_of_cat(heat: Tensor) -> str:
    """Name the part of `samples.photo("cat")` on which a map (h, w) has its highest value.

    Returns:
        "the eyes", "the nose", "the fur", or "nowhere" if the map is 0 everywhere.

    Example:
        >>> heat = torch.zeros(14, 14)
        >>> heat[5, 4] = 1
        >>> name_part_of_cat(heat)
        'the eyes'

    """
    if not heat.any():
        return "nowhere"
    high, wide = heat.shape
    row, column = divmod(int(heat.argmax()), wide)
    y, x = (row + 0.5) * 224 / high, (column + 0.5) * 224 / wide
    for name, disks in {"the eyes": _EYES, "the nose": _NOSE}.items():
        if any((y - down) ** 2 + (x - across) ** 2 <= radius**2 for down, across, radius in disks):
            return name
    return "the fur"


def vary_cat() -> dict[str, Tensor]:
    """Return the cat, the cat in five variations, and the astronaut's face, each normalized, (1, 3, 224, 224).

    Example:
        >>> list(vary_cat())[:2]
        ['the cat', 'one eye covered']

    """
    cat = samples.photo("cat")
    face = samples.photo("astronaut")[..., 20:110, 50:140]
    return {
        "the cat": cat,
        "one eye covered": _cover(cat, _EYES[:1]),
        "both covered": _cover(cat, _EYES),
        "upside down": cat.flip(2),
        "half as large": F.interpolate(F.pad(cat, (112, 112, 112, 112)), size=224, mode="bilinear", antialias=True),
        "twice as large": F.interpolate(cat[..., 40:152, 20:132], size=224, mode="bilinear"),
        "a human face": F.interpolate(face, size=224, mode="bilinear"),
    }


def _cover(image: Tensor, disks: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Return an image with gray disks: 0 is the mean color of ImageNet."""
    rows, columns = torch.meshgrid(torch.arange(224), torch.arange(224), indexing="ij")
    image = image.clone()
    for down, across, radius in disks:
        image[..., (rows - down) ** 2 + (columns - across) ** 2 < radius**2] = 0
    return image
