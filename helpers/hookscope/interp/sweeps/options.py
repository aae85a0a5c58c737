"""Say how a sweep is run, and which positions, heads or channels are its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypedDict

from hookscope.captures.options import check_bytes
from hookscope.interp.edits.parts import Part
from hookscope.layers import Which
from hookscope.progress import check_progress

__all__ = ["ColumnNumbers", "SweepOptions", "check_options"]


class ColumnNumbers(TypedDict, total=False):
    """Which numbers of one axis are changed, one at a time; a sweep takes one of these.

    Attributes:
        positions: axis 1 of (batch, positions, features).
        heads: those of attention layers, in what goes into their output projection.
        channels: axis 1 of (batch, channels) or (batch, channels, height, width).

    """

    positions: int | Iterable[int] | None
    heads: int | Iterable[int] | None
    channels: int | Iterable[int] | None


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """How `sweep` is to be run; give it as ``options=SweepOptions(part=0, progress=False)``.

    Attributes:
        axis: the axis of positions or channels, if it is not axis 1.
        part: which tensor, if layers return several: an index, a key, an attribute, or a path of these. A dict from
            layers to parts, such as ``{"h.*.attn": 0}``, gives each layer its own; the last one that names a layer
            counts.
        tokens: with `positions=`, a string for each token of one sample; they label the columns.
        check: how many cells that shared a pass are run again alone, with plain hooks, and compared. By default all, if
            there are at most 12 cells; otherwise 2 of 100, and at least 4.
        max_bytes: how much memory the tensors of a pass may take, and those that the sweep keeps. By default 1 GiB,
            where cells share a pass.
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
    """Return the options, and refuse those that do not stand in them.

    Raises:
        TypeError: they are no `SweepOptions`, or one is of the wrong type, or stands among the columns.
        ValueError: a number is too small.

    """
    if options is None:
        options = SweepOptions()
    if not isinstance(options, SweepOptions):
        raise TypeError(
            f"options is of type {type(options).__name__}: give a SweepOptions, as options=SweepOptions(progress=False)"
        )
    if wrong := [name for name in columns if name in {each.name for each in fields(SweepOptions)}]:
        raise TypeError(f"sweep takes {wrong[0]!r} among its options: write options=SweepOptions({wrong[0]}=...)")
    check = options.check
    if check is not None and (not isinstance(check, int) or isinstance(check, bool) or check < 1):
        raise ValueError(f"check={check!r}: give how many cells are compared with plain hooks, at least 1")
    if options.max_bytes is not None:
        check_bytes("max_bytes", options.max_bytes, 1)
    check_progress(options.progress)
    return options
