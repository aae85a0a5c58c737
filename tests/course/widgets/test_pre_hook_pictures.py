"""What the pre-hook playground shows: pictures, colours, classes and text, and what it cannot show."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookscope
from hookscope import samples
from hookscope.pictures.palette import COOLWARM, LEVELS, PAPER, VIRIDIS, palette
from hookscope_course.widgets.pre_hook import PreHookPlayground
from hookscope_course.widgets.pre_hook_images import draw_poster
from tests.shared.edited import RGB, put


def rgb(height: int = 12, width: int = 10, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PreHookPlayground(RGB(), torch.rand(3, height, width), **options)


def pixels(png: bytes):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_what_is_sent_for_one_change_is_small_and_one_message(digit, monkeypatch) -> None:
    sent = []
    monkeypatch.setattr(digit, "_send", lambda message, buffers=None: sent.append((message, buffers)))
    digit.set_state({"brightness": 0.5})
    paths = [message["buffer_paths"] for message, _ in sent if message["method"] == "update"]
    pictures = [sorted(trait for (trait,) in together) for together in paths if together]
    assert pictures == [["difference_png", "edited_png"]], "and not the original again"
    assert sum(len(buffer) for _, buffers in sent for buffer in buffers or ()) < 6000


def test_the_pictures_have_the_colours_of_the_scale(digit) -> None:
    digit.square, digit.row, digit.column, digit.brightness = 4, 12, 12, 0.5
    viridis, coolwarm = palette(VIRIDIS), palette(COOLWARM)
    image = samples.digit(5)[0, 0]
    original, edited, difference = (pixels(getattr(digit, f"{n}_png")) for n in ("original", "edited", "difference"))
    assert original.shape == edited.shape == difference.shape == (28, 28, 3)
    assert (original[0, 0] == viridis[0]).all()
    row, column = divmod(int(image.argmax()), 28)
    assert (original[row, column] == viridis[round(float(image.max()) * (LEVELS - 1))]).all()
    assert (edited[0, 0] == viridis[(LEVELS - 1) // 2]).all()
    assert (edited[12:16, 12:16] == viridis[0]).all()
    reach = float((digit.edited - image).abs().max())
    assert (difference[0, 0] == coolwarm[round((0.5 / reach + 1) / 2 * (LEVELS - 1))]).all()
    outside = int((digit.edited > 1).sum())
    assert outside > 0
    assert f"{outside} of 784 values are outside" in digit.notes["edited"]
    digit.reset()
    assert (pixels(digit.difference_png) == coolwarm[LEVELS // 2]).all()


def test_nan_and_inf_have_their_own_colours_and_no_class() -> None:
    image = samples.digit(5)
    image[0, 0, 0, 0], image[0, 0, 0, 1] = torch.nan, torch.inf
    playground = PreHookPlayground(samples.digit_cnn(), image)
    assert playground.notes["original"].endswith("NaN black, +inf pink")
    assert (pixels(playground.original_png)[0, 0] == 0).all()
    assert "no class: the probabilities are NaN" in playground.answer
    assert playground.bars[0] == ["0", None, None]
    assert "NaN" in repr(playground)
    assert playground.png


def test_colours_and_feature_maps() -> None:
    playground = rgb()
    assert playground.in_color
    assert playground.notes["original"].startswith("red, green and blue from 0")
    expected = (playground.edited[0].permute(1, 2, 0) * 255).round().byte().numpy()
    assert (pixels(playground.original_png) == expected).all()
    deeper = rgb(layer="norm")
    assert not deeper.in_color
    assert deeper.edited.shape == (1, 5, 12, 10)
    assert deeper.notes["original"].startswith("mean of 5 channels, ")
    assert deeper.title == "RGB: what the pre-hook of norm returns"
    assert 'model.get_submodule("norm")' in deeper.code.replace("'", '"')
    maps = deeper.edited[0].mean(0)
    brightest = divmod(int(maps.argmax()), 10)
    assert (pixels(deeper.original_png)[brightest] == palette(VIRIDIS)[LEVELS - 1]).all()
    deeper.square = 6
    assert not deeper.edited[:, :, :6, :6].any()
    wide = rgb(500, 20)
    assert pixels(wide.edited_png).shape == (250, 10, 3)
    assert wide.notes["edited"].endswith("drawn at 1/2 size")


def test_the_classes_shown_are_the_likeliest_of_both_runs() -> None:
    class Fixed(nn.Module):
        def forward(self, x):
            scores = torch.arange(6.0)
            return (scores if x.max() < 2 else scores.flip(0))[None]

    names = ["a", "b", "<img src=x onerror=alert(1)>", "d", "e", "f"]
    playground = PreHookPlayground(Fixed(), torch.ones(1, 2, 2), classes=names, top=2)
    assert [bar[0] for bar in playground.bars] == ["e", "f"]
    playground.brightness = 3.0
    assert [bar[0] for bar in playground.bars] == ["a", "f"]
    assert playground.answer == "original: f (63.4 %) · edited: a (63.4 %) · the hook has changed the prediction"
    everything = PreHookPlayground(Fixed(), torch.ones(1, 2, 2), classes=names, top=99)
    assert [bar[0] for bar in everything.bars] == names


def test_text_and_picture_before_anything_runs(digit) -> None:
    put(digit, {"square": 9, "row": 4, "column": 9, "brightness": 0.2})
    lines = repr(digit).splitlines()
    assert lines[:3] == [
        "DigitCNN: what the pre-hook returns",
        "brightness: +0.2",
        "square: 9 rows from row 4, 9 columns from column 9",
    ]
    assert lines[3] == digit.answer
    assert lines[4].split() == ["class", "original", "edited"]
    data, _ = digit._repr_mimebundle_()
    assert data["text/plain"] == repr(digit)
    assert pixels(data["image/png"]).shape[1] > 500
    assert digit.answer in digit.alt
    before = digit.png
    digit.square = 0
    assert digit.png != before
    assert "0x" not in repr(digit)


def raises(kind, match, *args, **options):
    with pytest.raises(kind, match=match):
        PreHookPlayground(*args, **options)


def test_the_poster_leaves_the_numbers_of_its_bars_to_the_table():
    blank = np.zeros((28, 28, 3), dtype=np.uint8)
    drawn = draw_poster({"original": blank, "edited": blank}, [("five", 0.0, 0.0), ("six", 1.0, None)])
    paper = palette(VIRIDIS)[PAPER]
    five, six = drawn[-35:-23], drawn[-19:-13]
    assert (five[:, 140:] == paper).all(), "no text stands beside a bar"
    assert (six[:, 140:-11] != paper).any(axis=(0, 2)).all(), "a full bar takes the room there is"
    assert (six[:, -11:] == paper).all()


def test_what_cannot_be_shown_is_said_at_once() -> None:
    model, image = samples.digit_cnn(), samples.digit(5)
    raises(TypeError, r"type ndarray\. Pass a tensor", model, np.zeros((1, 28, 28)))
    raises(TypeError, r"torch.uint8.*image.float\(\) / 255", model, (image * 255).byte())
    raises(ValueError, r"2 images\. Pass one of them: image\[:1\]", model, torch.zeros(2, 1, 28, 28))
    raises(ValueError, r"\(28, 28\).*\(C, H, W\)", model, image[0, 0])
    raises(ValueError, r"channels come last.*permute\(2, 0, 1\)", model, torch.zeros(28, 28, 3))
    raises(ValueError, r"channels has length 2\. Pass one with 1 or 3 channels", model, torch.zeros(2, 28, 28))
    raises(hookscope.LayerNotFoundError, "did you mean 'block2'", model, image, "block22")
    raises(ValueError, "picks 3 layers: block1.conv", model, image, "*.conv")
    raises(TypeError, "'head.linear' gets an input of shape .*Choose an earlier layer", model, image, "head.linear")
    raises(ValueError, "classes has 3 names, but the model returns 10 scores", model, image, classes="abc")
    raises(ValueError, "top=0", model, image, top=0)
    raises(TypeError, r"returned a tensor of shape \(1, 16, 28, 28\)", model.block1, image)
    model.spare = nn.ReLU()
    raises(ValueError, "'spare' was not called", model, image, "spare")
    assert len(hookscope.census(model)) == 0


class Awkward(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_name, self.ints, self.pair = nn.ReLU(), nn.Embedding(2, 3), nn.Identity()

    def forward(self, x):
        self.by_name(input=x)
        self.ints((x > 0).long())
        self.pair((x, x))
        return x.flatten(1)


def test_layers_that_get_no_maps() -> None:
    model, image = Awkward(), torch.ones(1, 2, 2)
    raises(TypeError, "'by_name' gets its input as a keyword argument", model, image, "by_name")
    raises(TypeError, "'ints' gets a tensor of dtype torch.int64", model, image, "ints")
    raises(TypeError, "'pair' gets an object of type tuple", model, image, "pair")
