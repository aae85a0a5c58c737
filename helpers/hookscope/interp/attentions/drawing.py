"""Draw attention maps with tokens on their axes, and list the numbers in them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from hookscope.extras import optional_import
from hookscope.pictures import Picture
from hookscope.pictures.fonts import find_families
from hookscope.pictures.picture import as_text, from_figure
from hookscope.pictures.tokens import shorten_token

__all__ = ["draw_all", "draw_heads", "find_choices"]

_MAX_TOKEN = 12  # characters of a token
_FONT_SIZE = 8  # points of a label
_LINE, _LETTER = 0.12, 0.09  # inches of a label: its height, and the width of a character
_LEAST, _MOST, _LARGE = 1.4, 2.9, 4.2  # inches: of a map of few tokens, of one of many maps, and of one of few
_MIN_SIDE, _WIDE = 0.6, 7.0  # inches: the smallest side of a map, and the width of a row of maps
_TILE = 32  # pixels of a small map


class DrawableMap(Protocol):
    """The parts of an `AttentionMap` that are drawn."""

    @property
    def label(self) -> str: ...
    @property
    def weights(self) -> Tensor: ...
    @property
    def entropy(self) -> Tensor: ...
    @property
    def queries(self) -> tuple[str, ...]: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    def token(self, position: int, of: str = "queries") -> str: ...


def draw_heads(shown: DrawableMap, heads: Sequence[int], sample: int) -> Picture:
    """Draw one map for each head, all on one scale from 0, with a table row for each head."""
    maps = _to_float(shown.weights[sample, list(heads)])
    top = max(float(maps.nan_to_num().max()), 1e-12)
    figure, fewer = _draw_heads(shown, heads, maps, top)
    facts = [_describe_head(shown, sample, head) for head in heads]
    best = max(facts, key=lambda row: float(row["greatest weight"] or 0))
    among = _describe_queries([shown], sample)
    count, queries, keys = shown.weights.shape[1:]
    which = f"head {heads[0]} of {count}" if len(heads) == 1 else f"{len(heads)} of {count} heads"
    title = f"Attention of {shown.label or 'the model'}, sample {sample}, {which}"
    alt = (
        f"{title}: for each head a map, {queries} queries as rows by {keys} keys as columns, brighter for more weight, "
        f"on one scale from 0 to {as_text(top)}. The greatest weight{among}, "
        f"{as_text(best['greatest weight'])}, is in head {best['head']}, from query {best['query']} to key "
        f"{best['key']}."
    )
    black = "; black is NaN" if bool(maps.isnan().any()) else ""
    only = f"; the greatest weight is that{among}" if among else ""
    said = f"rows are queries{fewer['queries']}, columns are keys{fewer['keys']}{black}{only}"
    return _finish_picture(figure, alt, f"{title}: {said}", facts)


def draw_all(title: str, maps: Sequence[DrawableMap], sample: int, most: int) -> Picture:
    """Draw small maps of several calls, a row for each call and a column for each head."""
    shown = [each for each in maps if sample < len(each.weights)][:most]
    if not shown or sample < 0:
        count = max(len(each.weights) for each in maps)
        raise IndexError(f"no sample {sample}: there are {count}. Pass 0 to {count - 1}")
    figure = _make_figure()
    from matplotlib import rcParams

    heads = max(min(each.weights.shape[1], most) for each in shown)
    step = _TILE + 2
    canvas = torch.full((len(shown) * step - 2, heads * step - 2), -1.0, device="cpu")
    for row, each in enumerate(shown):
        weights = _to_float(each.weights[sample, :most])
        small = _resize_maps(weights.nan_to_num(0.0))
        small = small / small.amax((-1, -2), keepdim=True).clamp_min(1e-12)
        for head, tile in enumerate(small):
            canvas[row * step : row * step + _TILE, head * step : head * step + _TILE] = tile
    labels = [shorten_token(each.label or "(root)", 28) for each in shown]
    # In inches, because matplotlib's constrained layout leaves no room for labels beside a square image.
    left, bottom, wide, high = (
        0.2 + _measure_labels(labels, rcParams["ytick.labelsize"]),
        0.5,
        0.5 * heads,
        0.5 * len(shown),
    )
    width, height = left + wide + 0.1, bottom + high + 0.1
    figure.set_size_inches(width, height)
    axis = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    axis.imshow(canvas.numpy(), vmin=0, vmax=1, cmap=_get_colormap(), interpolation="nearest")
    axis.set_xticks([_TILE / 2 + step * head for head in range(heads)], [str(head) for head in range(heads)])
    axis.set_yticks([_TILE / 2 + step * row for row in range(len(shown))], labels, parse_math=False)
    axis.set_xlabel("head")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    fewer = [
        f"{what} {most} of {count} {name}"
        for what, count, name in (
            ("the first", len(maps), "calls"),
            ("the first", max(each.weights.shape[1] for each in shown), "heads"),
        )
        if count > most
    ]
    only = f"; {' and '.join(fewer)}" if fewer else ""
    facts = [_describe_head(each, sample, head) for each in shown for head in range(min(each.weights.shape[1], most))]
    facts = [{"call": each.label or "(root)"} | row for each, row in zip(_repeat_maps(shown, most), facts, strict=True)]
    best = max(facts, key=lambda row: float(row["greatest weight"] or 0))
    place, among = f"from query {best['query']} to key {best['key']}", _describe_queries(shown, sample)
    alt = (
        f"Attention of {title}, sample {sample}: small maps, a row for each of {len(shown)} calls and a column for "
        f"each of {heads} heads{only}; in each, rows are queries, columns are keys, and the brightest is its greatest "
        f"weight. The greatest{among or ' of all'}, {as_text(best['greatest weight'])}, is in head {best['head']} of "
        f"{best['call']}, {place}."
    )
    return _finish_picture(
        figure, alt, f"Attention of {title}, sample {sample}: each small map on its own scale{only}", facts
    )


def _draw_heads(shown: DrawableMap, heads: Sequence[int], maps: Tensor, top: float) -> tuple[Any, dict[str, str]]:
    """Draw maps side by side, with labels at the outer ones.

    Returns:
        The figure, and for queries and keys a phrase for the caption if some positions have no label.

    """
    figure = _make_figure()
    queries, keys = maps.shape[1:]
    most, longest = _LARGE if len(heads) <= 2 else _MOST, max(queries, keys)
    cell = max(_LEAST, min(_LINE * longest, most)) / longest
    high, wide = (max(cell * count, min(_LINE * count, most), _MIN_SIDE) for count in (queries, keys))
    rows, row_step = _choose_labels(shown, "queries", high)
    under, under_step = _choose_labels(shown, "keys", wide)
    upwards = _LETTER * max(map(len, under.values())) > wide / len(under)
    lines = math.ceil(len(heads) / min(4, max(1, int(_WIDE / wide))))
    columns = math.ceil(len(heads) / lines)  # lines of similar length
    left = 0.2 + _measure_labels(list(rows.values()), _FONT_SIZE)
    below = 0.2 + (_measure_labels(list(under.values()), _FONT_SIZE) if upwards else _LINE)
    across, down = columns * (wide + 0.15), lines * (high + 0.35)
    width, height = left + across + 1, below + down
    figure.set_size_inches(width, height)

    def axes_at(x: float, y: float, across: float, down: float) -> Any:
        """Add axes, by their upper left corner and their size, in inches."""
        return figure.add_axes((x / width, 1 - (y + down + 0.3) / height, across / width, down / height))

    image = None
    for place, head in enumerate(heads):
        row, column = divmod(place, columns)
        axes = axes_at(left + column * (wide + 0.15), row * (high + 0.35), wide, high)
        image = axes.imshow(
            maps[place].numpy(), vmin=0, vmax=top, cmap=_get_colormap(), interpolation="nearest", aspect="auto"
        )
        axes.set_title(f"head {head}", fontsize=9)
        _set_labels(axes.set_yticks, rows, column == 0)
        _set_labels(axes.set_xticks, under, place + columns >= len(heads), rotation=90 if upwards else 0)
    bar = axes_at(left + across + 0.1, 0, 0.15, min(down - 0.35, 3))
    figure.colorbar(image, cax=bar, label="weight").ax.tick_params(labelsize=_FONT_SIZE)
    steps = {"queries": row_step, "keys": under_step}
    return figure, {of: f" (one in {step} has a label)" if step > 1 else "" for of, step in steps.items()}


def _resize_maps(weights: Tensor) -> Tensor:
    """Resize maps to small ones: repeat each weight, or take the largest of several."""
    for axis in (1, 2):
        if (size := weights.shape[axis]) < _TILE:
            weights = weights.index_select(axis, torch.arange(_TILE, device=weights.device) * size // _TILE)
    return torch.nn.functional.adaptive_max_pool2d(weights[None], _TILE)[0]


def _repeat_maps(shown: Sequence[DrawableMap], most: int) -> list[DrawableMap]:
    return [each for each in shown for _ in range(min(each.weights.shape[1], most))]


def _describe_head(shown: DrawableMap, sample: int, head: int) -> dict[str, Any]:
    weights = shown.weights[sample, head].nan_to_num(0.0)
    place = int(torch.where(find_choices(weights), weights, -1.0).argmax()) if weights.numel() else 0
    query, key = divmod(place, weights.shape[-1])
    return {
        "head": head,
        "greatest weight": float(weights[query, key]),
        "query": shown.token(query),
        "key": shown.token(key, "keys"),
        "entropy (bits)": float(shown.entropy[sample, head]),
    }


def find_choices(weights: Tensor) -> Tensor:
    """Return which queries see several keys, [..., queries, 1]; all queries of a map if none does.

    In a causal model, the first query always has its whole weight on the first key, so that weight shows nothing.
    """
    several = weights.count_nonzero(-1)[..., None] > 1
    return several | ~several.any(-2, keepdim=True)


def _describe_queries(shown: Sequence[DrawableMap], sample: int) -> str:
    """Describe the queries that the greatest weight is chosen from; "" for all."""
    maps = [each.weights[sample].nan_to_num(0.0).flatten(0, 1) for each in shown]
    return " of a query that sees several keys" if any(not bool(find_choices(each).all()) for each in maps) else ""


def _to_float(weights: Tensor) -> Tensor:
    return weights.detach().float().cpu()


def _make_figure() -> Any:
    with optional_import("a picture of attention"):
        from matplotlib.figure import Figure
    return Figure()


def _measure_labels(labels: Sequence[str], size: Any) -> float:
    """Return the width of the widest label, in inches; the font size is in points, or a name of matplotlib's."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family=find_families(labels), size=size)
    with _ignore_missing_glyphs():
        points = [TextToPath().get_text_width_height_descent(label, font, ismath=False)[0] for label in labels]
    return float(max(points)) / 72


