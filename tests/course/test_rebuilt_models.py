"""What chapter 16 says of libraries that rebuild a model: which number a hook sees, and what is left of it."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hookscope import census
from tests.shared.language import gpt2


def test_a_hook_from_before_lora_stays_on_the_old_layer():
    net, seen = nn.Sequential(nn.Linear(1, 1, bias=False)), []
    nn.init.constant_(net[0].weight, 3.0)
    old = net[0]
    old.register_forward_hook(lambda module, args, output: seen.append(output.item()))
    adapted = get_peft_model(net, LoraConfig(r=1, lora_alpha=1, target_modules=["0"]))
    nn.init.constant_(net[0].lora_A.default.weight, 2.0)
    nn.init.constant_(net[0].lora_B.default.weight, 5.0)
    assert net[0].base_layer is old
    assert adapted(torch.ones(1, 1)).item() == 13
    assert seen == [3], "without LoRA's part, 2 · 5"
    merged = adapted.merge_and_unload()
    assert merged[0] is old
    assert merged(torch.ones(1, 1)).item() == 13
    assert seen == [3, 13]


def test_all_hooks_include_the_one_of_the_library():
    gpt = gpt2()
    embedding = gpt.transformer.wte.requires_grad_(False)
    gpt.enable_input_require_grads()
    assert [entry.layer for entry in census(gpt)] == ["transformer.wte"]
    assert embedding(torch.tensor([1])).requires_grad
    census(gpt).remove_all()
    assert not embedding(torch.tensor([1])).requires_grad
