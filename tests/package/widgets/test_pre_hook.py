"""The playground edits through a real pre-hook, shows what came of it, and leaves the model alone."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch
import traitlets
from PIL import Image
from torch import nn

import hookscope
from hookscope import samples
from hookscope.pictures.palette import COOLWARM, LEVELS, PAPER, VIRIDIS, palette
from hookscope.widgets.pre_hook import PreHookPlayground
from hookscope.widgets.pre_hook_view import poster

SETTINGS = {
    "nothing": {},
    "brightness": {"brightness": 0.3},
    "darker": {"brightness": -0.1},
    "contrast": {"contrast": 1.7},
    "inverted": {"contrast": -1.0},
    "noise": {"noise": 0.2, "seed": 3},
    "square": {"square": 9, "row": 4, "column": 20},
    "shift": {"shift_rows": -3, "shift_columns": 5},
    "all": {
        "brightness": 0.1, "contrast": 0.5, "noise": 0.05, "seed": 1, "square": 6, "row": 2, "column": 1,
        "shift_rows": 2, "shift_columns": -27,
    },
}  # fmt: skip


class RGB(nn.Module):
    """Three channels, with everything that eval mode turns off."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        x = self.drop(self.act(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def digit():
    return PreHookPlayground(samples.digit_cnn(), samples.digit(5))


def rgb(height: int = 12, width: int = 10, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PreHookPlayground(RGB(), torch.rand(3, height, width), **options)


def put(playground, settings):
    for name, value in settings.items():
        setattr(playground, name, value)


def pixels(png: bytes):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_without_an_edit_nothing_changes(digit) -> None:
    model, image = samples.digit_cnn(), samples.digit(5)
    with torch.no_grad():
        expected = model(image).softmax(1)[0]
    assert torch.equal(digit.edited, image)
    assert torch.equal(digit.probabilities, expected)
    assert torch.equal(digit.original_probabilities, expected)
    assert "no difference" in digit.notes["difference"]


def test_each_edit_does_what_it_says(digit) -> None:
    x = samples.digit(5)
    digit.brightness = 0.25
    assert torch.equal(digit.edited, x + 0.25)
    digit.brightness = -0.25
    assert torch.equal(digit.edited, x - 0.25)
    digit.reset()
    digit.contrast = 2.0
    torch.testing.assert_close(digit.edited, 2 * x - x.mean())
    digit.reset()
    digit.noise, digit.seed = 0.5, 7
    noise = digit.edited - x
    torch.testing.assert_close(noise, 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(7)))
    digit.seed = 8
    assert not torch.equal(digit.edited - x, noise)
    digit.seed = 7
    assert torch.equal(digit.edited - x, noise)
    digit.reset()
    digit.square, digit.row, digit.column = 5, 10, 12
    hidden = digit.edited != x
    assert hidden.any()
    assert not hidden[..., :10, :].any()
    assert not hidden[..., 15:, :].any()
    assert not digit.edited[..., 10:15, 12:17].any()
    digit.reset()
    digit.shift_rows, digit.shift_columns = 2, -3
    assert torch.equal(digit.edited[..., 2:, :-3], x[..., :-2, 3:])
    assert not digit.edited[..., :2, :].any()
    assert not digit.edited[..., -3:].any()
    digit.reset()
    assert torch.equal(digit.edited, x)


