"""Results are bit for bit the same with a recording, except for what is documented."""

import pytest
import torch
from torch import nn

from hookscope.recordings.record import record
from tests.shared.awkward_models import Net
from tests.shared.networks import make_checkpointed
from tests.shared.recording_helpers import make_nested, make_ones


def test_what_full_backward_hooks_do_change_is_as_documented():
    model = Net(lambda self, x, unused: self.fc(x), fc=nn.Linear(4, 2))
    for kinds, zeros in [(None, True), (("forward_pre", "forward"), False)]:
        x, unused = make_ones(1, 4), make_ones(1, 4)
        with record(model, kinds=kinds):
            y = model(x, unused)
            y.sum().backward()
        assert (unused.grad is not None) is zeros
        assert y._is_view() is zeros

    torch.manual_seed(0)
    part = Net(lambda self, x: self.a(x) + self.b(x), **{name: nn.Linear(16, 16) for name in "abc"})
    model = Net(lambda self, x: self.sum(x) + self.sum.c(x), sum=part).double()
    x = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)  # a sum in another order differs by less than 1e-8

    def gradient(**options):
        x.grad = None
        with record(model, **options):
            model(x * 2).pow(2).sum().backward()
        return x.grad

    exact = gradient(kinds=("forward_pre", "forward"))
    assert torch.allclose(gradient(), exact)
    x.grad = None
    model(x * 2).pow(2).sum().backward()
    assert torch.equal(x.grad, exact)


def test_a_replica_that_shares_its_hooks_runs_unrecorded():
    layer = nn.ReLU()
    with record(layer) as recording:
        x = make_ones(2)
        layer._replicate_for_data_parallel()(x).sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert recording.events == ()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model = make_checkpointed(make_nested(), reentrant)
    x = make_ones(2, 4)
    model(x).sum().backward()
    expected, x.grad = x.grad, None
    with record(model) as recording:
        loss = model(x).sum()
        loss.backward()
    assert torch.equal(x.grad, expected)
    assert "forward_pre block #2" in recording.order()
    x.grad = None
    with record(model, kinds=("forward_pre", "forward")) as recording:
        loss = model(x).sum()
    loss.backward()  # computes again without the hooks
    assert torch.equal(x.grad, expected)


def test_what_attention_may_round_differently_is_said():
    """The views that full backward hooks make of one tensor are several tensors, and not attention with itself."""
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True), torch.randn(4, 33, 64)
    expected = layer(x)
    with record(layer) as recording:
        found = layer(x)
    assert torch.allclose(found, expected, atol=1e-5)
    said = [note for note in recording.notes if "received the same tensor several times" in note]
    assert said[0].startswith("Layer self_attn (MultiheadAttention)")
    with record(layer, kinds=("forward_pre", "forward")) as recording:
        assert torch.equal(layer(x), expected)
    assert not recording.notes


FORWARD = {"kinds": ("forward_pre", "forward")}


def test_a_sample_that_is_all_padding_is_nan_without_hooks_alone():
    layer, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 6, 32)
    padding = torch.tensor([[False] * 6, [True] * 6])
    with torch.no_grad():
        assert layer(x, src_key_padding_mask=padding)[1].isnan().all()
        with record(layer, **FORWARD):
            assert not layer(x, src_key_padding_mask=padding)[1].isnan().any()
