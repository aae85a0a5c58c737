"""A guess: what is meant counts, another type is told in a sentence, and a guess whose cell failed is forgotten."""

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from hookscope_course import Guess, ____
from hookscope_course.practice import guess_results

SAID = [
    (True, True, "As you guessed: True"),
    ("True", True, "As you guessed: True"),
    (" false", False, "As you guessed: False"),
    (1, True, "Not understood: a guess is True or False, as in Guess(True), but you wrote 1. The answer is True."),
    ("yes", True, "As you guessed: True"),
    ("maybe", True, "Not understood: a guess is True or False"),
    (16, 16, "As you guessed: 16"),
    ("16", 16, "As you guessed: 16"),
    ([16], 16, "As you guessed: 16"),
    (torch.tensor(16), 16, "As you guessed: 16"),
    (np.float32(16), 16, "As you guessed: 16"),
    (16.0, 16, "As you guessed: 16"),
    ("0.4", 0.4, "As you guessed: 0.4"),
    (0.1 + 0.2, 0.3, "As you guessed: 0.3"),
    ("15", 16, "You guessed 15. It is 16."),
    (float("inf"), 16, "You guessed inf. It is 16."),
    (True, 1, "Not understood: a guess is a number, as in Guess(3), but you wrote True. The answer is 1."),
    ([1, 2], 16, "Not understood: a guess is a number"),
    (None, 16, "Not understood: a guess is a number"),
    ("Block2", "block2", "As you guessed: block2"),
    (tuple, "tuple", "As you guessed: tuple"),
    (3, "block2", 'Not understood: a guess is text, as in Guess("red"), but you wrote 3. The answer is block2.'),
    ("ECBDA", ["E", "C", "B", "D", "A"], "As you guessed: E, C, B, D, A"),
    ("e, c, b, a, d", ["E", "C", "B", "D", "A"], "Position 4 differs: you guessed a, it was D."),
    (["E", "C"], ["E", "C", "B"], "Position 3 differs: you guessed nothing more, it was B."),
    (["E", "C", "B"], ["E", "C"], "Position 3 differs: you guessed B, it was over."),
    ("first, second", ["first", "second"], "As you guessed: first, second"),
    ("0.8 0.4", [0.8, 0.4], "As you guessed: 0.8, 0.4"),
    ((0.8, "0.4"), [0.8, 0.4], "As you guessed: 0.8, 0.4"),
    (torch.tensor([1.0, 2.0]), [1, 2], "As you guessed: 1, 2"),
    (5, [5], "As you guessed: 5"),
    (
        "none",
        [1, 2],
        "Not understood: a guess is a list whose items are each a number, as in Guess(3, 4), but you wrote 'none'",
    ),
    ([], [], "As you guessed: "),
    ("root", "(root)", "As you guessed: (root)"),
    ("(root)", "root", "You guessed (root). It is root."),
    (["c", "A"], {"A", "C"}, "As you guessed: A, C"),
    ({"A", "C"}, {"C", "A"}, "As you guessed: A, C"),
    ("CA", {"A", "C"}, "As you guessed: A, C"),
    ("A", {"A", "C"}, "Not complete: you left out C. It is A, C."),
    (["B", "A"], {"A", "C"}, "Not quite: you left out C, and B does not belong there. It is A, C."),
    (["A", "C", "D4.1"], {"A", "C"}, "Not quite: D4.1 does not belong there. It is A, C."),
    ([], set(), "As you guessed: an empty list"),
    ("D4.8", set(), "Not quite: D4.8 does not belong there. It is an empty list."),
    ([1], {"A"}, "Not understood: a guess is a list whose items are each text"),
]


@pytest.mark.parametrize(("guess", "actual", "said"), SAID, ids=lambda value: repr(value)[:20])
def test_what_is_meant_is_compared(guess, actual, said):
    assert repr(Guess(guess).compare(actual)).startswith(said)


@pytest.mark.parametrize(("guess", "side"), [(60, "too high"), (5, "too low")])
def test_a_slider_says_on_which_side_of_the_answer_a_guess_is(guess, side, monkeypatch):
    monkeypatch.setattr(guess_results, "_tries", {})  # else the second one is a second try
    assert f"Not {guess}: {side}." in repr(Guess(guess, about="04.5").compare(30))


def test_several_values_are_a_list_and_none_is_a_blank():
    assert Guess(0.8, 0.4).guess == [0.8, 0.4]
    assert repr(Guess(0.8, 0.4)) == "Your guess: 0.8, 0.4. Now run the cells below."
    assert repr(Guess()) == repr(Guess(____)) == "Your guess? Replace ____ and run this cell again."
    assert repr(Guess(1, ____).compare([1, 2])) == "The answer: 1, 2."


def test_a_guess_whose_cell_failed_does_not_leave_the_one_before_it():
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("from hookscope_course import Guess, ____")
        for cell in ("guess = other = Guess(3)", "other = Guess(4)", "guess = Guess(3)"):
            assert shell.run_cell(cell).success
        shell.run_cell("1 / 0")
        assert shell.user_ns["guess"].guess == 3
        for failing in ("guess = Guess(nonsense)", "x = 1\nguess = Guess(3"):
            assert shell.run_cell("guess = Guess(3)").success
            shell.run_cell(failing)
            assert repr(shell.user_ns["guess"].compare(3)) == "The answer: 3."
        assert shell.user_ns["other"].guess == 4
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        ([60, 60], "Position 1 differs: you guessed 60, it was 6.0."),
        ([6, 60], "Position 2 differs: you guessed 60, it was error."),
        (["error", "error"], "Position 1 differs: you guessed error, it was 6.0."),
        ([6, "Error"], "As you guessed: 6.0, error."),
    ],
)
def test_where_numbers_and_words_stand_both_are_guesses(guess: list[object], words: str) -> None:
    assert repr(Guess(guess).compare([6.0, "error"])) == words


def test_an_empty_list_is_a_guess() -> None:
    assert repr(Guess([])) == "Your guess: an empty list. Now run the cells below."
    assert repr(Guess([]).compare([])) == "As you guessed: an empty list."


@pytest.mark.parametrize(
    ("about", "guess", "said"),
    [
        ("03.1", 8, '8 is none of the answers. Write one of these: "6", "7", "not a number: True", "an error".'),
        ("02.0", 3, "3 is none of the answers. Write one of these: True, False."),
        ("02.1", 3, '3 is none of the answers. Write these in order: "keep", "silence", "everywhere".'),
        ("11.3", 3, '3 is none of the answers. Write some of these: "stem", "relu", "mix", "head".'),
        ("04.5", "many", "'many' is none of the answers. Write a number from 0 to 64."),
    ],
)
def test_a_guess_of_another_type_than_the_answers_is_refused_at_once(about: str, guess: object, said: str) -> None:
    """It is no try: the answer stays unknown."""
    made = Guess(guess, about=about)
    assert repr(made) == said
    assert repr(made.compare("the answer")) == said


def test_a_number_stands_for_the_button_with_it() -> None:
    assert Guess(7, about="03.1").guess == "7"
    assert Guess([3, 1], about="03.1").guess == [3, 1]
