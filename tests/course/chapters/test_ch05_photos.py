"""The photographs of the chapters, and two pictures side by side."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

import hookscope
from hookscope import samples
from hookscope_course.chapters import ch05_photos as photos
from hookscope_course.figures import image_pairs as pairs


def test_without_weights_there_is_a_note_and_a_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samples, "has_photo_weights", lambda: False)
    state = torch.get_rng_state()
    net = photos.load_photo_cnn()
    assert "NOTE: the weights of the photo network are missing" in capsys.readouterr().out
    assert torch.equal(torch.get_rng_state(), state)
    assert net(samples.photo("cat")).shape == (1, 1000)
    assert photos.name_part_of_cat(torch.zeros(7, 7)) == "nowhere"


def test_with_weights_there_is_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    net = photos.load_photo_cnn()
    assert capsys.readouterr().out == ""
    assert samples.PHOTO_CLASSES[int(net(samples.photo("coffee")).argmax())] == "espresso"


def test_a_pair_holds_both_pictures_with_their_words_and_numbers() -> None:
    maps = torch.rand(4, 8, 8)
    left = hookscope.feature_grid(maps, title="Left", columns=2)
    right = hookscope.image_grid(maps[:, None], title="Right", columns=2)
    pair = pairs.draw_pair(left, right)
    one, two, both = (Image.open(io.BytesIO(png)).convert("RGB") for png in (left.png, right.png, pair.png))
    assert both.width >= one.width + two.width
    bottom = pairs._TITLE
    assert both.crop((0, bottom, one.width, bottom + one.height)).tobytes() == one.tobytes()
    assert len(pair.rows) == 8
    assert {row["picture"] for row in pair.rows} == {"Left", "Right"}
    assert left.alt in pair.alt
    assert right.alt in pair.alt
