"""An output of any shape as a picture with numbers: feature maps, a token × feature map, or a row of features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.pictures.grid import feature_grid
from hookscope.pictures.mosaic import encode_png, encode_rgb
from hookscope.pictures.palette import COOLWARM, VIRIDIS
from hookscope.pictures.picture import Picture, as_text
from hookscope.pictures.pixel_text import LINE

__all__ = [
    "ChannelPage",
    "draw_channel",
    "draw_channels",
    "draw_input",
    "list_facts",
    "read_maps",
    "sort_channels",
    "to_dense",
]

_MOST_ROWS = 512  # tokens or features that one map shows at most
_HEAD = LINE + 6  # pixels: a line of text and a gap
_TILE, _SMALL, _LOW = 160, 44, 460  # pixels: width of a map at most and at least, height of the picture if it can be


@dataclass(frozen=True)
class ChannelPage:
    """What is shown of an output.

    Attributes:
        png: the picture.
        alt: what it shows.
        caption: how it was read and scaled.
        which: which channels, in words.
        rows: the numbers of the channels on it.
        channels: those channels.
        boxes: (left, top, width, height) of each in the picture, in pixels.
        size: width and height of the picture, in pixels.
        count: how many channels there are.
        shape: shape of the whole tensor.

    """

    png: bytes
    alt: str
    caption: str
    which: str
    rows: list[dict[str, object]]
    channels: list[int]
    boxes: list[list[int]]
    size: tuple[int, int]
    count: int
    shape: tuple[int, ...]


def to_dense(tensor: Tensor) -> Tensor:
    """Return the values of a sparse, quantized or nested tensor in a dense one; what a nested one lacks is nan.

    Example:
        >>> to_dense(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
        tensor([[1., nan],
                [1., 1.]])

    """
    if tensor.is_nested:
        padded: Tensor = torch.nested.to_padded_tensor(tensor, math.nan if tensor.is_floating_point() else 0)
        return padded
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def read_maps(tensor: Tensor, sample: int, channels_last: bool = False) -> tuple[Tensor, str]:
    """Read one sample of a tensor as (C, H, W) maps, and say how.

    Args:
        tensor: (N, C, H, W), or (N, H, W, C) with `channels_last`; a video (N, C, T, H, W), whose frames stand side by
            side; tokens (N, T, F), which are one map; features (N, F), one row; or fewer axes.
        sample: which sample.
        channels_last: see above.

    Raises:
        ValueError: the tensor has no elements, or more than five axes.

    Example:
        >>> read_maps(torch.zeros(2, 5, 8), 1)[0].shape
        torch.Size([1, 5, 8])

    """
    values = to_dense(tensor.detach())
    values = values.abs() if values.is_complex() else values
    shape = tuple(values.shape)
    if not values.numel():
        raise ValueError(f"there is nothing to see: the shape is {shape}")
    if len(shape) == 4 and channels_last:
        return values[sample].movedim(-1, 0), "(N, H, W, C)"
    if len(shape) == 4:
        return values[sample], "(N, C, H, W)"
    if len(shape) == 5:
        one = values[sample]
        return one.movedim(1, 2).reshape(shape[1], shape[3], -1), "(N, C, T, H, W), the frames side by side"
    if len(shape) == 3:
        return values[sample][None, :_MOST_ROWS, :_MOST_ROWS], "(N, tokens, features)"
    if len(shape) == 2:
        row = values[sample]
        wide = max(width for width in range(1, 65) if len(row) % width == 0)
        wide = len(row) if len(row) <= 64 or wide < 8 else wide
        return row.reshape(1, -1, wide), "(N, features), row by row"
    if len(shape) > 5:
        raise ValueError(f"an output of shape {shape} has too many axes to be drawn; take .activation and pick some")
    return values.reshape(1, 1, -1)[:, :, :_MOST_ROWS], "(numbers)"


def sort_channels(tensor: Tensor, sample: int, by: str, channels_last: bool = False) -> list[int]:
    """List the channels of a sample: by index, or by mean, max or share of zeros, largest first.

    Example:
        >>> sort_channels(torch.tensor([1.0, 3.0, 2.0]).reshape(1, 3, 1, 1), 0, "mean")
        [1, 2, 0]

    """
    maps, _ = read_maps(tensor, sample, channels_last)
    if by == "index":
        return list(range(len(maps)))
    flat = maps.flatten(1)
    flat = flat if flat.is_floating_point() else flat.float()
    key = {"mean": lambda: flat.mean(1), "max": lambda: flat.amax(1), "zeros": lambda: (flat == 0).float().mean(1)}[
        by
    ]()
    order: list[int] = torch.sort(
        torch.nan_to_num(key, nan=float("-inf")), descending=True, stable=True
    ).indices.tolist()
    return order


def draw_channels(
    tensor: Tensor,
    sample: int,
    channels: list[int],
    scale: str,
    signed: bool,
    channels_last: bool,
    title: str,
    width: int,
) -> ChannelPage:
    """Draw channels of one sample of a tensor.

    Args:
        tensor: see `read_maps`.
        sample: which sample.
        channels: which channels, in this order.
        scale: `"channel"` or `"shared"`.
        signed: draw on a diverging map centred at 0, as for gradients.
        channels_last: see `read_maps`.
        title: what it is.
        width: width of the picture to aim at, in pixels.

    """
    maps, reading = read_maps(tensor, sample, channels_last)
    columns = _columns(len(channels), maps.shape[-2], maps.shape[-1], width)
    one = 160 if len(channels) > 1 else width  # a map of its own may be large, several are of a size to compare
    size = min(width, one * columns)
    grid = feature_grid(
        maps, channels=channels, scale=scale, center=0 if signed else None, title=title, size=size, columns=columns
    )
    which = "one map" if len(maps) == 1 else grid.caption.splitlines()[0].removeprefix(f"{title}: ")
    how = grid.caption.splitlines()[2:]
    tall, wide = grid.mosaic.shape
    return ChannelPage(
        grid.png,
        grid.alt,
        "\n".join([f"{title}: {which}", f"shape {tuple(tensor.shape)} read as {reading}, sample {sample}", *how]),
        which,
        grid.rows,
        grid.channels,
        [list(map(int, box)) for box in grid.boxes],
        (wide, tall),
        len(maps),
        tuple(tensor.shape),
    )


def _columns(count: int, high: int, wide: int, width: int) -> int:
    """Return how many maps stand in a row: the maps are as large as keeps the picture so low that it is seen whole."""
    best, found = (False, -math.inf, 0), 1
    for columns in range(1, count + 1):
        room = min(_TILE, (width - 6) / columns - 6)
        if room < _SMALL and columns > 1:
            break
        tile = wide * (room // wide) if wide <= room else wide / math.ceil(wide / max(room, 1))
        rows = math.ceil(count / columns)
        tall = rows * (tile * high / wide + _HEAD) + _HEAD
        if (key := (tall <= _LOW, tile if tall <= _LOW else -tall, -rows)) > best:
            best, found = key, columns
    return found


def draw_channel(tensor: Tensor, sample: int, channel: int, signed: bool, channels_last: bool) -> Picture:
    """Draw one channel alone, one pixel a value where it is large, with nothing around it."""
    maps, _ = read_maps(tensor, sample, channels_last)
    grid = feature_grid(maps, channels=[channel], center=0 if signed else None)
    left, top, width, height = grid.boxes[0]
    inside = np.ascontiguousarray(grid.mosaic[top : top + height, left : left + width])
    numbers = ", ".join(f"{name} {as_text(value)}" for name, value in grid.rows[0].items() if name != "channel")
    return Picture(encode_png(inside, COOLWARM if signed else VIRIDIS), f"channel {channel}: {numbers}")


def draw_input(value: Any, sample: int) -> tuple[bytes, str] | None:
    """Return an input as a picture and what it shows, if it is one: (N, 1 or 3, H, W) floating or uint8 numbers."""
    if not isinstance(value, Tensor) or value.dim() != 4 or value.shape[1] not in (1, 3) or value.is_complex():
        return None
    image = value[min(sample, len(value) - 1)].detach().float().cpu()
    low, high = float(image.min()), float(image.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return None
    pixels = ((image - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8).expand(3, -1, -1)
    alt = f"The input, sample {sample}, {image.shape[1]}×{image.shape[2]}; from {low:.3g} (dark) to {high:.3g} (bright)"
    return encode_rgb(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())), alt


def list_facts(tensor: Tensor, sample: int, kind: str, overwritten: str | None) -> list[list[str]]:
    """List what is known of one sample of a tensor, as names and texts.

    Args:
        tensor: see `read_maps`.
        sample: which sample.
        kind: class name of the layer.
        overwritten: the layer that overwrote the tensor later in the pass, if one did.

    """
    values = tensor[sample] if tensor.dim() > 1 else tensor
    values = values.detach().to_dense() if values.layout is not torch.strided else values.detach()
    flat = (values.abs() if values.is_complex() else values).double().flatten()
    finite = flat[flat.isfinite()]
    facts = {"type": kind, "shape": str(tuple(tensor.shape)), "dtype": str(tensor.dtype)}
    if len(finite):
        facts |= {
            "mean": as_text(float(finite.mean())),
            "min": as_text(float(finite.min())),
            "max": as_text(float(finite.max())),
            "zeros": f"{100 * float((flat == 0).double().mean()):.1f} %",
        }
    if len(finite) < len(flat):
        facts["NaN or inf"] = str(len(flat) - len(finite))
    if overwritten:
        facts["overwritten later by"] = f"{overwritten}; shown as it was before"
    return [list(pair) for pair in facts.items()]
