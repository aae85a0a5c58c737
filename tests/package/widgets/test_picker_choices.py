"""Which choices a layer picker takes, and that wrong ones are refused in words and change nothing."""

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import LayerNotFoundError, samples
from hookscope.widgets import LayerPicker
from tests.package.widgets.picker_models import make_convs, make_digit_picker, make_images
from tests.shared.awkward_models import MODELS, Do


def test_it_begins_with_the_first_layer_that_has_maps() -> None:
    picker = make_digit_picker()
    assert picker.layer == "block1.conv"
    assert repr(picker) == ("LayerPicker DigitCNN: block1.conv (Conv2d), activation (1, 16, 28, 28), all 16 channels")
    assert "block1.conv (Conv2d)" in picker.alt


def test_every_layer_of_a_model_can_be_picked_and_is_what_capture_gives() -> None:
    model, x = samples.digit_cnn(), samples.digit(3)
    with torch.no_grad(), hookscope.capture(model.eval(), lambda name, module: True) as seen:
        model(x)
    picker = LayerPicker(model, x)
    pictures = set()
    for name in seen:
        picker.layer = name
        assert torch.equal(picker.activation, seen[name].output)
        assert not picker.problem
        pictures.add(picker.png)
    assert len(pictures) > len(seen) / 2


@pytest.mark.parametrize("name", [name for name in list(MODELS)[:16] if name not in ("faster r-cnn", "densenet121")])
@pytest.mark.filterwarnings("ignore:hookscope. hooks switch off")
def test_awkward_models_can_be_walked_through(name: str) -> None:
    model, args, kwargs = MODELS[name]()
    picker = LayerPicker(model, *args, kwargs=kwargs)
    for row in picker.tree:
        if row["why"]:
            with pytest.raises(LayerNotFoundError, match=r"was not called|cannot be hooked"):
                picker.layer = row["name"]
            continue
        picker.layer = row["name"]
        for call in range(1, picker.calls + 1):
            picker.call = call
            for part in picker.parts:
                picker.part = part
                assert not picker.problem, (row["name"], picker.problem)
    assert len(hookscope.census(model)) == 0


@pytest.mark.parametrize("named", [{}, {"layer": ""}])
def test_choices_are_taken_when_the_first_layer_is_the_model_itself(named: dict[str, str]) -> None:
    lstm, x = nn.LSTM(4, 5, num_layers=2, batch_first=True), torch.randn(3, 7, 4)
    picker = LayerPicker(lstm, x, **named, sample=1, part="[1][0]")
    assert (picker.layer, picker.part, picker.sample, picker.activation.shape) == ("", "[1][0]", 1, (2, 3, 5))
    assert not picker.problem
    conv = LayerPicker(nn.Conv2d(1, 3, 3), torch.randn(4, 1, 8, 8), **named, sample=3, channel=2)
    assert (conv.sample, conv.channel) == (3, 2)
    assert conv.large
    with pytest.raises(ValueError, match="sample=4: choose 0 to 3"):
        LayerPicker(nn.Conv2d(1, 3, 3), torch.randn(4, 1, 8, 8), **named, sample=4)


def test_choices_are_taken_in_any_order() -> None:
    model = make_convs(40)
    model(make_images())
    picker = LayerPicker(
        model, make_images(), channel=33, page=2, per_page=16, target=3, sample=1, show="gradient", layer="2"
    )
    assert (picker.layer, picker.channel, picker.page, picker.channels) == ("2", 33, 2, list(range(32, 40)))


def test_of_several_samples_the_one_that_is_shown_is_named() -> None:
    picker = LayerPicker(make_convs()[:1], make_images(), layer="0", sample=2)
    assert repr(picker) == (
        "LayerPicker Sequential: 0 (Conv2d), activation (4, 8, 8, 8), sample 2 of 0 to 3, all 8 channels"
    )
    assert "sample 2" in picker.caption
    assert "sample" not in repr(make_digit_picker())


def test_a_pass_that_would_keep_too_much_is_refused_with_the_way_out() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), make_images()
    words = "outputs of all layers need more than max_bytes=9,000. Pass a smaller batch, .* raise max_bytes"
    with pytest.raises(MemoryError, match=words):
        LayerPicker(model, x, max_bytes=9_000)
    assert len(hookscope.census(model)) == 0
    assert LayerPicker(model, x[:1], max_bytes=9_000).activation.shape == (1, 8, 8, 8)
    assert not LayerPicker(model, x, max_bytes=None).problem
    # A pass with gradients, and one that has grown since: the picker says so, and stays as it was.
    picker = LayerPicker(model, x[:1], max_bytes=9_000)
    before = picker.activation
    model.append(nn.Conv2d(8, 60, 3))
    picker.run()
    assert "MemoryError: the outputs of all layers need more" in picker.problem
    assert len(hookscope.census(model)) == 0
    assert torch.equal(picker.activation, before)


def test_a_memory_error_of_the_model_s_own_is_not_explained_away() -> None:
    def full(x: Tensor) -> Tensor:
        raise MemoryError("the disk is full")

    with pytest.raises(MemoryError, match="the disk is full"):
        LayerPicker(Do(full), torch.zeros(1))


def test_a_message_from_the_page_runs_again() -> None:
    model = make_convs().eval()
    model(make_images())
    picker = LayerPicker(model, make_images(), layer="0")
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    picker.set_state({"_again": 1, "_request": 1})
    assert not picker.activation.any()
