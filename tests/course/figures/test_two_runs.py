"""Two runs and one arrow: every number of the figure, by plain hooks; what is counted; what is not told beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookscope import samples
from hookscope_course.chapters.ch21_cloakroom import cloakroom_lm
from hookscope_course.figures import TwoRuns
from hookscope_course.figures.two_runs.figure import CLEAN, CORRUPTED, LAYERS

LM = samples.story_lm()
MARY, LEO = (samples.STORY_WORDS.index(name) for name in ("Mary", "Leo"))


def kept_of(text: str) -> dict[str, Tensor]:
    """What each layer returns."""
    kept: dict[str, Tensor] = {}
    handles = []
    for name in LAYERS:

        def keep(module: nn.Module, args: object, output: Tensor, name: str = name) -> None:
            kept[name] = output.clone()

        handles.append(LM.get_submodule(name).register_forward_hook(keep))
    with torch.no_grad():
        LM(samples.story_tokens(text))
    for handle in handles:
        handle.remove()
    return kept


def by_hand(name: str, position: int, source: Tensor, text: str = CORRUPTED) -> Tensor:
    """The logits of a run in which one row is another."""

    def put(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, position] = source[:, position]
        return output

    with torch.no_grad(), LM.get_submodule(name).register_forward_hook(put):
        logits: Tensor = LM(samples.story_tokens(text))[0, -1]
    return logits


@pytest.fixture(scope="module")
def runs() -> TwoRuns:
    return TwoRuns(LM)


@pytest.mark.parametrize("name", LAYERS)
def test_each_number_is_that_of_two_plain_hooks(runs: TwoRuns, name: str) -> None:
    source, there = kept_of(CLEAN)[name], kept_of(CORRUPTED)[name]
    with torch.no_grad():
        ends = [LM(samples.story_tokens(text))[0, -1] for text in (CLEAN, CORRUPTED)]
    high, low = ((each[MARY] - each[LEO]).item() for each in ends)
    for position, cell in enumerate(runs._cells[LAYERS.index(name)]):
        logits = by_hand(name, position, source)
        chances = logits.softmax(-1)[[MARY, LEO]].tolist()
        assert cell["bars"] == pytest.approx(chances, abs=2e-4)
        gap = (logits[MARY] - logits[LEO]).item()
        assert cell["logits"] == pytest.approx(gap, abs=2e-3)
        assert cell["shares"][1] == pytest.approx((gap - low) / (high - low), abs=2e-3)
        assert cell["same"] == torch.equal(source[:, position], there[:, position])
        assert cell["red"] == (int(logits.argmax()) == MARY)
        assert ("becomes Mary" in cell["said"]) == cell["red"]
        assert ("same value" in cell["said"]) == cell["same"]


def test_only_what_differs_can_have_an_effect(runs: TwoRuns) -> None:
    for row in runs._cells:
        for position, cell in enumerate(row):
            assert cell["same"] or position >= 10
            assert not cell["same"] or cell["shares"] == [0, 0]


def test_a_cell_is_counted_once_and_not_when_all_are_shown() -> None:
    runs = TwoRuns(LM)
    for layer, position in (("tokens", 10), ("blocks.0", 4), ("tokens", 10)):
        runs.patch(layer, position)
    assert runs.tried == [[0, 10], [LAYERS.index("blocks.0"), 4]]
    assert (runs.found, runs.at) == (1, [0, 10])
    runs.shown = True
    runs.patch("blocks.1", 14)
    assert (len(runs.tried), runs.at) == (2, [LAYERS.index("blocks.1"), 14])


def test_other_texts_and_fewer_layers() -> None:
    runs = TwoRuns(LM, "the dogs near the cat", "the dog near the cat", ["tokens", "blocks.0", "blocks.1"])
    assert runs.red[0] == ("tokens", 2)
    assert runs.red[-1] == ("blocks.1", 5)


def test_an_answer_that_is_neither_of_the_two_is_named() -> None:
    lists = ("Anna hat , Ben key , Clara book , Paul cup . Ben", "Anna hat , Ben lamp , Clara book , Paul cup . Ben")
    runs = TwoRuns(cloakroom_lm(), *lists, ("blocks.0.mlp",))
    assert runs._cells[0][5]["said"] == "blocks.0.mlp at 5 'key': the answer becomes cup; key has 0.26."
    assert not runs._cells[0][5]["red"]
