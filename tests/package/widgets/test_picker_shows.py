"""What the layer picker shows: outputs and gradients of every layer, channels in order, and what cannot be shown."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hookscope import samples
from hookscope.pictures.picture import as_text
from hookscope.pictures.pixel_text import LINE
from hookscope.widgets import LayerPicker
from hookscope.widgets.channel_maps import draw_input, read_maps, sort_channels
from tests.package.widgets.picker_models import make_convs, make_digit_picker, make_images
from tests.shared.awkward_models import Do, Net
from tests.shared.grid_pixels import shows_text


@pytest.mark.parametrize("target", [-1, 3])
def test_gradients_are_those_of_the_chosen_class(target: int) -> None:
    model, x = make_convs().eval(), make_images()
    model(x)
    picker = LayerPicker(model, x, layer="1", show="gradient", target=target)
    normed = model[1](model[0](x)).detach().requires_grad_()
    scores = model[4](model[3](normed.relu()))
    (scores.max(dim=1).values if target < 0 else scores[:, target]).sum().backward()
    torch.testing.assert_close(picker.gradient, normed.grad)
    torch.testing.assert_close(picker.shown, normed.grad)
    picker.show = "activation × gradient"
    torch.testing.assert_close(picker.shown, normed.grad * normed)
    assert "grey" in picker.caption or "0" in picker.caption


def test_a_frozen_model_has_gradients_by_its_input_and_one_without_any_says_so() -> None:
    model = make_convs().eval()
    model(make_images())
    model.requires_grad_(False)
    picker = LayerPicker(model, make_images(), show="gradient")
    assert picker.gradient.abs().sum() > 0
    index = LayerPicker(nn.Embedding(4, 3).requires_grad_(False), torch.tensor([[1, 2]]))
    index.show = "gradient"
    assert "does not require grad" in index.problem
    index.show = "activation"
    assert not index.problem


def test_a_call_of_a_shared_module_and_a_part_of_a_tuple() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 3), relu)
    picker = LayerPicker(model, torch.randn(2, 4), layer="1")
    assert picker.calls == 2
    assert picker.activation.shape == (2, 6)
    picker.call = 2
    assert picker.activation.shape == (2, 3)
    picker.layer = "0"
    assert (picker.call, picker.calls) == (1, 1)
    lstm = LayerPicker(nn.LSTM(4, 5, batch_first=True), torch.randn(2, 7, 4))
    assert lstm.parts == ["[0]", "[1][0]", "[1][1]"]
    assert "(N, rows, columns), as one map" in lstm.caption
    lstm.part = "[1][0]"
    assert lstm.activation.shape == (1, 2, 5)


@pytest.mark.parametrize("by", ["mean", "max", "zeros"])
def test_channels_are_ordered_by_what_is_asked(by: str) -> None:
    model, x = make_convs(40).eval(), make_images()
    model(x)
    picker = LayerPicker(model, x, layer="2", order=by, per_page=16, sample=2)
    maps = picker.activation[2].flatten(1)
    key = {"mean": maps.mean(1), "max": maps.amax(1), "zeros": (maps == 0).float().mean(1)}[by]
    assert picker.pages == 3
    assert key[picker.channels].tolist() == sorted(key.tolist(), reverse=True)[:16]
    picker.page = 2
    assert key[picker.channels].tolist() == sorted(key.tolist(), reverse=True)[32:]
    picker.order = "index"
    assert picker.page == 0
    assert picker.channels == list(range(16))


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (torch.randn(2, 3, 4, 5), (3, 4, 5)),
        (torch.randn(2, 3, 6, 4, 5), (3, 4, 30)),
        (torch.randn(2, 7, 9), (1, 7, 9)),
        (torch.randn(2, 10), (1, 1, 10)),
        (torch.randn(2, 100), (1, 2, 50)),
        (torch.randn(2, 101), (1, 1, 101)),
        (torch.randn(5), (1, 1, 5)),
        (torch.tensor(3.0), (1, 1, 1)),
        (torch.randn(2, 3, 4, 5) > 0, (3, 4, 5)),
        (torch.arange(24).reshape(1, 2, 3, 4), (2, 3, 4)),
        (torch.randn(2, 3, 4, 5, dtype=torch.complex64), (3, 4, 5)),
        (torch.eye(4).to_sparse(), (1, 1, 4)),
        (torch.randn(2, 3, 4, 5, dtype=torch.bfloat16), (3, 4, 5)),
    ],
)
def test_outputs_of_any_shape_and_dtype_are_shown(output: Tensor, shape: tuple[int, ...]) -> None:
    assert read_maps(output, 0)[0].shape == shape
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert not picker.problem
    assert picker.png
    for by in ("mean", "max", "zeros"):
        assert sorted(sort_channels(output, 0, by)) == list(range(shape[0]))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (torch.zeros(0, 3, 4, 4), "nothing to draw"),
        (torch.zeros(1, 1, 1, 1, 1, 2), "more than 5 axes"),
        ("text", "no tensor"),
    ],
)
def test_what_cannot_be_shown_is_said(output: Any, words: str) -> None:
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert words in picker.problem


def test_channels_last_reads_the_last_axis_as_channels() -> None:
    picker = LayerPicker(Do(lambda x: torch.arange(24.0).reshape(1, 2, 3, 4)), torch.zeros(1))
    assert picker.channels == [0, 1]
    picker.channels_last = True
    assert picker.channels == [0, 1, 2, 3]
    assert "(N, H, W, C)" in picker.caption


def test_a_channel_is_shown_large_with_its_numbers() -> None:
    picker = make_digit_picker()
    assert not picker.large
    picker.channel = 3
    assert picker.large.startswith(b"\x89PNG")
    row = next(row for row in picker.rows if row["channel"] == 3)
    assert f"max {as_text(row['max'])}" in picker.large_alt
    assert picker.input_png.startswith(b"\x89PNG")
    plain, over = (np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")) for png in (picker.large, picker.over))
    assert (over[..., :3] == plain[..., :3]).all()
    values = picker.activation[0, 3]
    zoom = len(plain) // len(values)
    alpha = torch.from_numpy(over[::zoom, ::zoom, 3].astype(int))
    share = (values - values.min()) / (values.max() - values.min())
    assert (alpha - 255 * share).abs().max() < 2, "the input stays visible where the channel is low"
    picker.show = "gradient"
    alpha = np.asarray(Image.open(io.BytesIO(picker.over)).convert("RGBA"))[::zoom, ::zoom, 3]
    size = (picker.gradient[0, 3].abs() / picker.gradient[0, 3].abs().max()).numpy()
    assert np.abs(alpha - 255 * size).max() < 2, "and where a gradient is near 0"
    picker.layer = "fc1" if "fc1" in picker._names else picker.tree[-1]["name"]
    assert picker.channel == -1
    assert not picker.large


def test_an_input_that_is_no_image_has_no_picture() -> None:
    assert draw_input(torch.zeros(1, 5, 4, 4), 0) is None
    assert draw_input(torch.full((1, 1, 4, 4), float("nan")), 0) is None
    assert draw_input("text", 0) is None
    png, alt = draw_input(torch.zeros(1, 3, 4, 4), 0) or (b"", "")
    assert png
    assert "4×4" in alt


def test_nan_and_dead_channels_are_said() -> None:
    output = torch.ones(1, 3, 4, 4)
    output[0, 0] = 0
    output[0, 1, 0, 0] = float("nan")
    picker = LayerPicker(Do(lambda x: output), torch.zeros(1))
    assert ["NaN or inf", "1"] in picker.facts
    assert picker.rows[0]["% zeros"] == 100


@pytest.mark.parametrize(("width", "above"), [(640, "12 all zeros"), (400, "12 all 0")])
@pytest.mark.parametrize("show", ["activation", "gradient"])
def test_a_map_that_is_zero_in_one_image_is_not_called_dead(width: int, above: str, show: str) -> None:
    picker = LayerPicker(samples.digit_cnn(), samples.digit(5), layer="block2.pool", channel=12)
    assert (picker.activation[0, 12] == 0).all()
    if show == "gradient":
        model = nn.Sequential(nn.Identity(), Do(lambda x: x * torch.arange(24)[:, None, None].ne(12)))
        picker = LayerPicker(model, torch.rand(1, 24, 14, 14), layer="0", show=show, channel=12)
        assert (picker.gradient[0, 12] == 0).all()
    picker.width = width
    drawn = np.asarray(Image.open(io.BytesIO(picker.png)))
    left, top, wide, _ = picker.boxes[12]
    assert shows_text(drawn[top - LINE : top, left : left + wide], above)
    assert picker.rows[12]["note"] == "all zeros"
    assert "all zeros: channel 12" in picker.alt
    assert "all zeros" in picker.large_alt
    assert "dead" not in f"{picker.alt} {picker.large_alt} {picker.caption} {picker.rows}"


def test_an_overwritten_output_is_shown_as_it_was_and_said_to_be() -> None:
    model = make_convs().eval()
    model(make_images())
    picker = LayerPicker(model, make_images(), layer="1")
    assert (picker.activation < 0).any()
    assert any("layer 2 (ReLU); this is the value before that" in value for _, value in picker.facts)


def test_classes_have_names() -> None:
    picker = LayerPicker(samples.digit_cnn(), samples.digit(5), classes=[f"digit {n}" for n in range(10)])
    assert picker.targets[3] == "digit 3"


def test_layers_never_called_say_why() -> None:
    model = Net(lambda self, x: self.used(x), used=nn.Linear(2, 2), idle=nn.Linear(2, 2), box=nn.ModuleList())
    why = {row["name"]: row["why"] for row in LayerPicker(model, torch.zeros(1, 2)).tree}
    assert why["used"] == ""
    assert "did not reach it" in why["idle"]
    assert "ModuleList" in why["box"]


@pytest.mark.slow
def test_many_modules_and_many_channels() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(5000)])
    picker = LayerPicker(model, torch.zeros(1, 2, 4, 4))
    assert len(picker.tree) == 5001
    wide = LayerPicker(nn.Conv2d(1, 2048, 1), torch.ones(1, 1, 4, 4))
    assert wide.pages == 32
    wide.page = 31
    assert wide.channels[-1] == 2047
