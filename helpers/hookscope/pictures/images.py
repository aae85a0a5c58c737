"""Pictures as they are, grey or in colour, and maps laid over what they are maps of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.pictures.mosaic import Layout, compose, describe_scale, encode_rgb, find_limits, to_levels
from hookscope.pictures.palette import COOLWARM, LEVELS, VIRIDIS, palette
from hookscope.pictures.picture import Picture

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
    """Draw pictures side by side: one channel in grey, three in colour; or maps, each laid over its picture.

    A map may have fewer rows and columns than the picture: it is stretched over the whole of it, each value as one
    even patch. Under a map the picture is grey, so that all colour is the map's. With a `center` the map is the clearer
    the nearer it is to the center.

    Args:
        images: (N, 1 or 3, H, W), (1 or 3, H, W) or (H, W), real numbers on any device. Each picture is drawn from its
            lowest value (black) to its highest.
        over: maps, (N, h, w), (N, 1, h, w) or (h, w): one for each picture, or any number of them over one picture.
        strength: how much of the map covers the picture, 0 to 1.
        scale: of the maps, as for `feature_grid`: "channel", "shared" or (low, high).
        center: the value of the maps in the middle of a blue-grey-red scale, 0 for gradients.
        names: what stands above each.
        title: begins the caption.
        columns: how many in one row.
        size: width of the whole to aim at, in pixels.

    Returns:
        The picture. Its ``rows`` hold min, max and mean of each map, or of each picture where there is no map.

    Raises:
        TypeError: not a tensor or an array of real numbers.
        ValueError: the shape is not that of pictures, a value is not finite, or numbers do not fit together.

    Example:
        >>> image_grid(torch.rand(2, 3, 8, 8), names=["one", "two"], title="Noise").caption
        'Noise: 2 pictures of 8×8 in colour'
        >>> heat = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> image_grid(torch.rand(1, 8, 8), over=heat, title="Heat").rows
        [{'picture': 1, 'min': 0.0, 'max': 3.0, 'mean': 1.5}]

    """
    pixels = _check_images(images)
    maps = None if over is None else _check_maps(over, len(pixels))
    if not 0 <= strength <= 1:
        raise ValueError(f"strength={strength}: give a number from 0 to 1")
    count, high, wide = len(pixels) if maps is None else len(maps), *pixels.shape[-2:]
    if names is not None and len(names) != count:
        raise ValueError(f"{len(names)} names for {count} pictures: give one name for each")
    labels = list(names) if names is not None else [""] * count
    shown, ends, how = pixels if maps is None else maps, None, ""
    tiles = _to_rgb(pixels)
    colours = VIRIDIS if center is None else COOLWARM
    if maps is not None:
        low, top, shared = find_limits(maps.min(axis=(1, 2)), maps.max(axis=(1, 2)), scale, center)
        ends, how = describe_scale(shared, center)
        steps = to_levels(maps, low, top)
        alpha = np.full(steps.shape, strength)
        if center is not None:
            how = how.replace("(grey)", "(clear)")
            alpha *= np.abs(steps.astype(int) - LEVELS // 2) / (LEVELS // 2)
        heat, alpha = (_stretch(each, high, wide) for each in (palette(colours)[steps].astype(float), alpha))
        grey = (tiles @ _LIGHTNESS)[..., None]
        tiles = heat * alpha[..., None] + grey * (1 - alpha[..., None])
    layout = Layout.fit((count, high, wide), labels, columns, size)
    blank = np.zeros((count, -(-high // layout.shrink), -(-wide // layout.shrink)), dtype=np.uint8)
    mosaic, boxes = compose(blank, labels, layout, ends)
    canvas = palette(colours)[mosaic]
    for tile, (left, above, across, down) in zip(_resize(tiles, layout), boxes, strict=True):
        canvas[above : above + down, left : left + across] = tile
    what = _describe(pixels, maps)
    head = f"{title}: {what}" if title else what
    rows = [
        {"picture": names[i] if names is not None else i + 1}
        | {"min": float(each.min()), "max": float(each.max()), "mean": float(each.mean(dtype=np.float64))}
        for i, each in enumerate(shown)
    ]
    named = f": {', '.join(names)}" if names is not None else ""
    caption = "\n".join(filter(None, [head, how]))
    return Picture(encode_rgb(np.ascontiguousarray(canvas)), f"{head}{named}. {how}".strip(), caption, rows)


def _describe(pixels: NDArray[Any], maps: NDArray[Any] | None) -> str:
    count, channels, high, wide = pixels.shape
    if maps is None:
        many = "a picture" if count == 1 else f"{count} pictures"
        return f"{many} of {high}×{wide} in {'colour' if channels == 3 else 'grey'}"
    many = "a map" if len(maps) == 1 else f"{len(maps)} maps"
    return f"{many} of {maps.shape[1]}×{maps.shape[2]} over the {'picture' if count == 1 else 'pictures'}"


def _to_float64(given: Any, name: str) -> NDArray[np.float64]:
    if not isinstance(given, Tensor | np.ndarray):
        raise TypeError(f"{name} is a tensor or a NumPy array, not {type(given).__name__}")
    tensor = given.detach().cpu() if isinstance(given, Tensor) else torch.as_tensor(given)
    if tensor.is_complex():
        raise TypeError(f"{name} is complex: pass {name}.abs()")
    values: NDArray[np.float64] = tensor.double().numpy()
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"{name} {'has values that are not finite' if values.size else 'has no elements'}")
    return values


def _check_images(images: Any) -> NDArray[np.float64]:
    """Return pictures as (N, 1 or 3, H, W)."""
    values = _to_float64(images, "images")
    shape = values.shape
    values = values.reshape((1,) * (4 - len(shape)) + shape) if 2 <= len(shape) <= 4 else values
    if values.ndim != 4 or values.shape[1] not in (1, 3):
        raise ValueError(f"images has the shape {shape}; pictures are (N, 1 or 3, H, W), (1 or 3, H, W) or (H, W)")
    return values


def _check_maps(over: Any, pictures: int) -> NDArray[np.float64]:
    """Return maps as (N, h, w)."""
    values = _to_float64(over, "over")
    shape = values.shape
    if values.ndim == 4 and shape[1] == 1:
        values = values[:, 0]
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise ValueError(f"over has the shape {shape}; maps are (N, h, w), (N, 1, h, w) or (h, w)")
    if pictures not in (1, len(values)):
        raise ValueError(f"{len(values)} maps over {pictures} pictures: give one map for each, or a single picture")
    return values


def _to_rgb(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return colours from 0 to 255, (N, H, W, 3)."""
    low, high = (end(pixels, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    scaled = (pixels - low) / np.where(high > low, high - low, 1) * 255
    return np.broadcast_to(scaled, (len(pixels), 3, *pixels.shape[-2:])).transpose(0, 2, 3, 1)


def _stretch(maps: NDArray[Any], high: int, wide: int) -> NDArray[Any]:
    """Stretch (N, h, w, …) over (N, high, wide, …), each value as one patch."""
    rows, columns = (np.arange(to) * given // to for to, given in ((high, maps.shape[1]), (wide, maps.shape[2])))
    return maps[:, rows][:, :, columns]


def _resize(tiles: NDArray[np.float64], layout: Layout) -> NDArray[np.uint8]:
    """Enlarge by a whole factor, or shrink by averaging."""
    if layout.shrink > 1:
        planes = torch.from_numpy(np.ascontiguousarray(tiles.transpose(0, 3, 1, 2)))
        tiles = torch.nn.functional.avg_pool2d(planes, layout.shrink, ceil_mode=True).numpy().transpose(0, 2, 3, 1)
    large: NDArray[np.uint8] = np.rint(tiles).astype(np.uint8).repeat(layout.zoom, axis=1).repeat(layout.zoom, axis=2)
    return large
