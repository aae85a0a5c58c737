"""Digits and the small trained CNN: real, the same every time, without a download."""

import hashlib
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn

from hookscope import samples
from hookscope.samples import handwritten
from hookscope.samples.bundled import load_bundled
from hookscope.samples.handwritten import SCANS
from tools.training import digits as train_module


@pytest.fixture
def trainer():
    return train_module


# ---- digits


def test_digits_are_pictures_like_mnist_s():
    images, labels = samples.digits()
    assert (images.shape, images.dtype) == ((360, 1, 28, 28), torch.float32)
    assert (labels.shape, labels.dtype) == ((360,), torch.int64)
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal(images * 255, (images * 255).round())  # 8 bits
    border = torch.ones(28, 28, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    assert not images[:, 0, border].any()
    assert images.amax((1, 2, 3)).min() > 0.9
    assert labels.unique().tolist() == list(range(10))


def test_digits_are_scikit_learn_s_own():
    from sklearn.datasets import load_digits

    raw = load_digits()
    shipped = load_bundled(SCANS, "the digits")
    assert np.array_equal(shipped["images"].numpy(), raw.images)
    assert np.array_equal(shipped["labels"].numpy(), raw.target)
    images, labels = samples.digits("all")
    assert labels.bincount().tolist() == torch.from_numpy(raw.target).bincount().tolist()
    scans = torch.from_numpy(raw.images).float() / 16
    small = nn.functional.interpolate(images, size=(28, 28))[:, 0, 2:-2, 2:-2]
    small = nn.functional.interpolate(small[:, None], size=(10, 10), mode="area")[:, 0, 1:-1, 1:-1]
    nearest = torch.cdist(small.flatten(1), scans.flatten(1)).argmin(1)
    assert torch.equal(labels, torch.from_numpy(raw.target)[nearest].long())
    assert len(nearest.unique()) > 1700  # each picture is the enlarged scan that it comes from


def test_digits_are_the_same_on_every_machine() -> None:
    # Computed in float32 they were not: kernels with and without AVX rounded 9 pixels differently.
    pixels = samples.digits("all").images.numpy().tobytes()
    assert hashlib.sha256(pixels).hexdigest()[:16] == "f63929f5c4171d3a"


def test_the_split_is_fixed_and_complete():
    train, test, every = (samples.digits(split) for split in ("train", "test", "all"))
    assert (len(train.labels), len(test.labels), len(every.labels)) == (1437, 360, 1797)
    assert torch.equal(torch.cat([train.images, test.images]), every.images)
    assert torch.equal(torch.cat([train.labels, test.labels]), every.labels)
    assert test.labels[:8].tolist() == [7, 9, 4, 7, 0, 2, 6, 1]
    assert train.labels.bincount().min() > 130
    seen = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in seen for image in test.images)


def test_an_edit_in_place_does_not_reach_the_next_caller():
    before = samples.digits().images.clone()
    images, labels = samples.digits()
    images.zero_()
    labels.zero_()
    samples.digit(5).zero_()
    assert torch.equal(samples.digits().images, before)
    assert samples.digits().labels.any()


def test_an_unknown_split_is_told():
    with pytest.raises(ValueError, match=r"no split 'valid'. Pass 'test', 'train' or 'all'"):
        samples.digits("valid")


def test_digits_say_what_they_are_in_a_few_words():
    assert repr(samples.digits()) == (
        "360 images from scikit-learn digits\n"
        "images 360×1×28×28 float32, labels 0:31 1:35 2:39 3:33 4:44 5:29 6:40 7:40 8:28 9:41"
    )
    copied = pickle.loads(pickle.dumps(samples.digits()))
    assert repr(copied) == repr(samples.digits())


def test_digit_is_a_batch_of_one_from_the_test_split():
    images, labels = samples.digits()
    for label in range(10):
        picture = samples.digit(label, 1)
        assert picture.shape == (1, 1, 28, 28)
        assert torch.equal(picture[0], images[labels == label][1])
    assert torch.equal(samples.digit(), samples.digit(5, 0))
    assert not torch.equal(samples.digit(5, 0), samples.digit(5, 1))


@pytest.mark.parametrize("label", [10, -1, "5", None])
def test_a_label_that_is_no_digit_is_told(label):
    with pytest.raises(ValueError, match=f"no digit {label!r}. Pass 0 to 9"):
        samples.digit(label)


