"""The patch map: what is chosen is what is run and shown; what cannot be shown, or is not as it was, is said."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import census, samples
from hookscope.interp.widgets.output_table import compare_outputs
from hookscope.interp.widgets.patch_map import ABOVE, NAN, NOT_RUN, PatchMap
from tests.shared.language_models import IDS, gpt2
from tests.shared.sweep_helpers import get_outputs, sweep, sweep_by_hand

TOKENS = ["the", "cat", "sat", "on", "it"]
VOCABULARY = [f"word{number}" for number in range(20)]
LAYERS = ["transformer.h.0", "transformer.h.1"]


def metric(output: Any) -> torch.Tensor:
    return output.logits[0, -1, 3]


@pytest.fixture(scope="module")
def language() -> tuple[nn.Module, Any]:
    net = gpt2()
    found = sweep(net, IDS, LAYERS, IDS.flip(1), positions=range(5), tokens=TOKENS, metric=metric, progress=False)
    return net, found


def scores() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).eval()


IMAGE = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def of_channels(net: nn.Module, **more: Any) -> Any:
    options = {"channels": range(4), "metric": lambda y: y[0, 1], "progress": False} | more
    return sweep(net, IMAGE, ["0", "1"], "zero", **options)


def test_it_shows_the_cell_that_is_chosen(language: Any) -> None:
    net, found = language
    patches = PatchMap(found, vocabulary=VOCABULARY, layer=LAYERS[0], column=1)
    assert patches._caption.startswith("transformer.h.0, position 1 'cat': ")
    assert patches._words == "Position 1 'cat' of the output of transformer.h.0 is patched from the source."
    before = patches._rows

    patches.column = 4
    new = get_outputs(net, lambda: net(IDS.flip(1)), LAYERS)
    outputs: list[Any] = []
    sweep_by_hand(
        net, lambda: net(IDS), LAYERS[:1], new, [(slice(None), 4)], lambda out: outputs.append(out) or metric(out)
    )
    shares = outputs[0].logits[0, -1].softmax(-1)
    plain = net(IDS).logits[0, -1].softmax(-1).tolist()
    names, *rows = patches._rows
    assert names == ["word", "before", "after"]
    assert rows != before[1:]
    for word, then, now in rows:
        assert float(now) == pytest.approx(float(shares[VOCABULARY.index(word)]), rel=1e-3)
        assert float(then) == pytest.approx(plain[VOCABULARY.index(word)], rel=1e-3)
    assert {VOCABULARY[number] for number in shares.topk(5).indices} <= {row[0] for row in rows}
    told = dict(patches._metric)
    assert told["with the edit"] == told["in the sweep"] == f"{float(found.values[0, 4]):.4g}"
    assert told["without the edit"] == f"{found.baseline:.4g}"
    assert told["with the source inputs"] == f"{found.source:.4g}"
    assert patches._notes == []
    assert patches._caption in patches.alt
    assert patches._caption in repr(patches)
    assert not census(net)


def test_the_page_says_so(language: Any) -> None:
    patches = PatchMap(language[1], vocabulary=VOCABULARY)
    assert patches.cell.at == divmod(int(language[1].changes.abs().argmax()), 5)
    patches.set_state({"layer": LAYERS[1], "column": 0, "_request": 1})
    assert (patches.cell.layer, patches.cell.column, patches._response) == (LAYERS[1], 0, 1)
    patches.set_state({"position": 2, "sample": 1, "_request": 2})
    assert patches._title == "Probabilities of the top words at position 2 of 5, sample 1 of 2, 20 in all, by softmax"
    share = patches.outcome.after.logits[1, 2].softmax(-1)
    assert patches._rows[1][2] == f"{float(share[VOCABULARY.index(patches._rows[1][0])]):.4g}"


def test_colours_are_those_of_the_changes() -> None:
    found = of_channels(net := scores())
    levels = torch.tensor(PatchMap(found)._levels)
    changes = found.changes
    assert levels[changes == 0].unique().tolist() in ([], [128])
    row, column = divmod(int(changes.abs().argmax()), 4)
    assert levels[row, column] == (255 if changes[row, column] > 0 else 0)
    assert ((levels > 128) == (changes > 0.005 * changes.abs().max())).all()
    values = found.values.clone()
    values[0, 1], values[1, 2] = float("nan"), float("inf")
    object.__setattr__(found, "values", values)
    patches = PatchMap(found, layer="0", column=1)
    assert (patches._levels[0][1], patches._levels[1][2]) == (NAN, ABOVE)
    assert patches._texts[0][1] == "nan"
    assert "in the sweep the cell has nan" in patches._notes[0]
    assert net is not None


def test_top_classes_of_a_classifier() -> None:
    net = scores()
    patches = PatchMap(of_channels(net), classes=["cat", "dog", "cow"], layer="1", column=2, sample=1)
    now = patches.outcome.after[1].softmax(-1)
    assert {row[0]: row[2] for row in patches._rows[1:]} == {
        name: f"{float(share):.4g}" for name, share in zip(["cat", "dog", "cow"], now, strict=True)
    }


def test_any_other_output() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found = sweep(net, torch.ones(2, 4, 3), "0", "mean", metric=lambda y: y.sum())
    patches = PatchMap(found)
    assert patches._rows == [["output", "shape", "largest change"], ["the output", "(2, 4, 3)", "0"]]
    (row,) = compare_outputs({"a": torch.zeros(2, 3, 4)}, {"a": torch.full((2, 3, 4), -2.0)}, None, None, 0, -1).rows
    assert row == {"output": "['a']", "shape": "(2, 3, 4)", "largest change": 2.0}
    ready = compare_outputs(torch.tensor([[0.25, 0.75]]), torch.tensor([[1.0, 0.0]]), None, None, 0, -1)
    assert ready.rows[0] == {"class": "0", "before": 0.25, "after": 1.0}
    assert ready.title.endswith("as the model returns them")


def test_one_word_of_a_story_decides_what_comes_next() -> None:
    net, many, one = samples.story_lm(), *map(samples.story_tokens, ("the dogs near the cat", "the dog near the cat"))
    run, runs = (samples.STORY_WORDS.index(word) for word in ("run", "runs"))
    found = sweep(
        net, many, ["tokens", "blocks.*"], one, positions=range(6), tokens=samples.story_words(many), progress=False,
        metric=lambda logits: logits[0, -1, runs] - logits[0, -1, run],
    )  # fmt: skip
    patches = PatchMap(found, vocabulary=samples.STORY_WORDS, layer="tokens", column=2)
    assert "position 2 'dogs'" in patches._caption
    _, *rows = patches._rows
    assert max(rows, key=lambda row: float(row[1]))[0] in samples.stories.MANY_DO
    assert max(rows, key=lambda row: float(row[2]))[0] in samples.stories.ONE_DOES
    assert patches.outcome.value == pytest.approx(found.source, rel=1e-4)  # nothing else differs
    patches.column = 1
    assert patches.outcome.value == pytest.approx(found.baseline, rel=1e-4)
    assert patches._notes == []
    heads = sweep(
        net, many, "blocks.*.attn", "zero", heads=range(4), metric=lambda logits: logits[0, -1, run], progress=False
    )
    for layer in heads.layers:
        assert PatchMap(heads, vocabulary=samples.STORY_WORDS, layer=layer, column=3)._notes == []


def test_cells_that_were_never_run() -> None:
    ran = []

    def stops(output: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        if len(ran) == 5:
            raise KeyboardInterrupt
        return output[0, 1]

    net = scores()
    found = of_channels(net, metric=stops, check=8)
    patches = PatchMap(found, layer="1", column=3)
    assert patches._levels == [[*patches._levels[0][:3], NOT_RUN], [NOT_RUN] * 4]
    told = dict(patches._metric)
    assert told["in the sweep"] == "not run"
    assert float(told["with the edit"]) == pytest.approx(patches.outcome.value, rel=1e-3)
    assert [note[:44] for note in patches._notes] == ["The sweep was interrupted before this cell, "]
    assert "hatched, not run because of an interrupt" in patches.alt


def test_what_it_no_longer_has_is_said() -> None:
    net = scores()
    found = of_channels(net)
    saved = PatchMap(pickle.loads(pickle.dumps(found)), layer="0", column=2)
    assert saved._notes[0].startswith("This sweep was saved or copied")
    assert (saved.outcome, saved._rows) == (None, [])
    assert f"{float(found.values[0, 2]):.4g} with the edit" in saved._caption

    held = PatchMap(found, layer="0", column=2)
    del net
    gc.collect()
    held.column = 1  # the widget holds the model
    assert held.outcome is not None
    held.close()
    gc.collect()
    freed = PatchMap(found, layer="0", column=2)
    assert freed._notes[0].startswith("The model of this sweep was freed")
    assert (freed.outcome, freed._rows) == (None, [])


def test_an_edit_that_fails_leaves_nothing_old_behind() -> None:
    net = scores()
    patches = PatchMap(of_channels(net), layer="0", column=2)
    net[3] = nn.Linear(5, 3)
    patches.column = 1
    assert patches.problem.startswith("RuntimeError: ")
    assert (patches.outcome, patches._rows, patches.cell.column) == (None, [], 1)
    assert not census(net)
    torch.manual_seed(0)
    net[3] = nn.Linear(16, 3)
    patches.column = 2
    assert patches.problem == ""
    assert "the model now gives" in patches._notes[0]
