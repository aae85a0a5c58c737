"""The pre-hook playground edits through a real pre-hook, which comes off, and its code does the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import traitlets
from torch import nn

import hookscope
from hookscope import samples
from hookscope_course.widgets.pre_hook import PreHookPlayground
from tests.shared.edited import RGB, put

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


@pytest.mark.parametrize(
    ("name", "value", "say"),
    [
        ("square", 29, "square=29 is not valid.*Pass 0 to 28"),
        ("row", 28, "row=28 is not valid.*28 rows and 28 columns. Pass 0 to 27"),
        ("column", -1, "column=-1 is not valid.*Pass 0 to 27"),
        ("shift_rows", -28, "Pass -27 to 27"),
        ("noise", -0.1, "noise=-0.1 is not valid. Pass 0 or more"),
        ("seed", -1, "seed=-1 is not valid. Pass 0 to"),
        ("brightness", float("nan"), "brightness=nan is not valid. Pass a finite number"),
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
