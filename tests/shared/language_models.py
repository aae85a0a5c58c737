"""Small language models with random weights: one written by hand, those of transformers, and a ViT of torchvision."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IDS = torch.tensor([[5, 3, 9, 1, 7], [2, 8, 8, 4, 6]])


def gpt2(**more: Any) -> nn.Module:
    """GPT-2: 2 layers of 2 heads, 16 wide."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 20, "n_positions": 32} | more
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)).eval()


def llama(**more: Any) -> nn.Module:
    """Llama: 2 layers of 4 heads that share 2 heads of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16} | more
    config = LlamaConfig(
        vocab_size=20, intermediate_size=32, max_position_embeddings=32, pad_token_id=0, bos_token_id=0, **sizes
    )
    return LlamaForCausalLM(config).eval()


def bert() -> nn.Module:
    """BERT: 1 layer of 2 heads."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertModel(BertConfig(vocab_size=20, **sizes)).eval()


def t5() -> nn.Module:
    """T5: an encoder and a decoder of 2 blocks."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return T5ForConditionalGeneration(config).eval()


def small_vit() -> nn.Module:
    """ViT: 2 layers of 4 heads, 32 wide, for images of 32×32."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(32, 16, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=3).eval()
    nn.init.normal_(model.heads.head.weight)  # type: ignore[union-attr, arg-type]
    return model


def generate(model: nn.Module, tokens: int, ids: Tensor = IDS, **more: Any) -> Any:
    """Generate greedily, as many tokens as asked for; sequences and the logits of each step."""
    with torch.no_grad():
        return model.generate(  # type: ignore[operator]
            ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True, attention_mask=torch.ones_like(ids), **more,
        )  # fmt: skip


# --- written by hand, for the lenses and the token picker

READER_WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "purred", "."]


class Head(nn.Module):
    """One head, whose output is narrower than its input."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.qkv = nn.Sequential(nn.Linear(width, 3 * size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]


class Block(nn.Module):
    """Five heads in a list, more than the model has blocks, and two layers."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(Head(width, width // 5) for _ in range(5))
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        normed = self.norm(x)
        x = x + torch.cat([head(normed) for head in self.heads], -1)
        return x + self.mlp(x), None


class Reader(nn.Module):
    """Words and positions, three blocks that return tuples, a norm and a head without bias.

    Args:
        shared: one block, called three times.
        cap: squash the logits, as Gemma does, which no module shows.

    """

    def __init__(self, shared: bool = False, cap: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(len(READER_WORDS), 20), nn.Embedding(40, 20)
        self.blocks = nn.ModuleList([Block()] if shared else [Block() for _ in range(3)])
        self.calls = 3 if shared else 1
        self.norm = nn.LayerNorm(20)
        self.head = nn.Linear(20, len(READER_WORDS), bias=False)
        self.cap = cap
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in [*self.blocks] * self.calls:
            x, _ = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.tanh() if self.cap else logits


READER_IDS = torch.tensor([[0, 1, 2, 3, 4, 5], [4, 1, 6, 7, 8, 9]])
