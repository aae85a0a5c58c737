"""How maps are asked for and shown, what is refused and when, and that nothing stays on the model."""

from __future__ import annotations

import gc
import io
import re
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from hookscope import LayerNotFoundError, attention
from hookscope.interp.attentions.recompute import AttentionInputs
from tests.shared.awkward_models import Do


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(8, 24), nn.BatchNorm1d(8)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(mixed.mT).mT


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.once, self.drop = Block(), Block(), nn.Dropout(0.5)

    def forward(self, x):
        return self.once.forward(self.drop(self.block(self.block(x))))


X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
WORDS = ["the", "<b>cat</b>", "$sat$"]


def test_calls_of_a_shared_layer_and_one_whose_forward_is_called():
    found = attention(Twice(), X)
    assert list(found) == ["block#1", "block#2", "once"]
    assert found[0] is found["block#1"]
    assert found[-1] is found["once"]
    with pytest.raises(LayerNotFoundError, match="layer 'block' has 2 maps: 'block#1' and 'block#2'"):
        found["block"]
    with pytest.raises(LayerNotFoundError, match="no layer 'onec'; did you mean 'once'"):
        found["onec"]
    with pytest.raises(LayerNotFoundError, match=r"no attention ran in layer 'once\.qkv' itself; did you mean 'once'"):
        found["once.qkv"]
    with pytest.raises(IndexError, match="no map 3: there are 3"):
        found[3]


def test_a_name_is_taken_for_that_of_a_map_not_of_a_layer_without_one():
    model = nn.ModuleDict({"attn": Twice(), "attm_block": nn.Linear(1, 1)})
    model.forward = model["attn"].forward
    with pytest.raises(LayerNotFoundError, match=r"no layer 'attm\.block#1'; did you mean 'attn\.block#1'"):
        attention(model, X)["attm.block#1"]
    with pytest.raises(LayerNotFoundError, match=r"no layer 'zzz', and none of the .* layers has a similar name"):
        attention(model, X)["zzz"]


@pytest.mark.parametrize("heads", ["all", 1.5, [0, "a"], [True, False], torch.tensor([True, False])])
def test_heads_are_numbers(heads):
    with pytest.raises(TypeError, match="Pass an integer, or several, such as heads="):
        attention(Block(), X)[0].heads(heads)


def test_heads_may_be_given_in_several_ways():
    found = attention(Block(), X)[0]
    for heads in (1, [1], range(1, 2), np.array([1]), np.array(1), np.int64(1), torch.tensor([1]), torch.tensor(1)):
        assert found.heads(heads) == [1]
    with pytest.raises(ValueError, match="heads is empty"):
        found.heads([])


def test_looking_is_never_why_a_forward_fails(monkeypatch):
    def broken(self):
        raise RuntimeError("not of the model")

    monkeypatch.setattr(AttentionInputs, "compute_weights", broken)
    found = attention(Twice(), X)
    assert len(found) == 0
    assert any("could not be followed" in note and "not of the model" in note for note in found.notes)


SIZE = 2 * 2 * 3 * 3 * 4  # bytes of one map: samples, heads, queries, keys, float32


def test_no_map_is_made_that_does_not_fit(monkeypatch):
    made = []
    right = AttentionInputs.compute_weights
    monkeypatch.setattr(AttentionInputs, "compute_weights", lambda self: made.append(1) or right(self))
    model = nn.Sequential(*[Block() for _ in range(5)])
    with pytest.raises(MemoryError, match=f"up to that of 3 take {4 * SIZE} bytes, more than max_bytes={4 * SIZE - 1}"):
        attention(model, X, max_bytes=4 * SIZE - 1)
    assert len(made) == 3
    assert attention(model, X, max_bytes=5 * SIZE).nbytes == 5 * SIZE
    assert len(attention(model, X, max_bytes=None)) == 5


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"tokens": "the cat"}, TypeError, "is not a list of strings"),
        ({"tokens": 3}, TypeError, "is not a list of strings"),
        ({"tokens": [1, 2]}, TypeError, "tokens contains 1, which is not a string"),
        ({"max_bytes": "1"}, TypeError, "max_bytes='1' is not a number"),
    ],
)
def test_options_are_checked_when_given(given, error, says):
    with pytest.raises(error, match=says):
        attention(Do(lambda *given: pytest.fail("options are checked before the pass")), X, **given)


