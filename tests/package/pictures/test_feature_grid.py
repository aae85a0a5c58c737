"""Feature maps are drawn where and how their arguments say; the picture says what it shows; the rest is refused."""

import io
import re

import numpy as np
import pytest
import torch
from torch import nn

from hookscope.pictures import palette as pal
from hookscope.pictures.feature_maps import feature_grid
from hookscope.pictures.pixel_text import LINE, render_text
from tests.shared.grid_pixels import BASE, MIDDLE, TOP, list_numbers, read_label, read_map, shows_text
from tests.shared.table_checks import for_each

# --- the picture -----------------------------------------------------------------------------------------


def test_every_value_is_one_square_of_its_colour_in_the_right_place():
    from PIL import Image

    activation = torch.tensor([[0.0, 1.0], [2.0, 4.0]]).repeat(1, 4, 1, 1)
    activation[0, 2] = activation[0, 2].flip(0)
    grid = feature_grid(activation, columns=2)
    image = Image.open(io.BytesIO(grid.png))
    assert image.mode == "P"
    assert (np.asarray(image) == grid.mosaic).all()
    colours = pal.palette(pal.VIRIDIS)
    assert (np.asarray(image.convert("RGB")) == colours[grid.mosaic]).all()
    assert read_map(grid, 0) == [[0, 62], [124, 248]]
    assert read_map(grid, 2) == [[124, 248], [0, 62]]
    # Row by row, framed, on paper, and never over one another.
    (x0, y0, w, h), second, third, _ = grid.boxes
    assert second == (second[0], y0, w, h)
    assert second[0] > x0 + w
    assert third == (x0, third[1], w, h)
    assert third[1] > y0 + h
    frame = grid.mosaic[y0 - 1 : y0 + h + 1, x0 - 1 : x0 + w + 1].copy()
    frame[1:-1, 1:-1] = pal.EDGE
    assert (frame == pal.EDGE).all()
    assert grid.mosaic[0, 0] == grid.mosaic[-1, -1] == pal.PAPER
    assert [shows_text(read_label(grid, i), str(i)) for i in range(4)] == [True] * 4


@for_each([(1, 1, 1), (3, 4, 90), (5, 90, 4), (16, 28, 28), (64, 150, 200), (200, 7, 7)])
def test_maps_never_overlap_and_the_picture_fits_a_page(shape):
    grid = feature_grid(np.zeros(shape), channels="all")
    covered = np.zeros_like(grid.mosaic)
    for left, top, wide, high in grid.boxes:
        assert left >= 1
        assert top >= LINE
        covered[top - LINE : top + high + 1, left - 1 : left + wide + 1] += 1
    assert len(grid.boxes) == shape[0]
    assert covered.max() == 1
    assert covered.sum() == sum((w + 2) * (h + LINE + 1) for _, _, w, h in grid.boxes)
    assert covered.shape[1] <= 972


def test_columns_and_size_are_obeyed():
    activation = torch.rand(1, 6, 10, 10)
    assert len({top for _, top, _, _ in feature_grid(activation, columns=1).boxes}) == 6
    assert len({top for _, top, _, _ in feature_grid(activation, columns=6).boxes}) == 1
    assert len({top for _, top, _, _ in feature_grid(activation, columns=99).boxes}) == 1
    small, large = feature_grid(activation, size=300), feature_grid(activation, size=900)
    assert 250 < small.mosaic.shape[1] <= 300
    assert 850 < large.mosaic.shape[1] <= 900
    assert small.rows == large.rows


def test_large_maps_are_averaged_and_the_caption_says_so():
    activation = torch.zeros(1, 1, 1201, 1199)
    activation[..., :2, :2] = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    activation[..., -1, -1] = 2
    grid = feature_grid(activation)
    assert "Drawn at 1/2 size" in grid.caption
    values = read_map(grid, 0, shape=(601, 600))
    assert values[0][0] == MIDDLE  # the mean of 0, 1, 1, 2
    assert values[0][1] == 0
    assert values[-1][-1] == TOP  # the block in the corner holds a single value
    assert grid.rows[0]["max"] == 2
    assert "Drawn at" not in feature_grid(torch.zeros(1, 1, 300, 300)).caption


