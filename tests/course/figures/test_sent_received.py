"""What you sent and what a layer received, against hooks written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookscope import samples
from hookscope_course.figures import SentReceived
from hookscope_course.figures.sent_received.promises import SwappedReader

FIVE = samples.digit(5)


@pytest.fixture
def reader() -> SwappedReader:
    """The colleague's program of chapter 00."""
    return SwappedReader()


def by_hand(layer: nn.Module, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the layer receives, and the probabilities."""
    got = []
    with layer.register_forward_pre_hook(lambda _, args: got.append(args[0].clone())), torch.no_grad():
        return (model(FIVE).softmax(1)[0], *got)[::-1]


def test_block1_of_the_reader_receives_the_negative(reader: SwappedReader) -> None:
    figure = SentReceived(reader, FIVE)
    received, probabilities = by_hand(reader.network.block1, reader)
    assert torch.equal(figure.sent, FIVE)
    assert torch.equal(figure.received, received)
    assert not torch.equal(received, FIVE)
    best = probabilities.topk(2)
    assert figure._shown["received"]["best"] == [
        [str(int(n)), pytest.approx(float(p))] for p, n in zip(*best, strict=True)
    ]
    assert repr(figure).count("each value is 1 minus yours. From this image, the model reads a 0 (99.5 %)") == 1


def test_from_your_image_the_same_network_reads_a_5(reader: SwappedReader) -> None:
    figure = SentReceived(reader, FIVE)
    with torch.no_grad():
        best = reader.network(FIVE).softmax(1)[0].topk(2)
    assert figure._shown["sent"]["best"] == [[str(int(n)), pytest.approx(float(p))] for p, n in zip(*best, strict=True)]
    assert figure._shown["sent"]["best"][0][0] == "5"
    assert "From your image, it would read a 5" in figure.alt


def test_the_door_receives_what_you_sent_and_gives_the_same_wrong_answer(reader: SwappedReader) -> None:
    figure = SentReceived(reader, FIVE)
    figure.place = "door"
    assert torch.equal(figure.received, FIVE)
    assert figure._shown["sent"]["src"] == figure._shown["received"]["src"]
    assert figure._shown["sent"]["best"] == figure._shown["received"]["best"]
    said = "SwappedReader received exactly what you sent, and the model reads a 0 (99.5 %)."
    assert figure._shown["sentence"] == said


def test_it_asks_only_where_the_two_are_read_differently(reader: SwappedReader) -> None:
    figure = SentReceived(reader, FIVE)
    assert figure.picked == ""
    assert figure._shown["ask"] == "Which image must block1 receive, so that the model reads a 5? Click it."
    figure.place = "door"
    assert figure._shown["ask"] == ""
    assert SentReceived(reader.network, FIVE)._shown["ask"] == ""


def test_another_change_is_counted() -> None:
    class Brighter(SwappedReader):
        def forward(self, scan: torch.Tensor) -> torch.Tensor:
            scan = scan.clone()
            scan[..., :2, :3] = 0.5
            return self.network(scan)

    assert "block1 received another image: 6 of 784 values differ" in SentReceived(Brighter(), FIVE).alt
