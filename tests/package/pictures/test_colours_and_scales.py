"""Every value of a feature map has the colour that its scale says, NaN, infinity and equal values their own."""

import io
import itertools

import numpy as np
import pytest
import torch

from hookscope.pictures import palette as pal
from hookscope.pictures.feature_maps import feature_grid
from tests.shared.grid_pixels import MIDDLE, TOP, list_numbers, read_label, read_map, shows_text

RAMPS = torch.tensor([[[0.0, 1.0, 2.0]], [[2.0, 3.0, 4.0]]])


# --- the scale -------------------------------------------------------------------------------------------


def test_each_channel_has_its_own_scale_unless_shared():
    own, shared = feature_grid(RAMPS), feature_grid(RAMPS, scale="shared")
    assert read_map(own, 0) == read_map(own, 1) == [[0, 124, 248]]
    assert read_map(shared, 0) == [[0, 62, 124]]
    assert read_map(shared, 1) == [[124, 186, 248]]
    assert own.scale == "per channel"
    assert shared.scale == (0, 4)
    assert "Each map has its own scale." in own.caption
    assert "All maps share one scale, from 0 to 4." in shared.caption
    assert "the same for every map, from 0 (dark) to 4 (bright)" in shared.alt


def test_shared_scale_looks_only_at_the_channels_shown():
    assert feature_grid(RAMPS, scale="shared", channels=[0]).scale == (0, 2)


def test_fixed_scale_clips_and_counts_what_lies_outside():
    grid = feature_grid(RAMPS, scale=(1, 3))
    assert grid.scale == (1, 3)
    assert read_map(grid, 0) == [[0, 0, 124]]
    assert read_map(grid, 1) == [[124, 248, 248]]
    assert "2 of 6 values lie outside the scale" in grid.caption
    assert "outside" not in feature_grid(RAMPS, scale=(0, 4)).caption


