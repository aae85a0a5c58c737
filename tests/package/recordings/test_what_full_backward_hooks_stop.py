"""Where full backward hooks stop a model, a recording explains it."""

import pytest
import torch
from torch import nn

from hookscope import capture
from hookscope.recordings.record import FullBackwardHookError, record
from tests.shared.recorded import hooks_on, ones


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        out = self.norm(self.fc(x))
        out += x
        return out


class Returns(nn.Module):
    def forward(self, x):
        return torch.max(x, 1)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
            "inside layer 1 (ReLU), after layer 0 (Linear) returned: these hooks turn",
        ),
        (
            lambda: nn.Sequential(Residual(), nn.ReLU()),
            "inside layer 0 (Residual), after layer 0.norm (LayerNorm) returned: these hooks turn",
        ),
        (
            lambda: nn.Sequential(nn.ReLU(), Returns()),
            "inside layer (root) (Sequential), after layer 1 (Returns) returned: these hooks cannot rebuild",
        ),
    ],
)
def test_what_full_backward_hooks_cannot_do_is_explained(make, place):
    model = make()
    before = hooks_on(model)
    with pytest.raises(FullBackwardHookError) as caught, record(model) as recording:
        model(ones(2, 4))
    assert isinstance(caught.value, RuntimeError)
    assert place in str(caught.value)
    assert 'kinds=("forward_pre", "forward")' in str(caught.value)
    assert caught.value.__cause__ is not None
    assert hooks_on(model) == before
    assert "forward_pre (root)" in recording.order()
    with record(model, kinds=("forward_pre", "forward")) as recording:
        model(ones(2, 4))
    assert recording.order()[-1] == "forward (root)"


def test_leaving_out_the_layers_named_helps():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    with record(model, "2", "") as recording:
        model(ones(2, 4)).sum().backward()
    assert recording.order("full_backward") == ["full_backward 2", "full_backward (root)"]


def test_in_place_on_the_output_outside_any_layer_and_under_torch_func():
    layer = nn.Linear(4, 4)
    with pytest.raises(FullBackwardHookError, match=r"with-block, after layer \(root\)"), record(layer):
        layer(ones(1, 4)).add_(1)
    with pytest.raises(FullBackwardHookError, match=r"torch\.func\. Record with kinds"), record(layer):
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(1, 4))


class Writes(nn.Module):
    """Changes what its layer returned, through a view of it."""

    def __init__(self, write):
        super().__init__()
        self.fc, self.write = nn.Linear(4, 4), write

    def forward(self, x):
        y = self.fc(x)
        self.write(y)
        return y


THROUGH_A_VIEW = {
    "setitem": lambda y: y.__setitem__((slice(None), 0), 0),
    "slice": lambda y: y[:, :2].mul_(2),
    "transpose": lambda y: y.transpose(0, 1).masked_fill_(torch.ones(4, 2, dtype=torch.bool), 0),
    "view": lambda y: y.view(-1).relu_(),
    "view of a view": lambda y: y[None].permute(2, 1, 0)[0].zero_(),
    "as_strided": lambda y: y.as_strided((2,), (1,)).zero_(),
    "diagonal": lambda y: y.diagonal().fill_(1),
}


@pytest.mark.parametrize("write", THROUGH_A_VIEW.values(), ids=THROUGH_A_VIEW)
def test_a_write_through_a_view_is_explained(write):
    model = Writes(write)
    before = hooks_on(model)
    with (
        pytest.raises(FullBackwardHookError, match=r"after layer fc \(Linear\)"),
        record(model),
    ):
        model(ones(2, 4)).sum().backward()
    assert hooks_on(model) == before
    with record(model, kinds=("forward_pre", "forward")):
        model(ones(2, 4)).sum().backward()
    model.fc.register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError) as caught, capture(model):
        model(ones(2, 4))
    assert any("a full backward hook sits on layer 'fc'" in note for note in caught.value.__notes__)


class AsItWas(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize(
    ("write", "said"),
    [(lambda y: AsItWas.apply(2 * y).add_(1), "AsItWas"), (lambda y: (2 * y).unbind()[0].add_(1), "Unbind")],
    ids=["of an autograd function", "of several views"],
)
def test_a_write_that_torch_refuses_without_hooks_too_is_torchs(write, said):
    model = Writes(write)
    with pytest.raises(RuntimeError, match=said) as caught, record(model):
        model(ones(2, 4))
    assert not isinstance(caught.value, FullBackwardHookError)


def test_an_error_explained_once_stays_so_and_others_pass():
    model = nn.Sequential(nn.ReLU(), Returns())
    with pytest.raises(FullBackwardHookError) as caught, record(model), record(model):
        model(ones(2, 4))
    assert type(caught.value.__cause__) is TypeError
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    model.register_full_backward_hook(lambda *args: None)
    model[0].register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError) as caught, record(model, kinds="forward"):
        model(ones(2, 4))
    assert type(caught.value) is RuntimeError


def test_a_layer_called_with_keyword_arguments_only_is_said_to_get_an_empty_grad_input():
    net = nn.Module()
    net.fc = nn.Linear(2, 2)
    net.forward = lambda x: net.fc(input=x)
    with record(net, "fc") as recording:
        net(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert recording.events[-1].given == "grad_input ()"
    assert "Layer fc (Linear) was called with keyword arguments only, so its full backward hooks get ()" in (
        repr(recording)
    )
    with record(net, "fc", kinds="forward") as recording:
        net(torch.ones(1, 2))
    assert not recording.notes
