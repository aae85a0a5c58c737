"""The square that fools and the map of occlusion, against pre-hooks written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course.figures import FoolingSquare
from hookscope_course.figures.occlusion import occlusion_map

NET, NINE = samples.digit_cnn(), samples.digit(9)


def by_hand(row: int, column: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the covered digit and the probabilities."""
    covered = NINE.clone()
    covered[..., row : row + size, column : column + size] = 0

    def hook(module: nn.Module, args: object) -> Tensor:
        return covered

    with NET.register_forward_pre_hook(hook), torch.no_grad():
        return covered, NET(torch.zeros_like(NINE)).softmax(1)[0]


@pytest.mark.parametrize(("row", "column", "size"), [(4, 13, 5), (6, 12, 7), (0, 0, 28), (20, 3, 1), (0, 0, 0)])
def test_covered_digit_and_scores(row: int, column: int, size: int) -> None:
    figure = FoolingSquare(NET, NINE)
    figure.size, figure.row, figure.column = size, row, column
    covered, probabilities = by_hand(row, column, size)
    assert torch.equal(figure.received, covered)
    torch.testing.assert_close(figure.probabilities, probabilities)
    assert figure._shown["read"] == int(probabilities.argmax())
    names = {"model": NET, "digit": NINE}
    exec(figure.code, names)
    torch.testing.assert_close(names["scores"].detach().softmax(1)[0], probabilities)
    assert torch.equal(NINE, samples.digit(9))
    assert len(hookscope.census(NET).rows) == 0


@pytest.mark.slow
def test_a_4_from_a_9_with_a_5_by_5_square_in_one_place() -> None:
    reads = {
        (size, row, column)
        for size in range(1, 6)
        for row in range(29 - size)
        for column in range(29 - size)
        if int(by_hand(row, column, size)[1].argmax()) == 4
    }
    assert reads == {(5, 4, 13)}
    figure = FoolingSquare(NET, NINE)
    figure.hinted = True
    assert figure._shown["hint"] == "It can be as small as 5 × 5, in only one place of 576."


def test_tries_and_the_smallest_square_are_counted() -> None:
    figure = FoolingSquare(NET, NINE)
    assert figure._score() == "Squares tried: 0. Smallest that gives a 4: none yet."
    with figure.hold_trait_notifications():
        figure.size, figure.row, figure.column = 5, 4, 13
    assert figure._score() == "Squares tried: 1. Smallest that gives a 4: 5 × 5, 25 pixels."
    figure.size = 0
    figure.size = 5  # the same square once more
    assert figure.tries == 1
    figure.goal = 5
    assert figure._score() == "Squares tried: 1. Smallest that gives a 5: none yet."
    with figure.hold_trait_notifications():
        figure.size, figure.row, figure.column = 3, 7, 15
    assert figure._score() == "Squares tried: 2. Smallest that gives a 5: 3 × 3, 9 pixels."


def test_the_square_stays_inside() -> None:
    figure = FoolingSquare(NET, NINE)
    figure.size, figure.row, figure.column = 5, 27, 27
    assert (figure.row, figure.column) == (23, 23)
    figure.size = 20
    assert (figure.row, figure.column) == (8, 8)


def test_the_map_holds_what_is_read_in_each_place() -> None:
    picture = occlusion_map(NET, NINE)
    figure = FoolingSquare(NET, NINE)
    figure.mapped = True
    assert len(picture.rows) == len(figure._map["cells"]) == 64
    whole = float(by_hand(0, 0, 0)[1][9])
    for row, cell in zip(picture.rows, figure._map["cells"], strict=True):
        probabilities = by_hand(cell["row"], cell["column"], 7)[1]
        assert cell["reads"] == row["reads"] == int(probabilities.argmax())
        assert cell["lost"] == pytest.approx(max(0, whole - float(probabilities[9])), abs=1e-6)
    assert picture.caption.endswith("10 times the model reads another digit than 9")
    figure.size = 5
    assert figure._map["size"] == 5