@contextmanager
def _ignore_missing_glyphs() -> Iterator[None]:
    """Draw a box for a character that no font has, without a warning; the table has the token."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def _get_colormap() -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"].with_extremes(bad="black", under="white")


def _choose_labels(shown: DrawableMap, of: Literal["queries", "keys"], inches: float) -> tuple[dict[int, str], int]:
    """Return labels for positions along an axis, and their step, which is more than 1 if they do not all fit."""
    count = shown.weights.shape[2 if of == "queries" else 3]
    step = math.ceil(_LINE * count / inches - 1e-6)
    tokens = getattr(shown, of)
    return {
        place: f"{place} {shorten_token(tokens[place], _MAX_TOKEN)}" if tokens else str(place)
        for place in range(0, count, step)
    }, step


def _set_labels(set_ticks: Callable[..., Any], labels: dict[int, str], outer: bool, **look: Any) -> None:
    """Set ticks along an axis, with labels if it is an outer one."""
    texts = list(labels.values()) if outer else [""] * len(labels)
    look |= {"fontsize": _FONT_SIZE, "fontfamily": find_families(texts), "parse_math": False}
    set_ticks(list(labels), texts, **look)


def _finish_picture(figure: Any, alt: str, caption: str, facts: Sequence[dict[str, Any]]) -> Picture:
    with _ignore_missing_glyphs():
        return from_figure(figure, alt, caption, facts, dpi=100)
