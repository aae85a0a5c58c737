"""A sweep shows itself as a heat map with its numbers, or as a table where there is no matplotlib."""

from __future__ import annotations

import io
import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookscope.pictures.palette import COOLWARM
from tests.shared.sweep_helpers import sweep


def swept(channels=range(3), rows=("0", "2"), width=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    return sweep(net, torch.ones(1, width), list(rows), "zero", channels=channels, metric=lambda y: y.sum())


def test_text_table_and_picture_say_the_same() -> None:
    found = swept()
    text = repr(found)
    assert text.startswith("Sequential: 2 layers × 3 channels, each set to zero, one at a time\nthe metric is ")
    assert "largest change: " in text
    numbers = [row["value"] for row in found.rows]
    assert numbers == found.values.flatten().tolist()
    assert [list(row) for row in found.table().rows] == [["layer", "0", "1", "2"]] * 2
    bundle = found._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png", "text/html"}
    assert 'alt="Heat map of 2 layers by 3 channels: values from ' in bundle["text/html"]
    assert "6 cells, each run alone, with plain hooks" in bundle["text/html"]
    assert bundle["text/html"].count("<tr>") == 3


def test_grey_is_the_baseline() -> None:
    found = swept()
    found.values[:] = found.baseline
    found.values[0, 0] += 2
    found.values[0, 1] -= 1
    found.values[1, 2] = float("nan")
    pixels = np.asarray(Image.open(io.BytesIO(found.picture().png)).convert("RGB")).reshape(-1, 3)
    colours = {tuple(colour) for colour in np.unique(pixels, axis=0).tolist()}
    top, grey = (tuple(COOLWARM[index].tolist()) for index in (255, 128))
    assert {top, grey, (0, 0, 0)} <= colours  # as far up as it goes, the baseline, no number
    assert "1 cell black, without a finite number" in found.picture().alt
    assert "(0, channel 0)" in repr(found)
    label = found._draw().axes[1].get_ylabel()
    assert label == f"metric after the change\n(gray: {found.baseline:.4g}, no change)"


def colours_of(found):
    """The indices of the palette that the cells have, row by row; None for black."""
    image = found._draw().axes[0].images[0]
    shown = image.to_rgba(image.get_array(), bytes=True)[..., :3].tolist()
    places = {tuple(colour): index for index, colour in enumerate(COOLWARM.tolist())}
    return [[places.get(tuple(colour)) for colour in row] for row in shown]


def test_grey_is_the_baseline_however_far_from_zero_and_where_nothing_changes() -> None:
    found = replace(swept(), baseline=100.0)
    found.values[:] = torch.tensor([[100.0, 102.0, 98.0], [100.0, 101.0, math.nan]])
    assert colours_of(found) == [[128, 255, 0], [128, 192, None]]
    found.values[:] = 100.0
    assert colours_of(found) == [[128] * 3] * 2


def test_a_baseline_that_is_no_number_leaves_the_cells_their_colours() -> None:
    found = replace(swept(), baseline=math.nan)
    found.values[:] = torch.tensor([[0.0, 2.0, -2.0], [math.inf, 1.0, math.nan]])
    assert colours_of(found) == [[128, 255, 0], [None, 192, None]]
    assert "no cell has a number" in repr(found)


def test_sixteen_columns_fit_and_a_row_without_a_number_has_no_lowest() -> None:
    found = swept(range(16), width=16)
    assert list(found.table().rows[0]) == ["layer", *map(str, range(16))]
    found = swept(range(17), width=17)
    found.values[0] = math.nan
    first, second = found.table().rows
    assert list(first.values()) == ["0", None, None, None, None]
    assert second["highest"] == float(found.values[1].max())


def test_more_columns_than_fit_are_summed_up() -> None:
    found = swept(range(20), width=20)
    (row, _) = found.table().rows
    assert list(row) == ["layer", "lowest", "lowest at", "highest", "highest at"]
    assert row["lowest"] == float(found.values[0].min())
    assert row["lowest at"] == int(found.values[0].argmin())
    assert len(found.rows) == 40


def test_whole_layers() -> None:
    found = swept(channels=None)
    assert found.values.shape == (2, 1)
    assert [list(row) for row in found.table().rows] == [["layer", "value", "change"]] * 2
    assert "Heat map of 2 layers: " in found.picture().alt


def test_a_metric_that_nothing_changes_is_said() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found = sweep(net, torch.ones(1, 3), "0", "zero", channels=range(3), metric=lambda y: 1)
    assert found.notes == ("no change had an effect on the metric. Check that it depends on these layers",)


def test_without_matplotlib_the_table_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.colors", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    bundle = swept()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "the heat map of a sweep needs matplotlib: pip install matplotlib" in bundle["text/html"]


def test_a_sweep_goes_through_pickle() -> None:
    found = swept()
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)


