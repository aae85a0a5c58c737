"""The token picker: what is chosen is what is shown, from Python and from the page, in pictures and in numbers."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import hookscope
from hookscope import samples
from hookscope.interp.widgets.token import TokenPicker
from tests.shared.language_models import READER_IDS, READER_WORDS, Reader


@pytest.fixture
def picker() -> TokenPicker:
    return TokenPicker(Reader(), READER_IDS, vocabulary=READER_WORDS)


def test_it_begins_at_the_end_with_what_the_model_says(picker: TokenPicker) -> None:
    assert (picker.layer, picker.token, picker.show, picker.head) == ("blocks.2", 5, "final word", 0)
    assert picker._tokens == [*READER_WORDS[:4], "a", "mat"]
    with torch.no_grad():
        chances = Reader().eval()(READER_IDS)[0, -1].softmax(-1)
    top = chances.topk(5)
    row = picker.predictions()[-1]
    assert [row[str(rank)] for rank in range(1, 6)] == [READER_WORDS[word] for word in top.indices]
    assert [row[f"{rank} probability"] for rank in range(1, 6)] == pytest.approx(top.values.tolist())
    assert picker._notes == []
    assert repr(picker).startswith(
        "TokenPicker Reader: probability of the word that the model predicts, 3 layers by 6 tokens"
    )


def test_numbers_and_picture_are_those_of_what_is_shown(picker: TokenPicker) -> None:
    pictures = set()
    for show in ("final word", "next word", "norm", "change"):
        picker.show = show
        values = {
            "final word": picker.reading.final_probability,
            "next word": picker.reading.next_probability,
            "norm": picker.reading.norm,
            "change": picker.reading.change,
        }[show]
        for place, row in enumerate(picker.numbers()):
            assert row["token"] == f"{place} {picker._tokens[place]}"
            found = [row[f"blocks.{layer}"] for layer in range(3)]
            assert found == pytest.approx(values[:, place].tolist(), nan_ok=True)
        pictures.add(picker.png)
        known = values.nan_to_num(-1)
        layer, token = divmod(int(known.argmax()), 6)
        assert f"is at blocks.{layer}, token {token} " in picker.alt
    assert len(pictures) == 4
    assert "Black cells have no value" not in picker._caption


def test_alike_numbers_have_no_greatest() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)  # its last norm makes all streams as long
    blocks = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)
    picker = TokenPicker(blocks, torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0)))
    assert "4 everywhere" in picker._caption
    assert picker.alt.endswith("by 4 tokens as columns, 4 everywhere.")


def test_it_says_how_far_the_weights_were_checked() -> None:
    tokens = samples.story_tokens("the dogs near the cat")
    picker = TokenPicker(samples.story_lm(), tokens, vocabulary=samples.STORY_WORDS)
    assert "Weights @ v differs from the result of the call by at most " in picker._attention_check
    assert "Weights" not in picker._attention_text
    picker.look = "map"
    assert "The largest of a query with several keys is from " in picker.look_alt  # not that of the first token


def test_the_weights_of_the_chosen_token(picker: TokenPicker) -> None:
    maps = hookscope.attention(Reader().eval(), READER_IDS)
    for layer, token in (("blocks.1", 3), ("blocks.0", 0)):
        picker.layer, picker.token = layer, token
        assert picker.attention == f"{layer}.heads.0"  # each of these heads is a layer of its own
        assert picker._weights == pytest.approx(maps[picker.attention].weights[0, 0, token].tolist())
    picker.attention = "blocks.0.heads.4"
    picker.token, picker.sample = 5, 1
    weights = maps["blocks.0.heads.4"].weights[1, 0, 5]
    assert picker._weights == pytest.approx(weights.tolist())
    best = int(weights.argmax())
    assert picker._attention_rows[0][0] == f"{best} {READER_WORDS[int(READER_IDS[1, best])]}"
    assert picker.look_png == b""
    picker.look = "map"
    assert "query " not in picker.look_alt.partition(" The largest ")[0]
    assert "6 queries as rows by 6 keys" in picker.look_alt
    first = picker.look_png
    picker.layer = "blocks.2"
    assert picker.attention == "blocks.2.heads.4"
    assert picker.look_png not in (b"", first)


def test_each_sample_has_its_own_tokens() -> None:
    with pytest.raises(ValueError, match="tokens has 1 string, but there are 6 positions"):
        TokenPicker(Reader(), READER_IDS, tokens=["the"])
    assert TokenPicker(Reader(), READER_IDS, tokens=[list("abcdef"), list("uvwxyz")])._texts[1] == tuple("uvwxyz")


def test_without_a_lens_and_without_attention() -> None:
    """The map is there, and a sentence says why the rest is not."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    picker = TokenPicker(blocks, torch.randn(1, 4, 8))
    assert (picker.show, picker.layer, picker.attention, picker.map) == ("norm", "2", "", None)
    assert picker.predictions() == []
    assert [name for name, _ in picker._shows] == ["norm", "change"]
    assert any("No lens" in text for text in picker._notes)
    assert "This layer has no attention map: 0 maps" in picker._attention_text
    with pytest.raises(ValueError, match="show='final word': the model has no lens"):
        picker.show = "final word"
    with pytest.raises(ValueError, match="0 maps"):
        picker.head = 1
    assert [row["token"] for row in picker.numbers()] == ["0", "1", "2", "3"]


