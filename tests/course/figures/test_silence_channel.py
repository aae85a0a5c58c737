"""A channel that is scaled, against a hook written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course.figures import SilenceChannel

NET = samples.digit_cnn()


def by_hand(digit: Tensor, channel: int, factor: float) -> tuple[Tensor, Tensor]:
    """Return the output of block1 with the channel scaled, and the probabilities."""
    kept = []

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, channel] = factor * output[:, channel]
        kept.append(output)
        return output

    with NET.block1.register_forward_hook(hook), torch.no_grad():
        probabilities = NET(digit).softmax(1)[0]
    return kept[0], probabilities


@pytest.mark.parametrize(("channel", "factor"), [(0, 0.0), (6, 0.0), (6, 0.5), (15, 1.7), (3, 1.0), (15, 2.0)])
def test_output_scores_and_reading(channel: int, factor: float) -> None:
    figure = SilenceChannel(NET, samples.digit(1))
    figure.channel, figure.factor = channel, factor
    output, probabilities = by_hand(samples.digit(1), channel, factor)
    torch.testing.assert_close(figure.output, output)
    torch.testing.assert_close(figure.probabilities, probabilities)
    assert [row[1] for row in figure._shown["rows"]] == pytest.approx(probabilities.tolist())
    assert figure._shown["read"] == int(probabilities.argmax())


def test_the_code_does_what_is_shown() -> None:
    figure = SilenceChannel(NET, samples.digit(1))
    figure.channel, figure.factor = 6, 0.5
    names = {"model": NET, "digit": samples.digit(1)}
    exec(figure.code, names)
    torch.testing.assert_close(names["scores"].softmax(1)[0], figure.probabilities)
    assert len(hookscope.census(NET).rows) == 0


def test_three_channels_mend_the_1_that_is_read_as_an_8() -> None:
    figure = SilenceChannel(NET, samples.digit(1))
    assert figure.sentence == "Nothing is changed: the model reads an 8 (65.0 %)."
    figure.factor = 0
    for channel in range(16):
        figure.channel = channel
    assert [channel for channel, read in figure.tried.items() if read == 1] == ["4", "6", "10"]
    figure.channel = 6
    assert figure.sentence == "With channel 6 of block1 silenced, the model reads a 1 (71.1 %) instead of an 8."


def test_one_channel_turns_a_good_1_into_an_8() -> None:
    figure = SilenceChannel(NET, samples.digit(1, 7))
    assert figure.sentence == "Nothing is changed: the model reads a 1 (98.3 %)."
    figure.factor = 0
    for channel in range(16):
        figure.channel = channel
    assert [channel for channel, read in figure.tried.items() if read != 1] == ["15"]
    assert figure.sentence == "With channel 15 of block1 silenced, the model reads an 8 (83.7 %) instead of a 1."


def test_no_single_channel_turns_the_5() -> None:
    figure = SilenceChannel(NET, samples.digit(5))
    figure.factor = 0
    for channel in range(16):
        figure.channel = channel
    assert set(figure.tried.values()) == {5}
    assert "the model still reads a 5" in figure.sentence


def test_a_model_that_raises_gives_a_sentence_and_the_figure_goes_on() -> None:
    net = samples.digit_cnn()
    figure = SilenceChannel(net, samples.digit(1))
    with net.block2.register_forward_pre_hook(lambda *_: 1 / 0):
        figure.factor = 0
        assert figure.problem == "ZeroDivisionError: division by zero"
    figure.channel = 6
    assert figure.problem == ""
    assert figure._shown["read"] == 1
