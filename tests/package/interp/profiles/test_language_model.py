"""The memory that a language model of transformers takes, forward and backward, is what torch.profiler finds."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity

from hookscope import profile


def test_memory_of_a_language_model_is_that_of_the_profiler():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_positions=64)).eval()
    ids = torch.randint(0, 100, (4, 32))
    model(ids, use_cache=False).logits.sum().backward()  # the first time takes long, and memory for good
    model.zero_grad()
    costs = profile(model, ids, loss=lambda output: output.logits.sum(), repeats=3, kwargs={"use_cache": False})
    watched = {"activities": [ProfilerActivity.CPU], "profile_memory": True}
    with torch.profiler.profile(**watched) as forward:
        logits = model(ids, use_cache=False).logits
    total = logits.sum()
    with torch.profiler.profile(**watched) as found:
        total.backward()
    # What is left after forward is what autograd has saved, and the output.
    kept = sum(event.self_cpu_memory_usage for event in forward.events()) - logits.nbytes
    assert costs[""].saved == pytest.approx(kept, rel=0.01)
    # Backward gives it back, and leaves the gradients of the parameters.
    left = sum(event.self_cpu_memory_usage for event in found.events())
    grads = sum(parameter.grad.nbytes for parameter in model.parameters())
    assert grads - costs[""].saved == pytest.approx(left, rel=0.01 if torch.__version__ >= (2, 9) else 0.05)
    made = sum(max(event.self_cpu_memory_usage, 0) for event in found.events())
    assert grads < costs[""].gradients <= made  # which has what an operation needs meanwhile, too
    assert sum(costs[name].saved for name in ("transformer.h.0", "transformer.h.1")) > 0.8 * costs[""].saved