@pytest.mark.parametrize("layer", ["", "block2.conv", "block3.pool"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_code_gives_the_same_to_the_bit(settings, layer) -> None:
    model, image = samples.digit_cnn(), samples.digit(5)
    playground = PreHookPlayground(model, image, layer)
    limit = playground.height - 1
    put(playground, {k: v if isinstance(v, float) else max(-limit, min(v, limit)) for k, v in settings.items()})
    given = image.clone()
    names = {"model": model, "image": image}
    exec(playground.code, names)
    assert torch.equal(names["probabilities"], playground.probabilities)
    assert torch.equal(image, given)
    assert len(hookscope.census(model)) == 0
    if settings:
        assert not torch.equal(playground.probabilities, playground.original_probabilities)


@pytest.mark.parametrize("batched", [True, False])
def test_the_code_fits_the_image_and_a_model_in_training_mode(batched) -> None:
    torch.manual_seed(0)
    model, image = RGB(), torch.rand(3, 9, 9)
    image = image[None] if batched else image
    playground = PreHookPlayground(model, image, "act")
    put(playground, {"noise": 0.3, "square": 4})
    names = {"model": model, "image": image}
    exec(playground.code, names)
    assert torch.equal(names["probabilities"], playground.probabilities)
    assert playground.edited[..., :4, :4].count_nonzero() == 0, "the in-place layer has not changed what is kept"


def test_the_model_and_the_random_numbers_are_left_alone() -> None:
    model = RGB()
    model.norm.eval()
    model.register_buffer("calls", torch.zeros(()))
    model.register_buffer("total", torch.zeros(()))

    def disturb(module, args):
        module.calls += 1
        module.total = module.total + 1
        torch.rand(3), np.random.rand(), random.random()

    model.register_forward_pre_hook(disturb)
    buffers = dict(model.named_buffers())
    model.head.weight.grad = torch.ones_like(model.head.weight)
    flags = {name: module.training for name, module in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    image = torch.rand(1, 3, 8, 8)
    given, hooks = image.clone(), repr(hookscope.census(model))
    random_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    playground = PreHookPlayground(model, image, "norm")
    put(playground, SETTINGS["all"] | {"shift_columns": 2})
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(value is buffers[name] for name, value in model.named_buffers())
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "head.weight")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert random.getstate() == python_state
    assert torch.equal(image, given)
    assert repr(hookscope.census(model)) == hooks
    assert not playground.edited.requires_grad


def test_a_model_that_writes_into_its_input_starts_anew_each_time() -> None:
    class Writing(nn.Module):
        def forward(self, x):
            return x.add_(1).flatten(1)

    image = torch.zeros(1, 1, 2, 2)
    playground = PreHookPlayground(Writing(), image)
    playground.brightness = 0.5
    assert playground.edited.unique().tolist() == [0.5]
    assert image.count_nonzero() == 0


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        if self.relu(x).max() > 2:
            raise ArithmeticError("too bright for me\nand more")
        return x.flatten(1)


def test_a_model_that_raises_shows_a_sentence_and_the_hook_is_gone() -> None:
    model = Fragile()
    playground = PreHookPlayground(model, torch.ones(1, 1, 2, 2), "relu")
    model.train()
    playground.brightness = 5.0
    assert playground.problem == "ArithmeticError: too bright for me"
    assert len(hookscope.census(model)) == 0
    assert model.training
    assert model.relu.training
    assert playground.bars == []
    assert playground.edited_png == playground.png == b""
    assert "+ 5.0" in playground.code, "the hook that failed can be read"
    for name in ("edited", "probabilities", "original_probabilities"):
        with pytest.raises(RuntimeError, match=r"too bright for me.*reset"):
            getattr(playground, name)
    playground.set_state({"row": 1, "column": 1})  # two changes at once: the second must not wipe the sentence
    assert "too bright" in playground.problem
    playground.reset()
    assert playground.problem == ""
    assert playground.edited.unique().tolist() == [1]
    with pytest.raises(ArithmeticError, match="too bright"):
        PreHookPlayground(model, torch.full((1, 1, 2, 2), 3.0))
    assert len(hookscope.census(model)) == 0


def test_an_interrupt_takes_the_hook_off() -> None:
    class Interrupted(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        PreHookPlayground(model, torch.ones(1, 2, 2))
    assert len(hookscope.census(model)) == 0
    assert model.training


def test_changes_that_come_together_are_one_run(digit) -> None:
    calls = []
    with digit._model.register_forward_hook(lambda *_: calls.append(1)):
        digit.set_state({"square": 4, "row": 3, "column": 9})
        assert len(calls) == 2, "without and with the hook"
        digit.reset()
        assert len(calls) == 4
        digit.reset()
        assert len(calls) == 4


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
    assert f"{outside} of 784 values lie outside" in digit.notes["edited"]
    digit.reset()
    assert (pixels(digit.difference_png) == coolwarm[LEVELS // 2]).all()


def test_nan_and_inf_have_their_own_colours_and_no_class() -> None:
    image = samples.digit(5)
    image[0, 0, 0, 0], image[0, 0, 0, 1] = torch.nan, torch.inf
    playground = PreHookPlayground(samples.digit_cnn(), image)
    assert playground.notes["original"].endswith("NaN black, +inf pink")
    assert (pixels(playground.original_png)[0, 0] == 0).all()
    assert "no class, the probabilities are NaN" in playground.answer
    assert playground.bars[0] == ["0", None, None]
    assert "NaN" in repr(playground)
    assert playground.png


def test_colours_and_feature_maps() -> None:
    playground = rgb()
    assert playground.in_colour
    assert playground.notes["original"].startswith("red, green and blue from 0")
    expected = (playground.edited[0].permute(1, 2, 0) * 255).round().byte().numpy()
    assert (pixels(playground.original_png) == expected).all()
    deeper = rgb(layer="norm")
    assert not deeper.in_colour
    assert deeper.edited.shape == (1, 5, 12, 10)
    assert deeper.notes["original"].startswith("mean of 5 channels, ")
    assert deeper.title == "RGB: what the pre-hook of norm hands on"
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
    assert playground.answer == "original: f (63.4 %) · edited: a (63.4 %) · the hook has changed the answer"
    everything = PreHookPlayground(Fixed(), torch.ones(1, 2, 2), classes=names, top=99)
    assert [bar[0] for bar in everything.bars] == names


def test_text_and_picture_before_anything_runs(digit) -> None:
    put(digit, {"square": 9, "row": 4, "column": 9, "brightness": 0.2})
    lines = repr(digit).splitlines()
    assert lines[:3] == [
        "DigitCNN: what the pre-hook hands on",
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
    drawn = poster({"original": blank, "edited": blank}, [("five", 0.0, 0.0), ("six", 1.0, None)])
    paper = palette(VIRIDIS)[PAPER]
    five, six = drawn[-35:-23], drawn[-19:-13]
    assert (five[:, 140:] == paper).all(), "no text stands beside a bar"
    assert (six[:, 140:-11] != paper).any(axis=(0, 2)).all(), "a full bar takes the room there is"
    assert (six[:, -11:] == paper).all()


def test_what_cannot_be_shown_is_said_at_once() -> None:
    model, image = samples.digit_cnn(), samples.digit(5)
    raises(TypeError, "type ndarray: pass a tensor", model, np.zeros((1, 28, 28)))
    raises(TypeError, r"torch.uint8.*image.float\(\) / 255", model, (image * 255).byte())
    raises(ValueError, r"2 pictures: pass one, image\[:1\]", model, torch.zeros(2, 1, 28, 28))
    raises(ValueError, r"\(28, 28\).*\(C, H, W\)", model, image[0, 0])
    raises(ValueError, r"channels come last.*permute\(2, 0, 1\)", model, torch.zeros(28, 28, 3))
    raises(ValueError, "2 channels: 1 or 3", model, torch.zeros(2, 28, 28))
    raises(hookscope.LayerNotFoundError, "did you mean 'block2'", model, image, "block22")
    raises(ValueError, "picks 3 layers, block1.conv", model, image, "*.conv")
    raises(TypeError, "'head.linear' gets the shape .*choose one before it", model, image, "head.linear")
    raises(ValueError, "3 names in classes, but the model returns 10 scores", model, image, classes="abc")
    raises(ValueError, "top=0", model, image, top=0)
    raises(TypeError, r"returns a tensor \(1, 16, 28, 28\)", model.block1, image)
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
    raises(TypeError, "'by_name' gets its input by keyword", model, image, "by_name")
    raises(TypeError, "'ints' gets a tensor of torch.int64", model, image, "ints")
    raises(TypeError, "'pair' gets tuple", model, image, "pair")


@pytest.mark.parametrize(
    ("name", "value", "say"),
    [
        ("square", 29, "square=29 does not fit: give 0 to 28"),
        ("row", 28, "row=28 does not fit: give 0 to 27.*28 rows and 28 columns"),
        ("column", -1, "column=-1 does not fit: give 0 to 27"),
        ("shift_rows", -28, "give -27 to 27"),
        ("noise", -0.1, "noise=-0.1 does not fit: give 0 or more"),
        ("seed", -1, "seed=-1 does not fit: give 0 to"),
        ("brightness", float("nan"), "brightness=nan does not fit: give a finite number"),
        ("brightness", "much", "brightness"),
        ("square", 2.5, "square"),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(digit, name, value, say) -> None:
    before = getattr(digit, name)
    with pytest.raises(traitlets.TraitError, match=say):
        setattr(digit, name, value)
    assert getattr(digit, name) == before
    assert torch.equal(digit.probabilities, digit.original_probabilities)


def test_a_layer_that_is_called_twice_is_edited_twice() -> None:
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.relu(x)).flatten(1)

    model, image = Twice(), torch.tensor([[[0.0, 1.0]]])
    playground = PreHookPlayground(model, image, "relu")
    playground.brightness = 1.0
    assert playground.edited.flatten().tolist() == [1, 2], "of the first call"
    assert torch.equal(playground.probabilities, torch.tensor([2.0, 3.0]).softmax(0))
    names = {"model": model, "image": image}
    exec(playground.code, names)
    assert torch.equal(names["probabilities"], playground.probabilities)


def test_what_the_model_has_learned_meanwhile_is_seen(digit) -> None:
    before = digit.original_probabilities
    digit._model.head.linear.weight.data.zero_()
    digit.brightness = 0.1
    assert not torch.equal(digit.original_probabilities, before)
