"""Pictures are drawn grey or in colour, and maps over what they are maps of."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from hookscope.pictures import feature_grid, image_grid
from hookscope.pictures import palette as pal
from hookscope.pictures.pixel_text import render_text, text_width


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")).astype(int)


def inside(picture, shape, zoom):
    """The colours of the first picture, one per value; each must fill its square."""
    high, wide_ = shape[0] * zoom, shape[1] * zoom
    drawn = pixels(picture)
    start = drawn.shape[0] - 6 - high  # no scale below, and one row
    tile = drawn[start : start + high, 6 : 6 + wide_].reshape(shape[0], zoom, shape[1], zoom, 3)
    assert (tile == tile[:, :1, :, :1]).all()
    return tile[:, 0, :, 0]


def test_one_channel_is_grey_and_three_are_in_colour():
    grey = inside(image_grid(torch.tensor([[0.0, 1.0], [2.0, 4.0]])), (2, 2), 80)
    assert grey.tolist() == [[[0] * 3, [64] * 3], [[128] * 3, [255] * 3]]
    red, blue = torch.zeros(2, 3, 1, 2)
    red[:2, 0, 0] = torch.tensor([1.0, 0.5])  # the three colours share one scale
    blue[2, 0, 1] = 7.0
    two = image_grid(torch.stack([red, blue]), names=["red", "blue"], title="Two")
    assert pixels(two)[30, 10].tolist() == [255, 128, 0]
    assert two.caption == "Two: 2 images of 1×2 in color"
    assert two.alt == "Two: 2 images of 1×2 in color: red, blue."
    assert [row["image"] for row in two.rows] == ["red", "blue"]
    assert two.rows[1]["max"] == 7
    one = image_grid(torch.rand(1, 1, 4, 4))
    assert one.caption == "an image of 4×4 in gray"


def test_a_map_lies_over_its_picture_value_by_value():
    picture = torch.zeros(1, 4, 4)
    picture[0, :, 2:] = 1
    heat = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    whole = image_grid(picture, over=heat, strength=1.0, scale=(0, 4), size=172)
    assert "a map of 2×2 over the image" in whole.caption
    assert "from 0 (dark) to 4 (bright)" in whole.alt
    colours = pal.palette(pal.VIRIDIS).astype(int)
    shown = pixels(whole)[6:166, 6:166][20::40, 20::40]
    assert shown[0, 0].tolist() == shown[1, 1].tolist() == colours[0].tolist()
    assert shown[3, 3].tolist() == colours[pal.LEVELS - 1].tolist()
    assert shown[0, 3].tolist() == colours[62].tolist()
    half = pixels(image_grid(picture, over=heat, strength=0.5, scale=(0, 4), size=172))[6:166, 6:166][20::40, 20::40]
    assert half[0, 0].tolist() == np.rint(colours[0] / 2).tolist()
    assert half[3, 3].tolist() == np.rint(colours[pal.LEVELS - 1] / 2 + 127.5).tolist()
    assert whole.rows == [{"image": 1, "min": 0.0, "max": 4.0, "mean": 1.75}]


def test_around_a_center_the_picture_shows_through():
    photo = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 4, 4) * torch.linspace(0, 1, 4)
    heat = torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    drawn = image_grid(photo, over=heat, center=0, strength=1.0, size=172)
    assert "(blue) over 0 (transparent) to" in drawn.alt
    assert "0 is transparent." in drawn.caption
    shown = pixels(drawn)[6:166, 6:166][20::40, 20::40]
    assert shown[0, 3].tolist() == [round(0.299 * 255)] * 3  # the red picture, in grey
    assert shown[0, 0].tolist() == pal.palette(pal.COOLWARM)[0].tolist()
    assert shown[3, 3].tolist() == pal.palette(pal.COOLWARM)[pal.LEVELS - 1].tolist()


def test_several_maps_over_one_picture_or_one_over_each():
    maps = torch.rand(3, 1, 7, 7)
    three = image_grid(torch.rand(1, 3, 14, 14), over=maps, names=["a", "b", "c"], title="Grad-CAM")
    assert [row["max"] for row in three.rows] == pytest.approx([float(each.max()) for each in maps])
    assert "3 maps of 7×7 over the image" in three.alt
    image_grid(torch.rand(3, 1, 14, 14), over=maps)
    with pytest.raises(ValueError, match="3 maps for 2 images"):
        image_grid(torch.rand(2, 1, 14, 14), over=maps)


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        (torch.rand(2, 5, 4, 4), {}, ValueError, r"shape \(2, 5, 4, 4\)\. Pass \(N, 1 or 3, H, W\)"),
        (torch.rand(7), {}, ValueError, r"shape \(7,\)\. Pass"),
        (torch.full((4, 4), float("nan")), {}, ValueError, "NaN or infinite values"),
        (torch.rand(0, 1, 4, 4), {}, ValueError, "no elements"),
        ([1.0], {}, TypeError, "not list"),
        (torch.zeros(4, 4, dtype=torch.complex64), {}, TypeError, "complex"),
        (torch.rand(4, 4), {"over": torch.rand(5)}, ValueError, r"over has the shape \(5,\)"),
        (torch.rand(4, 4), {"names": ["a", "b"]}, ValueError, "2 names for 1 image"),
        (torch.rand(4, 4), {"strength": 2}, ValueError, "from 0 to 1"),
    ],
)
def test_what_is_no_picture_is_refused(given, options, error, words):
    with pytest.raises(error, match=words):
        image_grid(given, **options)


def test_rows_and_columns_of_a_map_have_numbers_and_names():
    grid = feature_grid(
        torch.rand(2, 10, 32), names=["trained", "untrained"], axes=("digit", "channel"), columns=1, size=700
    )
    (left, top, width, high), (_, second, _, _) = grid.boxes
    zoom = width // 32
    assert "Each row of a map is one digit, each column one channel" in grid.caption
    assert "Each row is one digit, each column one channel." in grid.alt

    def stands(text, row, column):
        line = render_text(text)[1:-1]
        return (grid.mosaic[row + 1 : row + 1 + len(line), column : column + line.shape[1]] == line).all()

    for start in (top, second):
        seven = start + 7 * zoom + (zoom - len(render_text("7"))) // 2
        assert any(stands("7", seven, column) for column in range(left - 20, left))
        assert any(stands("30", start + high + 1, column) for column in range(left + 30 * zoom - 8, left + 31 * zoom))
        assert any(
            stands("channel", start + high + len(render_text("7")), column) for column in range(left, left + width)
        )
        name = np.rot90(render_text("digit"))[1:-1, 1:-1]
        around = grid.mosaic[start : start + high, :left]
        windows = np.lib.stride_tricks.sliding_window_view(around, name.shape)
        assert (windows == name).all(axis=(2, 3)).any()
    small = feature_grid(torch.rand(1, 3, 3), axes=("row", "column"), size=40)  # too small for any number
    assert small.boxes[0][2] >= 3
    assert text_width("channel") < width


def test_rulers_leave_out_numbers_that_would_touch():
    grid = feature_grid(torch.rand(1, 100, 100), axes=("row", "column"), size=260)
    assert grid.mosaic.shape[1] < 400


def test_a_large_image_in_color_shrinks_without_a_warning(recwarn):
    image_grid(torch.rand(2, 3, 64, 64), size=40)
    assert not recwarn.list
