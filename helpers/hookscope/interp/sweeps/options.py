"""The options of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypedDict

from hookscope.captures.options import check_bytes
from hookscope.interp.edits.nested_values import Part
from hookscope.layers import Which
from hookscope.progress import check_progress

__all__ = ["ColumnNumbers", "SweepOptions", "check_options"]


class ColumnNumbers(TypedDict, total=False):
    """The columns of a sweep, which takes one of these.

    Attributes:
        positions: along axis 1 of (batch, positions, features).
        heads: heads of attention layers, in the input of their output projection.
        channels: along axis 1 of (batch, channels) or (batch, channels, height, width).

    """

    positions: int | Iterable[int] | None
    heads: int | Iterable[int] | None
    channels: int | Iterable[int] | None


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Rarer options of `sweep`; pass ``options=SweepOptions(part=0, progress=False)``.

    Attributes:
        axis: the axis of positions or channels, if it is not axis 1.
        part: which tensor, if a layer returns several: an index, a key, an attribute, or a path of these. A dict from
            layers to parts, such as ``{"h.*.attn": 0}``, sets it for each layer; the last match wins.
        tokens: with `positions=`, a string for each token of a sample; they label the columns.
        check: how many cells of a batch to run again alone, with a plain hook, and compare. The default is all for 12
            cells or fewer, and otherwise 2 of 100, but at least 4.
        max_bytes: the memory limit for the tensors of a pass and those that the sweep keeps. By default, batches take
            up to 1 GiB.
        progress: show a progress bar if tqdm is installed and the sweep takes more than a second.

    Example:
        >>> SweepOptions(axis=2, check=4)
        SweepOptions(axis=2, part=None, tokens=None, check=4, max_bytes=None, progress=True)

    """

    axis: int | None = None
    part: Part | Mapping[Which, Part] | None = None
    tokens: Iterable[str] | None = None
    check: int | None = None
    max_bytes: int | None = None
    progress: bool = True


def check_options(options: object, columns: Mapping[str, object]) -> SweepOptions:
    """Return the options, checked.

    Raises:
        TypeError: they are not `SweepOptions`, one has the wrong type, or one is among the columns.
        ValueError: a number is too small.

    """
    if options is None:
        options = SweepOptions()
    if not isinstance(options, SweepOptions):
        raise TypeError(
            f"options is of type {type(options).__name__}. Pass a SweepOptions, as options=SweepOptions(progress=False)"
        )
    if wrong := [name for name in columns if name in {each.name for each in fields(SweepOptions)}]:
        raise TypeError(f"{wrong[0]}= is one of the SweepOptions. Pass options=SweepOptions({wrong[0]}=...)")
    check = options.check
    if check is not None and (not isinstance(check, int) or isinstance(check, bool) or check < 1):
        raise ValueError(f"check={check!r} is not a number of cells to compare. Pass an integer, 1 or more")
    if options.max_bytes is not None:
        check_bytes("max_bytes", options.max_bytes, 1)
    check_progress(options.progress)
    return options