# --- which channels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "picked", "words"),
    [
        (None, [0, 1, 2, 3, 4, 5], "all 6 channels"),
        (2, [0, 1], "channels 0 and 1 of 6"),
        (6, [0, 1, 2, 3, 4, 5], "all 6 channels"),
        (16, [0, 1, 2, 3, 4, 5], "all 6 channels (16 asked for)"),
        ("all", [0, 1, 2, 3, 4, 5], "all 6 channels"),
        ([4], [4], "channel 4 of 6"),
        ([1, 0, 5, 4, 3, 2], [1, 0, 5, 4, 3, 2], "all 6 channels, 1, 0, 5, 4, 3, 2"),
        ([5, -6, 2], [5, 0, 2], "channels 5, 0, 2 of 6"),
        (slice(1, None, 2), [1, 3, 5], "channels 1, 3, 5 of 6"),
        (range(2, 4), [2, 3], "channels 2 and 3 of 6"),
        (torch.tensor([3, 1]), [3, 1], "channels 3, 1 of 6"),
        (np.int64(1), [0], "channel 0 of 6"),
        ((i for i in (1, 2)), [1, 2], "channels 1 and 2 of 6"),
    ],
)
def test_channels_are_picked_by_number_list_slice_or_all(channels, picked, words):
    activation = torch.arange(6.0)[:, None, None] + torch.zeros(1, 6, 2, 2)
    grid = feature_grid(activation, channels=channels, title="conv")
    assert grid.channels == picked
    assert list_numbers(grid, "max") == picked
    assert re.match(rf"conv: {re.escape(words)}(, each|,| of) 2 × 2\.", grid.caption)
    assert shows_text(read_label(grid, len(picked) - 1), f"{picked[-1]} {'dead' if picked[-1] == 0 else 'flat'}")


def test_seed_draws_distinct_channels_and_leaves_the_global_generator_alone():
    activation = torch.arange(64.0)[:, None, None] + torch.zeros(64, 2, 2)
    state = torch.get_rng_state()
    draws = [feature_grid(activation, seed=seed).channels for seed in range(20)]
    assert torch.equal(torch.get_rng_state(), state)
    for picked in draws:
        assert len(set(picked)) == 16
        assert picked == sorted(picked)
        assert picked != list(range(16))
    assert len({tuple(picked) for picked in draws}) == 20
    assert {channel for picked in draws for channel in picked} == set(range(64))  # none is left out for good
    assert feature_grid(activation, seed=3).channels == draws[3]
    assert "drawn with seed 3" in feature_grid(activation, seed=3).caption
    assert "drawn" not in feature_grid(activation, seed=3, channels=64).caption


def test_names_stand_above_the_maps_where_they_fit_and_in_the_numbers():
    names = ["red", "green 緑", "a name far too long for the room above a map of this size"]
    grid = feature_grid(torch.rand(3, 8, 8), names=names, channels=[0, 1, 2])
    assert list_numbers(grid, "name") == names
    assert shows_text(read_label(grid, 0), "red")
    assert shows_text(read_label(grid, 1), "green ?")
    cut = next(
        names[2][:end]
        for end in range(len(names[2]), 0, -1)
        if render_text(names[2][:end]).shape[1] <= grid.boxes[2][2]
    )
    assert shows_text(read_label(grid, 2), cut)
    assert grid.caption.startswith(f"{', '.join(names)}, each 8 × 8.")
    flat = feature_grid(torch.ones(2, 8, 8), names=["one", "other"], title="Two")
    assert shows_text(read_label(flat, 1), "other flat")
    assert flat.caption.startswith("Two: one, other, each 8 × 8.")
    assert "Values run from 1 (one) to 1 (one)" in flat.alt
    assert feature_grid(torch.rand(9, 2, 2), names=list("abcdefghi")).caption.startswith("All 9 channels of 2 × 2.")
    assert list_numbers(feature_grid(torch.rand(3, 8, 8), names=names, channels=[2]), "name") == names[2:]


# --- what it says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "sample", "reading"),
    [
        ((2, 3, 4, 5), 1, "shape (2, 3, 4, 5) is read as (N, C, H, W), sample 1."),
        ((2, 3, 4, 5), -1, "shape (2, 3, 4, 5) is read as (N, C, H, W), sample 1."),
        ((256, 4, 5), 0, "shape (256, 4, 5) is read as (C, H, W), 256 channels of one sample."),
        ((4, 5), 0, "shape (4, 5) is read as (H, W), one map of 4 rows and 5 columns."),
    ],
)
def test_the_alt_text_says_how_the_shape_was_read(shape, sample, reading):
    activation = torch.rand(shape)
    grid = feature_grid(activation, sample=sample)
    assert grid.shape == shape
    assert reading in grid.alt
    assert ("Sample 1 of 2." in grid.caption) == (len(shape) == 4)
    expected = activation[sample] if len(shape) == 4 else activation
    assert grid.rows[0]["max"] == pytest.approx(float(expected.reshape(-1, 4, 5)[0].max()))


