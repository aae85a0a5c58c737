"""Results are bit for bit the same with a recording, except for what is documented."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookscope.recordings.record import record
from tests.shared.recorded import NESTED_FORWARD, Heads, ToDict, Twice, nested, ones


class Kwargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, *, scale):
        return {"a": self.fc(x) * scale, "b": None}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.5, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        output, (h, _) = self.lstm(x[:, None].expand(-1, 3, -1))
        return self.fc(output), h


MODELS = {
    "mlp": nested,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
    "batchnorm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(2)
    ),
    "lstm": Recurrent,
    "dict": ToDict,
    "kwargs": Kwargs,
    "twice": Twice,
    "heads": Heads,
    "frozen": lambda: nested().requires_grad_(False),
    "eval": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).eval(),
}


def flat(value):
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flat(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in flat(item)]
    return [value]


@pytest.mark.parametrize("grad", [True, False], ids=["input requires grad", "plain input"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_bit_for_bit_the_same(name, grad):
    torch.manual_seed(1)
    plain = MODELS[name]()
    if name == "conv":
        plain(torch.randn(2, 4))
        plain.zero_grad()
    recorded = copy.deepcopy(plain)
    data = torch.randn(6, 4)
    kwargs = {"scale": torch.tensor(3.0)} if name == "kwargs" else {}

    def run(model, **options):
        torch.manual_seed(7)
        x = data.clone().requires_grad_(grad)

        def steps():
            outputs = []
            for _ in range(2):
                new = [t for t in flat(model(x, **kwargs)) if t is not None]
                outputs += new
                loss = sum((output**2).sum() for output in new)
                if loss.requires_grad:
                    loss.backward()
            return outputs

        if options:
            with record(model, **options["options"]) as recording:
                outputs = steps()
            assert len(recording.events) > 3
        else:
            outputs = steps()
        return (
            outputs,
            [x.grad, *(p.grad for p in model.parameters())],
            list(model.buffers()),
            torch.get_rng_state(),
            [(m.training, m._is_full_backward_hook) for m in model.modules()],
            [(t.requires_grad, t.is_leaf) for t in (x, *outputs, *model.parameters())],
        )

    expected, actual = run(plain), run(recorded, options={"parameters": True})
    for left, right in zip(expected[:3], actual[:3], strict=True):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(expected[3], actual[3])
    assert expected[4:] == actual[4:]


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, unused):
        return self.fc(x)


def test_what_full_backward_hooks_do_change_is_as_documented():
    model = Unused()
    for kinds, zeros in [(None, True), (("forward_pre", "forward"), False)]:
        x, unused = ones(1, 4), ones(1, 4)
        with record(model, kinds=kinds):
            y = model(x, unused)
            y.sum().backward()
        assert (unused.grad is not None) is zeros
        assert y._is_view() is zeros

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return self.a(x) + self.b(x)

    class Wider(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = Sum()

        def forward(self, x):
            return self.sum(x) + self.sum.c(x)

    torch.manual_seed(0)
    model, x = Wider(), torch.randn(5, 16, requires_grad=True)

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
        x = ones(2)
        layer._replicate_for_data_parallel()(x).sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert recording.events == ()


def test_no_grad_and_inference_mode():
    model = nested()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), record(model) as recording:
            y = model(torch.ones(1, 4))
        assert not y.requires_grad
        assert recording.order() == NESTED_FORWARD


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nested()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = Net()
    x = ones(2, 4)
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


def test_the_fused_encoder_path_is_noted():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad(), record(layer) as recording:
        layer(torch.ones(1, 3, 8))
    (note,) = recording.notes
    assert note.startswith("Hooks switch off the fused path of layer (root) (TransformerEncoderLayer)")
    assert recording.uncalled == ("self_attn.out_proj",)


@pytest.mark.parametrize("make", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_what_attention_may_round_differently_is_said(make):
    """The views that full backward hooks make of one tensor are several tensors, and not attention with itself."""
    torch.manual_seed(0)
    layer, x = make(64, 4, dropout=0.0, batch_first=True), torch.randn(4, 33, 64)
    given = (x,) if make is nn.TransformerEncoderLayer else (x, x + 1)
    expected = layer(*given)
    with record(layer) as recording:
        found = layer(*given)
    assert torch.allclose(found, expected, atol=1e-5)
    said = [note for note in recording.notes if "received the same tensor several times" in note]
    assert said[0].startswith("Layer self_attn (MultiheadAttention)")
    with record(layer, kinds=("forward_pre", "forward")) as recording:
        assert torch.equal(layer(*given), expected)
    assert not recording.notes


class Same(nn.Module):
    def forward(self, q, k):
        return q * 2 if q is k else q * 3


class First(nn.Module):
    def forward(self, a, b):
        return 2 * a


class LeavesOneOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = First()
        self.w, self.unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.first(x * self.w, self.unused)


FORWARD = {"kinds": ("forward_pre", "forward")}


@pytest.mark.parametrize(("options", "found"), [({}, 3), (FORWARD, 2)], ids=["backward hooks", "forward hooks"])
def test_where_inputs_are_told_apart_full_backward_hooks_make_a_difference(options, found):
    net, x = Same(), ones(1)
    assert net(x, x) == 2
    with record(net, **options):
        assert net(x, x) == found


@pytest.mark.parametrize(("options", "grad"), [({}, 0), (FORWARD, None)], ids=["backward hooks", "forward hooks"])
def test_an_unused_input_gets_zeros_from_full_backward_hooks_and_a_step_of_its_own(options, grad):
    net = LeavesOneOut()
    step = torch.optim.AdamW(net.parameters(), lr=0.1)
    with record(net, **options):
        net(ones(1)).sum().backward()
    step.step()
    assert (net.unused.grad if grad is None else net.unused.grad.item()) == grad
    assert net.unused.item() == 1 if grad is None else net.unused.item() < 1


def test_a_sample_that_is_all_padding_is_nan_without_hooks_alone():
    layer, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 6, 32)
    padding = torch.tensor([[False] * 6, [True] * 6])
    with torch.no_grad():
        assert layer(x, src_key_padding_mask=padding)[1].isnan().all()
        with record(layer, **FORWARD):
            assert not layer(x, src_key_padding_mask=padding)[1].isnan().any()
