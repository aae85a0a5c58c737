"""The code that `explain` writes, run on models of transformers and on results that are no plain tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import capture, edit, explain
from tests.shared.awkward import difference
from tests.shared.explained import checked, run
from tests.shared.language import IDS, bert, gpt2, t5

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def dpr() -> nn.Module:
    from transformers import DPRConfig, DPRContextEncoder

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return DPRContextEncoder(DPRConfig(vocab_size=20, **sizes)).eval()


def test_a_result_with_a_field_that_must_be_given() -> None:
    net = dpr()
    with capture(net, "") as seen:
        net(IDS)
    found = run(checked(seen), net, (IDS,))["outputs"][""][0]
    assert type(found) is type(seen[""].output)
    assert torch.equal(found.pooler_output, seen[""].output.pooler_output)


@dataclass
class Result:
    values: Tensor
    number: int = 3


class Wrapped(nn.Module):
    def __init__(self, last: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.last = nn.Linear(2, 2), last

    def forward(self, x: Tensor) -> Any:
        return self.last(self.line(x))


LAST = {
    "a dataclass": lambda x: Result(x),
    "a dataclass in a list": lambda x: [Result(x), 1],
    "a complex tensor": lambda x: x.to(torch.complex64) * (1 + 1j),
}


@pytest.mark.parametrize("what", LAST)
def test_what_the_model_makes_of_its_layers_outputs_is_the_loss(what: str) -> None:
    net, x = Wrapped(LAST[what]), torch.ones(1, 2)
    with capture(net, gradients=True) as seen:
        y = net(x)
        y = y[0] if isinstance(y, list) else y
        (y.values if isinstance(y, Result) else y).sum().real.backward()
    assert torch.equal(run(checked(seen), net, (x,))["grads"]["line"][0], seen["line"].grad)


@pytest.mark.parametrize("make", [bert, gpt2])
def test_keyword_arguments(make: Any) -> None:
    net, given = make(), {"input_ids": IDS, "attention_mask": MASK}
    with torch.no_grad(), capture(net, inputs=True) as seen:
        net(**given)
    outputs = run(checked(seen), net, given)["outputs"]
    for call in seen.calls:
        assert not difference(outputs[call.layer][call.number - 1], call.output, call.label)

    layer = "encoder.layer.0.output" if make is bert else "transformer.h.1.mlp"
    with torch.no_grad(), edit(net) as e:
        e.scale(layer, 0.5)
        result = net(**given)
    assert torch.equal(run(checked(e), net, given)["result"][0], result[0])


def test_two_inputs_of_t5_by_name_and_gradients() -> None:
    net, given = t5(), {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}
    with capture(net, "encoder.block.*", "lm_head", gradients=True) as seen:
        output = net(**given)
        sum(t.sum() for t in (output.logits, output.encoder_last_hidden_state)).backward()
    found = run(checked(seen), net, given)
    for name in ("encoder.block.0", "lm_head"):
        assert not difference(found["outputs"][name][0], seen[name].output, name)
    assert found["grads"]["lm_head"] is not None


def test_a_model_of_one_input_is_called_by_place() -> None:
    assert "model(*inputs)\n" in str(explain(capture(nn.Sequential(nn.Linear(2, 2)))))
    assert "isinstance(inputs, dict)" not in str(explain(capture(nn.Sequential(nn.Linear(2, 2)))))