def test_tokens_must_fit():
    with pytest.raises(TypeError, match="must be a module"):
        attention(Block, X)
    with pytest.raises(ValueError, match="tokens has 2 strings, but the maps have 3 tokens"):
        attention(Block(), X, tokens=["a", "b"])
    with pytest.raises(ValueError, match="tokens has 1 string, but the maps have 3 tokens"):
        attention(Block(), X, tokens=["a"])
    found = attention(Block(), X, tokens=WORDS)[0]
    assert found.queries == found.keys == tuple(WORDS)
    other = found.with_tokens(keys=["x", "y", "z"])
    assert (other.queries, other.keys) == (tuple(WORDS), ("x", "y", "z"))
    with pytest.raises(ValueError, match="2 tokens for the 3 keys"):
        found.with_tokens(keys=["x", "y"])


def test_numbers_of_known_weights():
    found = attention(Block(), X)[0]
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).expand(1, 2, 3, 3)
    known = replace(found, weights=weights)
    assert known.entropy.tolist() == [[0.5, 0.5]]  # of one bit and none; the third row sees no key
    assert known.greatest.tolist() == [[0.5, 0.5]]  # the second row sees one key only
    assert known.blind.tolist() == [[[False, False, True]] * 2]
    assert known.row()["entropy (bits)"] == 0.5


def test_pictures_have_words_and_numbers():
    pytest.importorskip("matplotlib")
    found = attention(Twice().eval(), X, tokens=WORDS)
    picture = found["once"].picture(sample=1)
    weights = found["once"].weights[1]
    assert [row["head"] for row in picture.rows] == [0, 1]
    assert picture.rows[0]["greatest weight"] == pytest.approx(float(weights[0].max()))
    query, key = divmod(int(weights[0].argmax()), 3)
    assert (picture.rows[0]["query"], picture.rows[0]["key"]) == (f"{query} {WORDS[query]}", f"{key} {WORDS[key]}")
    assert "3 queries as rows by 3 keys as columns" in picture.alt
    assert "<b>cat" not in picture.to_html()
    one = found["once"].picture(1, sample=1)
    assert [row["head"] for row in one.rows] == [1]
    assert "once, sample 1, head 1 of 2" in one.caption
    with pytest.raises(IndexError, match="no head 2: 'once' has 2"):
        found["once"].picture(heads=2)
    with pytest.raises(IndexError, match="no sample 2: there are 2"):
        found["once"].picture(sample=2)

    assert "sees several keys" not in picture.caption + picture.alt

    small = found.picture()
    assert [(row["call"], row["head"]) for row in small.rows] == [
        (call, head) for call in ("block#1", "block#2", "once") for head in (0, 1)
    ]
    shown = found._repr_mimebundle_()
    assert shown["image/png"].startswith(b"\x89PNG")
    assert re.search(r'<img alt="[^"]{40,}"', shown["text/html"])
    assert "greatest weight" in shown["text/html"]
    assert repr(found) == shown["text/plain"]
    assert found["once"]._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(("queries", "keys", "heads"), [(15, 15, 4), (60, 60, 3), (2, 60, 5), (60, 2, 5), (1, 1, 1)])
def test_maps_of_heads_fit_and_say_how_many_places_have_names(queries, keys, heads):
    pytest.importorskip("matplotlib")
    shape = 1, heads, queries, keys
    found = replace(attention(Block(), X)[0], weights=torch.full(shape, 1 / keys))
    # Dashes join to a line: wherever a label is cut, the edge is dark.
    picture = found.with_tokens(["—" * 12] * queries, ["$x_1$" + "—" * 7] * keys).picture()
    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))
    for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
        assert edge.min() == 255
    assert pixels.shape[1] <= 900  # labels of 8 points can be read where a page shrinks it to 690
    fewer = {60: " (one in 3 has a label)"}
    said = f"rows are queries{fewer.get(queries, '')}, columns are keys{fewer.get(keys, '')}"
    assert picture.caption.endswith(said)


