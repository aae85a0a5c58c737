"""Small models of transformers, and a ViT of torchvision, with random weights, made from their configurations."""

from __future__ import annotations

from typing import Any

import torch
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