def test_center_has_the_middle_colour_and_equal_reach():
    from PIL import Image

    grid = feature_grid(RAMPS - 1, center=0)
    assert read_map(grid, 0) == [[0, 124, 248]]
    assert read_map(grid, 1) == [[165, 207, 248]]
    assert feature_grid(RAMPS - 1, center=0, scale="shared").scale == (-3, 3)
    assert read_map(feature_grid(RAMPS, center=2, scale=(0, 4)), 0) == [[0, 62, 124]]
    colours = Image.open(io.BytesIO(grid.png)).convert("RGB")
    left, top, width, height = grid.boxes[0]
    red, green, blue = colours.getpixel((left + width // 2, top + height // 2))
    assert max(red, green, blue) - min(red, green, blue) <= 2  # grey
    assert colours.getpixel((left, top))[2] > colours.getpixel((left, top))[0]  # negative is blue
    assert "-max|x| (blue) over 0 (gray) to +max|x| (red)" in grid.alt
    assert "0 is gray." in grid.caption


def test_maps_of_equal_values_have_a_defined_colour_and_a_mark():
    activation = torch.stack([torch.zeros(12, 12), torch.full((12, 12), 5.0), torch.eye(12)])
    grid = feature_grid(activation, title="relu")
    assert {index for row in read_map(grid, 0) + read_map(grid, 1) for index in row} == {0}
    assert shows_text(read_label(grid, 0), "0 dead")
    assert shows_text(read_label(grid, 1), "1 flat")
    assert shows_text(read_label(grid, 2), "2")
    assert list_numbers(grid, "note") == ["dead: all zeros", "flat: all equal", None]
    assert "dead (all zeros): channel 0; flat (all equal): channel 1." in grid.alt
    signed = feature_grid(activation, center=0)  # gradients are not dead
    assert read_map(signed, 0)[0][0] == MIDDLE
    assert shows_text(read_label(signed, 0), "0 zero")
    assert list_numbers(signed, "note")[0] == "all zeros"
    assert "all zeros: channel 0;" in signed.alt
    assert "dead" not in signed.alt
    assert "note" not in feature_grid(activation[2:]).rows[0]


@pytest.mark.parametrize("zoomed", [True, False])
@pytest.mark.parametrize("low", [-7.0, 0.0, 5.0])
def test_nan_and_inf_have_their_own_colours_and_count_for_no_scale(zoomed, low):
    special = torch.tensor([[0.0, float("nan"), 1.0], [float("inf"), -float("inf"), 0.5]]) + low
    grid = feature_grid(torch.stack([special, torch.rand(2, 3)]), size=None if zoomed else 24, columns=2)
    assert read_map(grid, 0) == [[0, pal.NAN, TOP], [pal.POS_INF, pal.NEG_INF, MIDDLE]]
    first, second = grid.rows
    assert (first["min"], first["max"], first["mean"]) == (low, low + 1, low + 0.5)
    assert (first["NaN"], first["+inf"], first["-inf"]) == (1, 1, 1)
    assert (second["NaN"], second["+inf"], second["-inf"]) == (0, 0, 0)
    assert "NaN: channel 0; inf: channel 0" in grid.alt
    left, top, width, height = grid.boxes[0]
    tile = grid.mosaic[top : top + height, left : left + width]
    # Not by colour alone: hatched where a value is large enough.
    hatched = {pal.PAPER, pal.INK} & set(np.unique(tile).tolist())
    assert hatched == ({pal.PAPER, pal.INK} if zoomed else set())


def test_the_hatchings_differ_by_more_than_colour():
    from hookscope.pictures.map_drawing import hatch

    patterns = []
    for index in (pal.NAN, pal.POS_INF, pal.NEG_INF):
        tile = np.full((8, 8), index, dtype=np.uint8)
        hatch(tile)
        patterns.append(tile != index)
    for one, other in itertools.combinations(patterns, 2):
        assert (one != other).any()
    assert (patterns[1] == patterns[2][:, ::-1]).all()  # rising and falling


def test_maps_without_a_finite_value_are_drawn():
    for scale in ("channel", "shared"):
        grid = feature_grid(torch.full((1, 1, 2, 2), float("nan")), scale=scale)
        assert read_map(grid) == [[pal.NAN] * 2] * 2
        assert np.isnan(grid.rows[0]["max"])
        assert "No value is finite" in grid.alt


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([-3e38, 0.0, 3e38], torch.float32),
        ([-1.7e308, 0.0, 1.7e308], torch.float64),
        ([0.0, 1e-42, 2e-42], torch.float32),
        ([0.0, 1e-200, 2e-200], torch.float64),
        ([16777214.0, 16777215.0, 16777216.0], torch.float32),
        ([1e15, 1e15 + 1, 1e15 + 2], torch.float64),
    ],
)
@pytest.mark.filterwarnings("error")
def test_extreme_ranges_do_not_overflow_or_vanish(values, dtype):
    activation = torch.tensor(values, dtype=dtype)[None, None]
    assert read_map(feature_grid(activation)) == [[0, 124, 248]]
    assert read_map(feature_grid(activation, scale=(values[0], values[2]))) == [[0, 124, 248]]


# --- the colours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "table"), [("viridis", pal.VIRIDIS), ("coolwarm", pal.COOLWARM)])
def test_maps_are_those_of_matplotlib(name, table):
    import matplotlib as mpl

    expected = mpl.colormaps[name](np.arange(256), bytes=True)[:, :3]
    assert table.shape == (256, 3)
    assert table.dtype == np.uint8
    assert np.abs(table.astype(int) - expected).max() <= 1  # one step of rounding between releases
    assert not table.flags.writeable


def test_special_colours_are_on_no_map():
    for table in (pal.VIRIDIS, pal.COOLWARM):
        colours = pal.palette(table).astype(int)
        special = [pal.NAN, pal.POS_INF, pal.NEG_INF]
        for index in special:
            others = np.delete(colours[: pal.EDGE + 1], index, axis=0)
            assert np.abs(others - colours[index]).sum(axis=1).min() > 20
        assert (colours[[0, TOP]] == table[[0, 255]]).all()
    middle = pal.palette(pal.COOLWARM)[MIDDLE].astype(int)
    assert np.ptp(middle) <= 2