@pytest.mark.parametrize(("key", "turned"), [("a", 0), ("unbelievable", 90)])
def test_no_label_lies_on_the_next_and_long_ones_alone_are_turned(key, turned):
    pytest.importorskip("matplotlib")
    from hookscope.interp.attentions.drawing import _draw_heads

    found = replace(attention(Block(), X)[0], weights=torch.full((1, 1, 3, 5), 1 / 5)).with_tokens(WORDS, [key] * 5)
    figure, _ = _draw_heads(found, [0], found.weights[0], 1.0)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert {text.get_rotation() for text in axes.get_xticklabels()} == {turned}
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [text.get_window_extent() for text in axis.get_ticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_axes_name_places_with_letters_that_dejavu_lacks():
    pytest.importorskip("matplotlib")
    found = attention(Block(), X)[0]
    pictures = {found.with_tokens([token] * 3).picture().png for token in ("Ⓐ", "Ⓑ")}
    assert len(pictures) == 2  # else both would be boxes


def test_outer_maps_alone_name_their_places_with_the_token():
    pytest.importorskip("matplotlib")
    from hookscope.interp.attentions.drawing import _draw_heads

    found = replace(attention(Block(), X)[0], weights=torch.full((1, 5, 3, 3), 1 / 3)).with_tokens(WORDS, WORDS)
    figure, _ = _draw_heads(found, range(5), found.weights[0], 1.0)
    named = ["0 the", "1 <b>cat</b>", "2 $sat$"]
    empty = [""] * 3
    sides = [[[text.get_text() for text in axis.get_ticklabels()] for axis in (axes.yaxis, axes.xaxis)]
             for axes in figure.axes[:5]]  # fmt: skip
    # Three above, two below: the third has nothing below it.
    assert sides == [[named, empty], [empty, empty], [empty, named], [named, named], [empty, named]]


def test_black_is_spoken_of_where_there_is_some():
    pytest.importorskip("matplotlib")
    found = attention(Block(), X)[0]
    assert "black" not in found.picture().caption
    weights = found.weights.clone()
    weights[0, 1, 0] = float("nan")
    holed = replace(found, weights=weights)
    assert "; black is NaN" in holed.picture().caption
    assert "black" not in holed.picture(heads=0).caption


def test_the_small_picture_shows_the_weights():
    pytest.importorskip("matplotlib")
    from hookscope.interp.attentions.drawing import draw_all

    found = attention(Block(), X)[0]
    first, last = torch.zeros(2, 2, 2, 3, 3)
    first[..., 0], last[..., 2] = 1.0, 1.0
    mixed = torch.stack([first[:, 0], last[:, 1]], 1)
    pictures = {
        draw_all("net", [replace(found, weights=each)], 0, 16).png for each in (first, last, mixed, mixed.flip(1))
    }
    assert len(pictures) == 4


@pytest.mark.parametrize("label", ["W" * 28, "transformer.h.0.attn", "a"])
def test_no_label_of_the_small_picture_is_cut(label):
    pytest.importorskip("matplotlib")
    from hookscope.interp.attentions.drawing import draw_all

    found = attention(Block(), X)[0]
    picture = draw_all("net", [replace(found, label=label)] * 6, 0, 16)
    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))
    for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
        assert edge.min() == 255


def test_the_greatest_weight_is_not_that_of_a_query_that_sees_one_key():
    pytest.importorskip("matplotlib")
    found = attention(Twice().eval(), X, tokens=WORDS)["once"]
    causal = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.25, 0.25]])
    picture = replace(found, weights=causal.expand(2, 2, 3, 3)).picture()
    assert [(row["query"], row["key"], row["greatest weight"]) for row in picture.rows] == [
        ("1 <b>cat</b>", "1 <b>cat</b>", 0.75)
    ] * 2
    for text in (picture.alt, picture.caption):
        assert "greatest weight" in text
        assert "of a query that sees several keys" in text
    one_each = replace(found, weights=torch.eye(3).expand(2, 2, 3, 3)).picture()
    assert one_each.rows[0]["greatest weight"] == 1
    assert replace(found, weights=causal.expand(2, 2, 3, 3)).greatest.tolist() == [[0.75] * 2] * 2
    assert replace(found, weights=torch.eye(3).expand(2, 2, 3, 3)).greatest.tolist() == [[1.0] * 2] * 2
    assert "several keys" not in one_each.alt


def test_maps_that_are_gone_do_not_wait_for_the_garbage_collector():
    net = nn.MultiheadAttention(4, 2, batch_first=True)
    gc.disable()
    try:
        maps = attention(net, *[torch.randn(2, 3, 4)] * 3)
        weights = weakref.ref(maps[0].weights)
        del maps
        assert weights() is None
    finally:
        gc.enable()


def test_it_says_how_far_the_weights_were_checked():
    found = attention(Twice(), X)["once"]
    near = replace(found, output_error=3e-8)
    assert near.check == "weights @ v differs from the result of the call by at most 1e-07"
    exact = replace(found, output_error=0.0)
    assert exact.check == "weights @ v equals the result of the call, bit for bit"
