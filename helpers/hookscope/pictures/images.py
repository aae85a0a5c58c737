"""Draw images in gray or color, and maps on top of their images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.pictures.map_drawing import (
    Layout,
    compose,
    describe_scale,
    encode_rgb,
    find_limits,
    say_scale,
    to_levels,
)
from hookscope.pictures.palette import COOLWARM, LEVELS, VIRIDIS, palette
from hookscope.pictures.picture import Picture
from hookscope.pictures.words import count_text

__all__ = ["image_grid"]

_LIGHTNESS = np.array([0.299, 0.587, 0.114])  # of red, green and blue, as in ITU-R BT.601


def image_grid(
    images: Tensor | NDArray[Any],
    *,
    over: Tensor | NDArray[Any] | None = None,
    strength: float = 0.6,
    scale: str | tuple[float, float] = "channel",
    center: float | None = None,
    names: Sequence[str] | None = None,
    title: str = "",
    columns: int | None = None,
    size: int | None = None,
) -> Picture:
    """Draw images side by side, each from its lowest value (black) to its highest, or maps on top of images.

    A smaller map is stretched over its image, so each value covers an even patch. Under a map, the image is gray, so
    all color belongs to the map. With a `center`, values near the center are transparent.

    Args:
        images: (N, 1 or 3, H, W), (1 or 3, H, W) or (H, W), real values on any device.
        over: maps, (N, h, w), (N, 1, h, w) or (h, w): one for each image, or any number over one image.
        strength: the opacity of the maps, 0 to 1.
        scale: the scale of the maps, as for `feature_grid`: "channel", "shared" or (low, high).
        center: the value in the middle of a blue-gray-red scale, 0 for gradients.
        names: a label above each image.
        title: the start of the caption.
        columns: the number of images in a row.
        size: the approximate width in pixels.

    Returns:
        A `Picture`. Its ``rows`` hold the min, max and mean of each map, or of each image without maps.

    Example:
        >>> import torch
        >>> image_grid(torch.rand(2, 3, 8, 8), names=["one", "two"], title="Noise").caption
        'Noise: 2 images of 8×8 in color'
        >>> heat = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> image_grid(torch.rand(1, 8, 8), over=heat, title="Heat").rows
        [{'image': 1, 'min': 0.0, 'max': 3.0, 'mean': 1.5}]

    """
    pixels = _check_images(images)
    maps = None if over is None else _check_maps(over, len(pixels))
    if not 0 <= strength <= 1:
        raise ValueError(f"strength={strength} is out of range. Pass a value from 0 to 1")
    count, high, wide = len(pixels) if maps is None else len(maps), *pixels.shape[-2:]
    if names is not None and len(names) != count:
        raise ValueError(
            f"{count_text(len(names), 'name')} for {count_text(count, 'image')}. Pass one name for each image"
        )
    labels = list(names) if names is not None else [""] * count
    shown, ends, how, scales = pixels if maps is None else maps, None, "", ""
    tiles = _to_rgb(pixels)
    colors = VIRIDIS if center is None else COOLWARM
    if maps is not None:
        low, top, shared = find_limits(maps.min(axis=(1, 2)), maps.max(axis=(1, 2)), scale, center)
        ends, how = describe_scale(shared, center)
        scales = say_scale(count, shared, center, "transparent")
        steps = to_levels(maps, low, top)
        alpha = np.full(steps.shape, strength)
        if center is not None:
            how = how.replace("(gray)", "(transparent)")
            alpha *= np.abs(steps.astype(int) - LEVELS // 2) / (LEVELS // 2)
        heat, alpha = (_stretch(each, high, wide) for each in (palette(colors)[steps].astype(float), alpha))
        gray = (tiles @ _LIGHTNESS)[..., None]
        tiles = heat * alpha[..., None] + gray * (1 - alpha[..., None])
    layout = Layout.fit((count, high, wide), labels, columns, size)
    blank = np.zeros((count, -(-high // layout.shrink), -(-wide // layout.shrink)), dtype=np.uint8)
    mosaic, boxes = compose(blank, labels, layout, ends)
    canvas = palette(colors)[mosaic]
    for tile, (left, above, across, down) in zip(_resize(tiles, layout), boxes, strict=True):
        canvas[above : above + down, left : left + across] = tile
    what = _describe(pixels, maps)
    head = f"{title}: {what}" if title else what
    rows = [
        {"image": names[i] if names is not None else i + 1}
        | {"min": float(each.min()), "max": float(each.max()), "mean": float(each.mean(dtype=np.float64))}
        for i, each in enumerate(shown)
    ]
    named = f": {', '.join(names)}" if names is not None else ""
    caption = f"{head}. {scales}" if scales else head
    return Picture(encode_rgb(np.ascontiguousarray(canvas)), f"{head}{named}. {how}".strip(), caption, rows)


def _describe(pixels: NDArray[Any], maps: NDArray[Any] | None) -> str:
    count, channels, high, wide = pixels.shape
    if maps is None:
        many = "an image" if count == 1 else f"{count} images"
        return f"{many} of {high}×{wide} in {'color' if channels == 3 else 'gray'}"
    many = "a map" if len(maps) == 1 else f"{len(maps)} maps"
    return f"{many} of {maps.shape[1]}×{maps.shape[2]} over the {'image' if count == 1 else 'images'}"


def _to_float64(given: Any, name: str) -> NDArray[np.float64]:
    if not isinstance(given, Tensor | np.ndarray):
        raise TypeError(f"{name} must be a tensor or a NumPy array, not {type(given).__name__}")
    tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.as_tensor(given)
    if tensor.is_complex():
        raise TypeError(f"{name} is complex, but an image needs real values. Pass {name}.abs()")
    values: NDArray[np.float64] = tensor.double().numpy()
    if not values.size or not np.isfinite(values).all():
        what = (
            "contains NaN or infinite values. Replace them: torch.nan_to_num"
            if values.size
            else "has no elements to draw"
        )
        raise ValueError(f"{name} {what}")
    return values


def _check_images(images: Any) -> NDArray[np.float64]:
    """Return images as (N, 1 or 3, H, W)."""
    values = _to_float64(images, "images")
    shape = values.shape
    values = values.reshape((1,) * (4 - len(shape)) + shape) if 2 <= len(shape) <= 4 else values
    if values.ndim != 4 or values.shape[1] not in (1, 3):
        raise ValueError(f"images has the shape {shape}. Pass (N, 1 or 3, H, W), (1 or 3, H, W) or (H, W)")
    return values


def _check_maps(over: Any, pictures: int) -> NDArray[np.float64]:
    """Return maps as (N, h, w)."""
    values = _to_float64(over, "over")
    shape = values.shape
    if values.ndim == 4 and shape[1] == 1:
        values = values[:, 0]
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise ValueError(f"over has the shape {shape}. Pass maps of shape (N, h, w), (N, 1, h, w) or (h, w)")
    if pictures not in (1, len(values)):
        raise ValueError(
            f"{count_text(len(values), 'map')} for {pictures} images. Pass one map for each image, or a single image"
        )
    return values


def _to_rgb(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return RGB values from 0 to 255, (N, H, W, 3)."""
    low, high = (end(pixels, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    scaled = (pixels - low) / np.where(high > low, high - low, 1) * 255
    return np.broadcast_to(scaled, (len(pixels), 3, *pixels.shape[-2:])).transpose(0, 2, 3, 1)


def _stretch(maps: NDArray[Any], high: int, wide: int) -> NDArray[Any]:
    """Stretch (N, h, w, …) to (N, high, wide, …), one even patch per value."""
    rows, columns = (np.arange(to) * given // to for to, given in ((high, maps.shape[1]), (wide, maps.shape[2])))
    return maps[:, rows][:, :, columns]


def _resize(tiles: NDArray[np.float64], layout: Layout) -> NDArray[np.uint8]:
    """Enlarge by an integer factor, or shrink by averaging."""
    if layout.shrink > 1:
        planes = torch.from_numpy(tiles.transpose(0, 3, 1, 2).copy())  # `tiles` may be read-only
        tiles = torch.nn.functional.avg_pool2d(planes, layout.shrink, ceil_mode=True).numpy().transpose(0, 2, 3, 1)
    large: NDArray[np.uint8] = np.rint(tiles).astype(np.uint8).repeat(layout.zoom, axis=1).repeat(layout.zoom, axis=2)
    return large