def test_a_lens_that_is_not_the_model_s_is_said_in_the_static_picture_too() -> None:
    picker = TokenPicker(Reader(cap=True), READER_IDS, lens=("norm", "head"))
    assert any("differs from the logits of the model" in text for text in picker._notes)
    assert "differs from the logits of the model" in repr(picker)


def test_what_is_sent_has_no_nan() -> None:
    net = Reader()
    with torch.no_grad():
        net.head.weight[3] = math.nan
    picker = TokenPicker(net, READER_IDS, vocabulary=READER_WORDS)
    picker.show = "change"
    json.dumps({name: value for name, value in picker.get_state().items() if "png" not in name}, allow_nan=False)
    assert picker.problem == ""
    assert "nan" in picker._predictions[0][2]


def test_a_long_text_lists_the_numbers_around_the_choice() -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(40)))
    picker = TokenPicker(blocks, torch.randn(1, 200, 4))
    picker.token = 100
    rows = picker.numbers()
    assert (len(rows), rows[0]["token"], rows[-1]["token"]) == (64, "68", "131")
    assert list(rows[0])[1] == "0"
    assert list(rows[0])[-1] == "39"
    assert len(rows[0]) == 17


def test_closed_it_lets_go(picker: TokenPicker) -> None:
    picker.close()
    assert repr(picker) == "TokenPicker closed"


def test_a_language_model_that_has_learned() -> None:
    model = samples.story_lm()
    tokens = samples.story_tokens("the dogs near the cat")
    with hookscope.capture(model, "blocks.0") as seen:
        model(tokens)
    picker = TokenPicker(model, tokens, tokens=samples.story_words(tokens), vocabulary=samples.STORY_WORDS)
    assert picker.reading.verified
    before, after = (row for row in picker.predictions() if row["after"] == "MLP")
    many = {"run", "sleep", "sing", "wait"}
    assert {after[str(rank)] for rank in range(1, 5)} == many
    assert not {before[str(rank)] for rank in range(1, 5)} & many
    with torch.no_grad():
        chances = model.head(model.norm(seen["blocks.0"].output))[0, -1].softmax(-1)
    assert before["1"] == samples.STORY_WORDS[int(chances.argmax())]
    looks = {}
    for head in range(4):
        picker.head = head
        looks[head] = picker._tokens[max(range(6), key=picker._weights.__getitem__)]
    assert looks[0] == "dogs"
    assert looks[3] == "near"


STORY = {"tokenizer": samples.story_tokens, "vocabulary": samples.STORY_WORDS}


def test_attention_and_mlp_are_shown_apart() -> None:
    model, tokens = samples.story_lm(), samples.story_tokens("the dogs near the cat")
    with hookscope.capture(model, "blocks.?.attn", "blocks.?.mlp", "blocks.?.norm2", inputs=True) as seen:
        model(tokens)
    picker = TokenPicker(model, "the dogs near the cat", **STORY)
    for show, part in (("attention", "attn"), ("MLP", "mlp")):
        picker.show = show
        for block in range(2):
            wanted = seen[f"blocks.{block}.{part}"].output[0].norm(dim=-1)
            found = [row[f"blocks.{block}"] for row in picker.numbers()]
            assert found == pytest.approx(wanted.tolist(), rel=1e-4)
    between, _ = (row for row in picker.predictions() if row["layer"] == "blocks.1")
    with torch.no_grad():
        chances = model.head(model.norm(seen["blocks.1.norm2"].args[0]))[0, -1].softmax(-1)
    assert between["after"] == "attention"
    assert between["1"] == samples.STORY_WORDS[int(chances.argmax())]
    assert between["1 probability"] == pytest.approx(chances.max().item(), rel=1e-4)
    assert [label for _, label, _ in picker._predictions] == [
        f"blocks.{block} {part}" for block in range(2) for part in ("attention", "MLP")
    ]
    assert "attention adds" in picker._description


