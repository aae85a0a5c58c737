"""Weights and images that come with the package: whole, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookscope import samples
from hookscope.samples import handwritten, photos, stories, textures
from hookscope.samples.bundled import SHA256, load_bundled

FILES = [
    *(handwritten.WEIGHTS, stories.STORY_WEIGHTS, textures.TEXTURE_WEIGHTS, textures.TEXTURE_PICTURES),
    photos.PHOTO_PIXELS,
    handwritten.SCANS,
]


def test_every_bundled_file_has_its_checksum() -> None:
    assert {file.name for file in handwritten.WEIGHTS.parent.glob("*.safetensors")} == {*SHA256}
    assert {file.name for file in FILES} == {*SHA256}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("damage", ["one bit", "cut", "empty", "missing"])
def test_a_damaged_file_is_refused_and_the_error_names_it_and_the_way_out(
    file: Path, damage: str, tmp_path: Path
) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1  # of a value: the header, which safetensors itself checks, is as it was
    copy = tmp_path / file.name
    if damage != "missing":
        copy.write_bytes({"one bit": bytes(content), "cut": content[:-100], "empty": b""}[damage])
    with pytest.raises(RuntimeError, match="cannot load a test") as error:
        load_bundled(copy, "a test")
    assert str(copy) in str(error.value)
    assert "Install hookscope again" in str(error.value)


def test_a_model_does_not_come_with_damaged_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / handwritten.WEIGHTS.name
    damaged.write_bytes(handwritten.WEIGHTS.read_bytes()[:5000])
    monkeypatch.setattr(handwritten, "WEIGHTS", damaged)
    with pytest.raises(RuntimeError, match=r"digit_cnn\.safetensors is damaged: it has 5,000 bytes"):
        samples.digit_cnn()
    assert samples.digit_cnn(trained=False)