@pytest.mark.parametrize("index", [29, -1])
def test_an_index_out_of_range_is_told(index):
    with pytest.raises(IndexError, match=f"no index {index}: there are 29 test images of a 5. Pass 0 to 28"):
        samples.digit(5, index)


# ---- the CNN


@torch.no_grad()
def test_the_weights_that_come_with_the_package_read_the_held_out_digits(trainer):
    model, (images, labels) = samples.digit_cnn(), samples.digits()
    assert trainer.accuracy(model, images, labels) >= 0.98
    moved = trainer.shift(images, torch.Generator().manual_seed(1))
    assert not torch.equal(moved, images)
    assert trainer.accuracy(model, moved, labels) >= 0.97
    wrong = [label for label in range(10) if model(samples.digit(label)).argmax() != label]
    assert wrong == [1]
    assert trainer.accuracy(samples.digit_cnn(trained=False), images, labels) < 0.5


@torch.no_grad()
def test_most_channels_are_alive():
    x, model = samples.digits().images, samples.digit_cnn()
    for block in (model.block1, model.block2, model.block3):
        x = block(x)
        assert (x.amax((0, 2, 3)) > 0.05).float().mean() > 0.85
        assert (x[:, :16].amax((0, 2, 3)) > 0.05).sum() >= 14  # the 4×4 grid of a lesson


def test_weights_are_small_and_fit():
    assert samples.WEIGHTS.stat().st_size < 400_000
    model = samples.digit_cnn()
    assert [name for name, _ in model.named_modules()] == [
        *("", "block1", "block1.conv", "block1.relu"),
        *("block2", "block2.conv", "block2.relu", "block2.pool"),
        *("block3", "block3.conv", "block3.relu", "block3.pool"),
        *("head", "head.flatten", "head.linear"),
    ]
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
        "block1.conv.weight": (16, 1, 5, 5),
        "block1.conv.bias": (16,),
        "block2.conv.weight": (24, 16, 3, 3),
        "block2.conv.bias": (24,),
        "block3.conv.weight": (32, 24, 3, 3),
        "block3.conv.bias": (32,),
        "head.linear.weight": (10, 1568),
        "head.linear.bias": (10,),
    }
    shapes, x = [], samples.digit()
    for block in model.children():
        x = block(x)
        shapes.append(tuple(x.shape))
    assert shapes == [(1, 16, 28, 28), (1, 24, 14, 14), (1, 32, 7, 7), (1, 10)]
    assert torch.equal(x, model(samples.digit()))
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))


@pytest.mark.parametrize("trained", [True, False])
def test_every_call_gives_a_model_of_its_own_and_leaves_the_random_numbers_alone(trained):
    torch.manual_seed(123)
    state = torch.get_rng_state()
    model, other = samples.digit_cnn(trained), samples.digit_cnn(trained)
    samples.digits()
    assert torch.equal(torch.get_rng_state(), state)
    expected = other.block1.conv.weight.clone()
    assert torch.equal(model.block1.conv.weight, expected)
    with torch.no_grad():
        model.block1.conv.weight.zero_()
    assert torch.equal(other.block1.conv.weight, expected)
    assert torch.equal(samples.digit_cnn(trained).block1.conv.weight, expected)


def test_training_is_repeatable_and_learns(trainer, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "EPOCHS", 2)
    images, labels = (part[:96] for part in samples.digits("train"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, second = trainer.train(images, labels), trainer.train(images, labels)
    finally:
        torch.set_num_threads(threads)
    start = samples.digit_cnn(trained=False).state_dict()
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
        assert not torch.equal(value, start[name]), name
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[:2] == losses[2:]
    assert losses[1] < losses[0]


def test_shifted_moves_every_picture_whole(trainer):
    point = torch.zeros(200, 1, 28, 28)
    point[:, 0, 14, 10] = 1
    moved = trainer.shift(point, torch.Generator().manual_seed(0))
    assert moved.shape == point.shape
    places = moved.nonzero()
    assert places[:, 0].tolist() == list(range(200))
    assert places[:, 2].unique().tolist() == list(range(11, 18))
    assert places[:, 3].unique().tolist() == list(range(7, 14))


# ---- imports


@pytest.mark.parametrize(
    ("module", "package", "call"),
    [
        ("safetensors.torch", "safetensors", "digits()"),
        ("safetensors.torch", "safetensors", "digit_cnn()"),
    ],
)
def test_a_missing_package_is_named(module, package, call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    handwritten._load.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}: pip install {package}"):
        eval(f"samples.{call}")
