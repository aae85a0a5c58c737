"""The filter that slides, against a hook written by hand and a convolution added up number by number."""

from __future__ import annotations

import base64
import re
from array import array

import pytest
import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope_course.figures import SlidingFilter

NET, FIVE = samples.digit_cnn(), samples.digit(5)


def output_of(layer: nn.Module) -> Tensor:
    """Return what the layer returns for the 5, kept by a hook."""
    kept = []
    with (
        layer.register_forward_hook(lambda module, args, output: kept.append(output.detach().clone())),
        torch.no_grad(),
    ):
        NET(FIVE)
    return kept[0][0]


@pytest.mark.parametrize("channel", range(16))
def test_every_sum_is_what_the_layer_returned(channel: int) -> None:
    figure = SlidingFilter(NET, FIVE, channel=channel)
    maps = output_of(NET.block1.conv)
    assert torch.equal(figure.sums, maps[channel])
    sent = figure._run
    assert sent["channel"] == channel
    assert sent["values"] == pytest.approx(maps[channel].flatten().tolist(), abs=1e-4)
    assert divmod(int(maps[channel].argmax()), 28) == figure.highest == tuple(sent["best"])


@pytest.mark.parametrize("channel", [3, 4, 10, 13])
@pytest.mark.parametrize("place", [(0, 0), (27, 27), (4, 16), (13, 9), (0, 14)])
def test_the_products_at_a_place(channel: int, place: tuple[int, int]) -> None:
    figure = SlidingFilter(NET, FIVE, channel=channel)
    conv, (row, column) = NET.block1.conv, place
    by_hand = []
    for down in range(-2, 3):
        for across in range(-2, 3):
            y, x = row + down, column + across
            ink = FIVE[0, 0, y, x].item() if 0 <= y < 28 and 0 <= x < 28 else 0.0
            by_hand.append(ink * conv.weight[channel, 0, down + 2, across + 2].item())
    at = 28 * row + column
    assert figure.products[at].flatten().tolist() == pytest.approx(by_hand, abs=1e-6)
    sent = array("b", base64.b64decode(figure._run["products"]))[25 * at : 25 * at + 25]
    assert [value / 100 for value in sent] == pytest.approx(by_hand, abs=5.1e-3)
    assert figure._run["values"][at] - figure._run["bias"] == pytest.approx(sum(by_hand), abs=6e-4)
    value = sum(by_hand) + conv.bias[channel].item()
    assert figure.sums[row, column].item() == pytest.approx(value, abs=1e-5)


def test_products_that_are_larger_travel_in_more_bits() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    digit = torch.full((1, 1, 4, 4), 5.0)
    figure = SlidingFilter(net, digit, "0")
    sent = array("h", base64.b64decode(figure._run["products"]))
    assert figure._run["bits"] == 16
    assert [value / 100 for value in sent] == pytest.approx(figure.products.flatten().tolist(), abs=5.1e-3)


def test_the_colors_are_red_above_zero_and_blue_below() -> None:
    figure = SlidingFilter(NET, FIVE, channel=10)
    colors = base64.b64decode(figure._run["colors"])
    for at, value in enumerate(figure.sums.flatten().tolist()):
        red, _, blue = colors[3 * at : 3 * at + 3]
        if abs(value) > 0.05:
            assert (red > blue) == (value > 0)


def test_a_guess_and_what_became_of_it() -> None:
    figure = SlidingFilter(NET, FIVE, channel=10, guess=True)
    assert figure.sentence.startswith("Where will the map have its highest value?")
    figure.row, figure.column = figure.answer = [20, 5]
    assert ", and the bias, " in figure.sentence
    figure.filled = True
    row, column = figure.highest
    said = f"The highest value is {figure.sums.max():.2f}, at row {row}, column {column}. Where you clicked, it is "
    assert figure.sentence == said + f"{figure.sums[20, 5]:.2f}.".replace("-", "−")
    figure.channel = 3  # another filter, another question
    assert (figure.answer, figure.filled) == ([], False)
    assert figure.sentence.startswith("Where will the map have its highest value?")


def test_the_verdict_compares_the_pixel_of_the_guess_with_the_highest() -> None:
    figure, maps = SlidingFilter(NET, FIVE, channel=10, guess=True), output_of(NET.block1.conv)
    assert figure.verdict == ""
    figure.answer = [5, 13]
    assert figure.verdict == f"Your pixel: {maps[10, 5, 13]:.3f}. The highest: {maps[10].max():.3f}."
    figure.row = 20  # the filter moves on, the guess stays
    assert figure.verdict.startswith(f"Your pixel: {maps[10, 5, 13]:.3f}.")
    figure.answer = list(divmod(int(maps[10].argmax()), 28))
    assert figure.verdict == f"Your pixel: {maps[10].max():.3f}, the highest!"
    figure.channel = 3
    assert figure.verdict == ""


def test_the_sum_in_the_sentence_is_right_to_the_last_digit() -> None:
    figure = SlidingFilter(samples.digit_cnn(), samples.digit(5), channel=0)
    for channel in range(16):
        figure.channel = channel
        for place in range(0, 784, 17):
            figure.row, figure.column = divmod(place, 28)
            total, bias, value = (
                round(1000 * float(number.replace("−", "-"))) for number in re.findall(r"−?\d+\.\d{3}", figure.sentence)
            )
            assert total + bias == value
            assert total / 1000 == pytest.approx(figure.products[place].sum().item(), abs=1.1e-3)
