"""The calls of a layer stacked, and joined along the sequence; what does not go together is refused with a reason."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from hookscope import capture
from hookscope.captures import NotCapturedError
from tests.shared.awkward import Do


def test_stacked_in_the_order_of_the_calls():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    xs = [torch.randn(3, 2) for _ in range(4)]
    with capture(net) as seen:
        for x in xs:
            net(x)
    whole = torch.stack([net[0](x) for x in xs])
    assert torch.equal(seen["0"].stack(), whole)
    assert torch.equal(seen["0#2"].stack(), whole[1:2])
    assert seen["1"].stack().shape == (4, 3, 2)


def test_stacked_in_the_outputs_structure():
    net = nn.LSTM(2, 3)
    xs = [torch.randn(5, 1, 2) for _ in range(2)]
    with capture(net) as seen:
        outputs = [net(x) for x in xs]
    y, (h, c) = seen[""].stack()
    assert (y.shape, h.shape, c.shape) == ((2, 5, 1, 3), (2, 1, 1, 3), (2, 1, 1, 3))
    assert torch.equal(y, torch.stack([y for y, _ in outputs]))
    assert torch.equal(c, torch.stack([c for _, (_, c) in outputs]))
    assert torch.equal(seen[""].stack(part=0), y)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([torch.ones(2, 3), torch.ones(2, 4)], r"differ in shape: \(root\) has \(2, 3\), \(root\)#2 has \(2, 4\)"),
        ([torch.ones(2), torch.ones(2).half()], "differ in dtype"),
        ([torch.ones(2), (torch.ones(2),)], "differ in structure"),
        ([(torch.ones(2), 1), (torch.ones(2), 2)], "differ in structure"),
        ([3, 3], "no tensor to stack"),
    ],
)
def test_what_does_not_stack(outputs, said):
    waiting = iter(outputs)
    net = Do(lambda: next(waiting))
    with capture(net) as seen:
        [net() for _ in outputs]
    with pytest.raises(NotCapturedError, match=said):
        seen[""].stack()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=None, pad_token_id=0)).eval()


IDS = torch.arange(1, 9).reshape(2, 4)  # 0 pads


@pytest.fixture(scope="module")
def generated():
    net = gpt2()
    with capture(net, "transformer.h.1", "transformer.h.1.attn", "transformer.h.1.mlp") as seen:
        ids = net.generate(IDS, max_new_tokens=4, do_sample=False)
    return net, ids, seen


def test_generated_passes_join_to_what_one_pass_over_all_tokens_gives(generated):
    net, ids, seen = generated
    assert ids.shape == (2, 8)
    with capture(net, "transformer.h.1", "transformer.h.1.attn", "transformer.h.1.mlp") as whole, torch.no_grad():
        net(ids[:, :-1])
    joined = seen["transformer.h.1.mlp"].join(dim=1)
    assert joined.shape == (2, 7, 16)
    assert torch.allclose(joined, whole["transformer.h.1.mlp"].output, atol=1e-5)
    attn = whole["transformer.h.1.attn"].output
    assert torch.allclose(seen["transformer.h.1.attn"].join(part=0), attn[0], atol=1e-5)
    with pytest.raises(NotCapturedError, match=r"returned a tuple, not one tensor: say which, as part=0, 1"):
        seen["transformer.h.1.attn"].join()
    with pytest.raises(NotCapturedError, match="no part=7"):
        seen["transformer.h.1.attn"].join(part=7)
    with pytest.raises(NotCapturedError, match="shape beside dim=0"):
        seen["transformer.h.1.mlp"].join(dim=0)
    with pytest.raises(NotCapturedError, match="dim=3"):
        seen["transformer.h.1.mlp"].join(dim=3)
    copied = pickle.loads(pickle.dumps(seen))
    assert torch.equal(copied["transformer.h.1.mlp"].join(), joined)


def test_without_a_cache_it_is_refused():
    net = gpt2()
    with capture(net, "transformer.h.1.mlp") as seen:
        net.generate(IDS, max_new_tokens=3, do_sample=False, use_cache=False)
    with pytest.raises(NotCapturedError, match=r"grow along dim=1, 4, 5 ... 6: .*without a KV cache"):
        seen["transformer.h.1.mlp"].join()


def test_beams_are_refused_also_where_no_shape_tells():
    net = gpt2()
    with capture(net, "transformer.h.1.mlp") as seen:
        net.generate(IDS, max_new_tokens=3, num_beams=2, do_sample=False)
    with pytest.raises(NotCapturedError, match=r"generate\(\) in beam_search, where rows change places"):
        seen["transformer.h.1.mlp"].join()
    assert seen["transformer.h.1.mlp"].calls[0].decoding == "_beam_search"


def test_two_calls_in_one_pass_are_refused():
    relu = nn.ReLU()
    net = nn.Sequential(relu, relu)
    with capture(net) as seen:
        net(torch.ones(1, 2, 3))
    with pytest.raises(NotCapturedError, match="several times in one pass"):
        seen["0"].join()


class CallsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self.layer(x) if not depth else self(self.layer(x), depth - 1)


def test_a_model_that_calls_itself_runs_one_pass() -> None:
    net = CallsItself()
    with capture(net) as seen:
        for _ in range(2):
            net(torch.ones(1, 2, 4))
    assert [call.run for call in seen.calls] == [1] * 4 + [2] * 4
    with pytest.raises(NotCapturedError, match="called several times in one pass"):
        seen["layer"].join(dim=1)


def test_layers_nested_deeply_are_captured_where_plain_hooks_are() -> None:
    net: nn.Module = nn.Linear(4, 4)
    for _ in range(225):
        net = nn.Sequential(net)
    with capture(net) as seen:
        y = net(torch.ones(1, 4))
    assert torch.equal(seen.calls[0].output, y)