WORDS = ["the", "cat", "$sat$", "on", "unbelievability", "\n", "猫", "mat"]


def labelled(positions, tokens=WORDS, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(2, len(WORDS), 4)
    return sweep(net, x, ["0", "2"], "zero", positions=positions, metric=lambda y: y.sum(), tokens=tokens, **options)


def test_tokens_label_the_columns_of_table_picture_and_alt_text() -> None:
    found = labelled([6, 1, -1])
    assert found.names == ("6 猫", "1 cat", "-1 mat")
    assert [list(row) for row in found.table().rows] == [["layer", "6 猫", "1 cat", "-1 mat"]] * 2
    assert [row["token"] for row in found.rows[:3]] == ["猫", "cat", "mat"]
    picture = found.picture()
    assert picture.alt.endswith("; positions: 6 猫, 1 cat, -1 mat.")
    assert "<th" in picture.to_html()
    assert "1 cat" in picture.to_html()
    (largest,) = (line for line in repr(found).splitlines() if line.startswith("largest change"))
    assert any(f", position {name})" in largest for name in found.spoken)
    every = labelled(range(8))
    assert every.names[4:6] == ("4 unbelievabi…", "5 \\n")
    ticks = [text.get_text() for text in every._draw().axes[0].get_xticklabels()]
    assert ticks == list(every.names)
    assert repr(pickle.loads(pickle.dumps(every))) == repr(every)
    assert list(labelled(range(8), None).names) == [str(number) for number in range(8)]


def test_many_tokens_are_named_where_the_lowest_and_the_highest_are() -> None:
    torch.manual_seed(0)
    net, words = nn.Linear(4, 4), [f"w{number}" for number in range(20)]
    x = torch.randn(1, 20, 4)
    found = sweep(net, x, "", "zero", positions=range(20), metric=lambda y: y.sum(), tokens=words, progress=False)
    (row,) = found.table().rows
    place = int(found.values[0].argmin())
    assert row["lowest at"] == f"{place} w{place}"
    assert found.picture().alt.endswith("15 w15 and 4 more.")


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="tokens='the cat' is not a list of strings"):
        labelled(range(2), "the cat")
    with pytest.raises(TypeError, match="tokens contains 3, which is not a string"):
        labelled(range(2), [3, 4])
    with pytest.raises(ValueError, match="tokens has 2 strings, and none for position 2"):
        labelled(range(3), ["a", "b"])
    with pytest.raises(ValueError, match="tokens has 5 strings, but layer '0' has 8 positions"):
        labelled(range(3), WORDS[:5])
    with pytest.raises(ValueError, match="tokens has 1 string, but layer '0' has 8 positions"):
        labelled([0], WORDS[:1])
    net = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"tokens= labels positions, and positions= is not given"):
        sweep(net, torch.ones(1, 4), "", "zero", channels=[0], metric=lambda y: y.sum(), tokens=WORDS)


def test_tokens_with_letters_that_dejavu_lacks_are_no_boxes() -> None:
    found = swept()
    pictures = {replace(found, kind="position", tokens=(token,) * 3).picture().png for token in ("Ⓐ", "Ⓑ")}
    assert len(pictures) == 2


def test_one_cell_is_not_each() -> None:
    assert swept(channels=[0], rows=["0"]).how == "1 cell, run alone, with plain hooks"


def test_a_layer_of_two_names_is_one_row_and_said_to_be() -> None:
    tied = nn.Linear(4, 4)
    net = nn.ModuleDict({"a": tied, "b": tied, "c": nn.Linear(4, 4)})
    net.forward = lambda x: net["c"](net["b"](x).tanh())
    found = sweep(net, torch.ones(1, 3, 4), ["a", "b", "c"], "zero", positions=range(3), metric=torch.sum)
    assert found.layers == ("a", "c")
    assert found.notes == ("layer 'a' is also named 'b'; its row counts the calls under each name",)
    again = sweep(net, torch.ones(1, 3, 4), ["b#1"], "zero", positions=range(3), metric=torch.sum)
    assert again.notes == ("layer 'b' is also named 'a'; its row counts the calls under each name",)
