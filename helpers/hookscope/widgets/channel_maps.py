"""Draw an output of any shape: as feature maps, as a map of tokens and features, or as one row of features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.pictures.feature_maps import describe_channels, draw_grid
from hookscope.pictures.map_drawing import encode_png, encode_rgb
from hookscope.pictures.palette import COOLWARM, LEVELS, VIRIDIS
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

_MOST_ROWS = 512  # most tokens or features in one map
_HEAD = LINE + 6  # pixels of a line of text and a gap
_ALL_ZEROS = ("all zeros", "all 0")  # not "dead": the maps are those of one input
_TILE, _SMALL, _LOW = 160, 44, 460  # pixels: largest and smallest width of a map, preferred height of the image


@dataclass(frozen=True)
class ChannelPage:
    """One page of channels of an output, as an image.

    Attributes:
        png: the image as PNG bytes.
        alt: its alt text.
        caption: the layout of the tensor and the color scale.
        which: a description of the channels in the image.
        rows: a row of statistics for each channel.
        channels: the indices of these channels.
        boxes: (left, top, width, height) of each channel in the image, in pixels.
        size: width and height of the image, in pixels.
        count: the number of channels of the tensor.
        shape: the shape of the whole tensor.

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
    """Convert a sparse, quantized or nested tensor to a dense one. A nested tensor is padded with NaN.

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
    """Reshape one sample of a tensor to (C, H, W) maps; return them and a description of the layout.

    Args:
        tensor: images (N, C, H, W), or (N, H, W, C) with `channels_last`; videos (N, C, T, H, W), drawn frame by frame;
            tokens (N, T, F), drawn as one map; features (N, F), drawn as one row; or a tensor with fewer axes.
        sample: the index of the sample.
        channels_last: see `tensor`.

    Raises:
        ValueError: the tensor is empty, or has more than five axes.

    Example:
        >>> read_maps(torch.zeros(2, 5, 8), 1)[0].shape
        torch.Size([1, 5, 8])

    """
    values = to_dense(tensor.detach())
    values = values.abs() if values.is_complex() else values
    shape = tuple(values.shape)
    if not values.numel():
        raise ValueError(f"the output of shape {shape} is empty, so there is nothing to draw")
    if len(shape) == 4 and channels_last:
        return values[sample].movedim(-1, 0), "(N, H, W, C)"
    if len(shape) == 4:
        return values[sample], "(N, C, H, W)"
    if len(shape) == 5:
        one = values[sample]
        return one.movedim(1, 2).reshape(shape[1], shape[3], -1), "(N, C, T, H, W), with the frames side by side"
    if len(shape) == 3:
        return values[sample][None, :_MOST_ROWS, :_MOST_ROWS], "(N, rows, columns), as one map"
    if len(shape) == 2:
        row = values[sample]
        wide = max(width for width in range(1, 65) if len(row) % width == 0)
        wide = len(row) if len(row) <= 64 or wide < 8 else wide
        return row.reshape(1, -1, wide), "(N, features), row by row"
    if len(shape) > 5:
        raise ValueError(f"an output of shape {shape} has more than 5 axes. Take picker.activation and index it")
    return values.reshape(1, 1, -1)[:, :, :_MOST_ROWS], "values"


def sort_channels(tensor: Tensor, sample: int, by: str, channels_last: bool = False) -> list[int]:
    """List the channels of a sample in order of index, or of mean, max or share of zeros, largest first.

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
    """Draw some channels of one sample of a tensor.

    Args:
        tensor: see `read_maps`.
        sample: the index of the sample.
        channels: the indices of the channels, in the order to draw them.
        scale: `"channel"` or `"shared"`.
        signed: use a diverging color map with 0 in the middle, as for gradients.
        channels_last: see `read_maps`.
        title: the title of the image.
        width: the preferred width of the image, in pixels.

    """
    maps, reading = read_maps(tensor, sample, channels_last)
    columns = _columns(len(channels), maps.shape[-2], maps.shape[-1], width)
    one = 160 if len(channels) > 1 else width  # a single map can fill the image
    size = min(width, one * columns)
    how_read = f"The shape {tuple(tensor.shape)} is read as {reading}, sample {sample}."
    grid = draw_grid(
        maps,
        zeros=_ALL_ZEROS,
        reading=how_read,
        channels=channels,
        scale=scale,
        center=0 if signed else None,
        title=title,
        size=size,
        columns=columns,
    )
    which = "one map" if len(maps) == 1 else describe_channels(grid.channels, len(maps))
    tall, wide = grid.mosaic.shape
    return ChannelPage(
        grid.png,
        grid.alt,
        f"{grid.caption}\n{how_read}",
        which,
        grid.rows,
        grid.channels,
        [list(map(int, box)) for box in grid.boxes],
        (wide, tall),
        len(maps),
        tuple(tensor.shape),
    )


def _columns(count: int, high: int, wide: int, width: int) -> int:
    """Return the number of maps per row that makes the maps largest, while the image still fits on the screen."""
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


def draw_channel(tensor: Tensor, sample: int, channel: int, signed: bool, channels_last: bool) -> tuple[Picture, bytes]:
    """Draw one channel without margins; also as a PNG to lay over the input, in which alpha follows the value."""
    maps, _ = read_maps(tensor, sample, channels_last)
    grid = draw_grid(maps, zeros=_ALL_ZEROS, channels=[channel], center=0 if signed else None)
    left, top, width, height = grid.boxes[0]
    inside = np.ascontiguousarray(grid.mosaic[top : top + height, left : left + width])
    numbers = ", ".join(f"{name} {as_text(value)}" for name, value in grid.rows[0].items() if name != "channel")
    colors = COOLWARM if signed else VIRIDIS
    picture = Picture(encode_png(inside, colors), f"channel {channel}: {numbers}")
    return picture, encode_png(inside, colors, _alpha(signed))


def _alpha(signed: bool) -> NDArray[np.uint8]:
    """Return the opacity of each color on top of an image. The low end of the scale, or its gray middle, is clear."""
    alpha = np.full(256, 255, dtype=np.uint8)
    share = np.abs(np.linspace(-1, 1, LEVELS)) if signed else np.linspace(0, 1, LEVELS)
    alpha[:LEVELS] = np.rint(255 * share)
    return alpha


def draw_input(value: Any, sample: int) -> tuple[bytes, str] | None:
    """Draw an input that looks like images, (N, 1 or 3, H, W); return PNG and alt text, or None if it does not."""
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
    """List statistics of one sample of a tensor, as pairs of name and text.

    Args:
        tensor: see `read_maps`.
        sample: the index of the sample.
        kind: the class name of the layer.
        overwritten: the layer that overwrote the tensor later in the pass; None if no layer did.

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
        facts["overwritten later by"] = f"{overwritten}; this is the value before that"
    return [list(pair) for pair in facts.items()]