def test_alt_text_says_what_is_to_be_seen():
    activation = torch.zeros(1, 4, 2, 2)
    activation[0, 1] = -1.5
    activation[0, 3, 0, 0] = 4
    assert feature_grid(activation, title="conv1").alt == (
        "conv1: 4 maps of 2×2 in 1 row and 4 columns, all 4 channels; "
        "scale: each map has its own, from min (dark) to max (bright). "
        "The shape (1, 4, 2, 2) is read as (N, C, H, W), sample 0. "
        "Values run from -1.5 (channel 1) to 4 (channel 3); dead (all zeros): channels 0, 2; "
        "flat (all equal): channel 1."
    )


def test_long_lists_of_dead_channels_are_cut_in_the_alt_text_only():
    grid = feature_grid(torch.zeros(40, 2, 2), channels="all")
    assert "dead (all zeros): channels 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 28 more" in grid.alt
    assert len(grid.rows) == 40


def test_titles_and_names_are_escaped_in_html():
    evil = "<img src=x onerror=alert(1)>"
    html = feature_grid(torch.rand(1, 1, 2, 2), title=evil, names=[evil]).to_html()
    assert html.count("<img") == 1
    assert "&lt;img src=x onerror=alert(1)&gt;: &lt;img src=x onerror=alert(1)&gt;" in html


# --- what cannot be drawn --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((BASE,), TypeError, r"not a tuple of 1 \(Tensor \(2, 3, 4, 5\)\).*args\[0\]"),
        ((BASE, (BASE, BASE)), TypeError, r"not a tuple of 2 \(Tensor \(2, 3, 4, 5\), tuple\)"),
        ({"out": BASE, "aux": BASE}, TypeError, "the keys are 'out', 'aux'"),
        (None, TypeError, r"not None\. .*no gradient flows"),
        (nn.Conv2d(1, 1, 1), TypeError, "not the module Conv2d.*Run the module"),
        ("conv1", TypeError, "not an object of type str"),
        (torch.tensor(1.0), ValueError, r"shape \(\).*Print it"),
        (torch.rand(7), ValueError, r"shape \(7,\).*activation\[None\]"),
        (torch.rand(1, 2, 3, 4, 5), ValueError, r"activation\[:, :, 0\]"),
        (torch.rand(1, 1, 1, 1, 2, 2), ValueError, "merge 2 of its axes"),
        (torch.empty(1, 0, 4, 4), ValueError, r"shape \(1, 0, 4, 4\), so it has no elements"),
        (torch.empty(0, 3, 4, 4), ValueError, "no elements"),
        (BASE.to("meta"), TypeError, "meta device"),
        (torch.complex(BASE.float(), BASE.float()), TypeError, r"complex.* Pass activation\.abs\(\)"),
        (BASE.numpy() * 1j, TypeError, "complex"),
        (np.full((2, 2), "a"), TypeError, "Pass one of a numeric dtype"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_what_cannot_be_drawn_says_what_it_is_and_the_way_out(given, error, words):
    with pytest.raises(error, match=words):
        feature_grid(given)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"channels": 0}, ValueError, "Pass 1 or more"),
        ({"channels": [1, 3]}, IndexError, r"no channel 3: there are 3\. Pass 0 to 2 \(or -3 to -1\)"),
        ({"channels": [-4]}, IndexError, "no channel -4"),
        ({"channels": []}, ValueError, "selects none of the 3 channels"),
        ({"channels": slice(7, 9)}, ValueError, "selects none"),
        ({"channels": [True, False, True]}, TypeError, "integers, not True"),
        ({"channels": True}, TypeError, "integers, not True"),
        ({"channels": 2.0}, TypeError, "integers, not float"),
        ({"channels": "conv1"}, ValueError, "'all'"),
        ({"channels": [0], "seed": 1}, ValueError, "Pass a number of channels"),
        ({"sample": 2}, IndexError, "no sample 2.*0 to 1"),
        ({"scale": "global"}, ValueError, "'channel', 'shared'"),
        ({"scale": 3}, ValueError, "'channel', 'shared'"),
        ({"scale": (2, 1)}, ValueError, "with low < high"),
        ({"scale": (0, float("inf"))}, ValueError, "finite"),
        ({"scale": (-1, 2), "center": 0}, ValueError, r"Pass \(-2, 2\)"),
        ({"center": float("nan")}, ValueError, "finite"),
        ({"columns": 0}, ValueError, "columns=0"),
        ({"size": 0}, ValueError, "size=0"),
        ({"names": ["a"]}, ValueError, "1 name for 3 channels"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        feature_grid(BASE, **options)


def test_a_sample_of_something_without_a_batch_is_refused():
    with pytest.raises(ValueError, match="no batch axis"):
        feature_grid(BASE[0], sample=1)