def test_what_does_not_add_up_is_not_shown_apart(picker: TokenPicker) -> None:
    after_norm = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    blocks = nn.TransformerEncoder(after_norm, num_layers=2, enable_nested_tensor=False)
    for each in (picker, TokenPicker(blocks, torch.randn(1, 4, 16))):
        assert not {"attention", "MLP"} & {name for name, _ in each._shows}
        with pytest.raises(ValueError, match="do not return the sum of their input"):
            each.show = "MLP"
    before_norm = nn.TransformerEncoderLayer(16, 2, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(before_norm, num_layers=2, enable_nested_tensor=False)
    assert "MLP" in dict(TokenPicker(blocks, torch.randn(1, 4, 16))._shows)


def test_a_text_is_read_from_python_and_from_the_page() -> None:
    picker = TokenPicker(samples.story_lm(), "the dogs near the cat", **STORY)
    alone = TokenPicker(samples.story_lm(), "Mary gave Leo the ball to", **STORY)
    picker.token, picker.head, picker.show = 2, 3, "norm"
    picker.text = "Mary gave Leo the ball to"
    assert picker._tokens == ["<start>", "Mary", "gave", "Leo", "the", "ball", "to"]
    assert (picker.token, picker.layer, picker.head, picker.show) == (6, "blocks.1", 3, "norm")
    assert torch.equal(picker.reading.norm, alone.reading.norm)
    assert picker.predictions() == alone.predictions()
    picker.set_state({"text": " the dog near the cats ", "_request": 1})
    assert (picker.text, picker.token, picker.problem) == ("the dog near the cats", 5, "")
    assert [row["token"] for row in picker.numbers()][2] == "2 dog"


def test_a_text_that_cannot_be_read_leaves_the_one_before() -> None:
    picker = TokenPicker(samples.story_lm(), "the dogs near the cat", **STORY)
    before = picker.get_state(["_tokens", "_predictions", "text"])
    picker.set_state({"text": "the wolves near the cat", "_request": 1})
    assert "'wolves' is not in the vocabulary" in picker.problem
    picker.set_state({"text": " ".join(["dogs"] * 60), "_request": 2})
    assert "at most 40" in picker.problem
    assert picker.get_state(["_tokens", "_predictions", "text"]) == before
    picker.set_state({"text": "the cats near the dog", "_request": 3})
    assert (picker.problem, picker._tokens[2]) == ("", "cats")
    with pytest.raises(ValueError, match="the text is empty"):
        picker.text = " "
    with pytest.raises(ValueError, match="not in the vocabulary"):
        picker.text = "the wolves"


def test_only_with_a_tokenizer_there_is_a_text(picker: TokenPicker) -> None:
    assert not picker._reads
    with pytest.raises(ValueError, match="no tokenizer"):
        picker.text = "the cat"
    for wrong in ((READER_IDS,), (), ("the", "cat")):
        with pytest.raises(TypeError, match="with tokenizer=, pass a text"):
            TokenPicker(samples.story_lm(), *wrong, **STORY)


class Pieces:
    """What a tokenizer of the library transformers does."""

    def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        return {"ids": torch.tensor([[READER_WORDS.index(word) for word in text.split()]])}

    def convert_ids_to_tokens(self, number: int) -> str:
        return "Ġ" + READER_WORDS[number]  # Ġ is a space before the word

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).removeprefix("Ġ")


def test_a_tokenizer_of_transformers_gives_inputs_and_words() -> None:
    picker = TokenPicker(Reader(), "the cat sat", tokenizer=Pieces())
    assert picker._tokens == ["the", "cat", "sat"]
    picker.text = "it purred ."
    assert picker._tokens == ["it", "purred", "."]
    assert picker.predictions()[-1]["1"] in READER_WORDS
