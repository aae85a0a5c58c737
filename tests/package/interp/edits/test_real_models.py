"""A model of transformers has hooks of its own, which come before those of an edit."""

from __future__ import annotations

import torch

from hookscope import edit
from tests.shared.language import gpt2


def test_hidden_states_of_transformers_are_those_before_the_edit_once_its_hooks_are_on() -> None:
    model, tokens = gpt2(), torch.arange(6)[None]
    with torch.no_grad():
        plain = model(tokens, output_hidden_states=True)
        with edit(model) as e:
            e.scale("transformer.h.0", 2.0)
            edited = model(tokens, output_hidden_states=True)
    assert torch.equal(edited.hidden_states[1], plain.hidden_states[1])
    assert not torch.allclose(edited.logits, plain.logits)
