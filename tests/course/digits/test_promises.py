"""What each figure promises a reader without a kernel, and when its cell is run again."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Callable

import ipywidgets
import pytest

from hookscope import samples
from hookscope.widgets import base
from hookscope_course import digits


def by_layer() -> digits.DigitsByLayer:
    train, test = samples.digits("train"), samples.digits("test")
    known = train.images[:360], train.labels[:360]
    return digits.DigitsByLayer({"trained": samples.digit_cnn()}, lambda output: output.mean((2, 3)), known, test)


FIGURES: dict[str, Callable[[], base.HookWidget]] = {
    "DigitsByLayer": by_layer,
    "SentReceived": lambda: digits.SentReceived(samples.digit_cnn(), samples.digit(5)),
    "FoolingSquare": lambda: digits.FoolingSquare(samples.digit_cnn(), samples.digit(9)),
    "SlidingFilter": lambda: digits.SlidingFilter(samples.digit_cnn(), samples.digit(5), channel=10, guess=True),
    "SilenceChannel": lambda: digits.SilenceChannel(samples.digit_cnn(), samples.digit(1)),
    "WhereItLooks": lambda: digits.WhereItLooks(samples.digit_cnn(), samples.digit(1), "block3", most=0.04),
}


def test_these_are_all_figures() -> None:
    assert {*FIGURES, "gradient_sizes", "occlusion_map"} == set(digits.__all__) == set(digits._FILES)
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        digits.Other  # noqa: B018


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_with_words_and_numbers_stands_in_for_it(name: str) -> None:
    one, two = FIGURES[name](), FIGURES[name]()
    data, _ = one._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert re.search(r'<img alt="[^"]{20,}"', data["text/html"])
    assert "<table" in data["text/html"]
    assert data["text/plain"] == repr(one) == repr(two)
    assert two._repr_mimebundle_()[0]["text/html"] == data["text/html"]


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_left_when_its_cell_is_run_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for run in range(3):
        monkeypatch.setattr(base, "_get_cell", lambda run=run: (f"the cell of {name}", run))
        FIGURES[name]()
        counts.append(len(ipywidgets.widgets.widget._instances))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("name", FIGURES)
def test_its_script_is_one_module_and_loads_nothing(name: str) -> None:
    made = FIGURES[name]()
    assert made._esm.count("export default") == 1
    script = made._esm.replace("http://www.w3.org/2000/svg", "")  # the name of a kind of element: nothing is loaded
    assert not re.search(r"https?://|\bimport\b.*from|innerHTML", script)
    assert "url(" not in made._css


@pytest.mark.parametrize("file", digits._FILES.values())
def test_the_examples_run(file: str) -> None:
    assert doctest.testmod(importlib.import_module(f"hookscope_course.digits.{file}")).failed == 0
