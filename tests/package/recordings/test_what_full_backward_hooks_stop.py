"""Where full backward hooks stop a model, a recording explains it."""

import pytest
import torch
from torch import nn

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
            "inside layer 1 (ReLU), after layer 0 (Linear) returned: they turn",
        ),
        (
            lambda: nn.Sequential(Residual(), nn.ReLU()),
            "inside layer 0 (Residual), after layer 0.norm (LayerNorm) returned: they turn",
        ),
        (
            lambda: nn.Sequential(nn.ReLU(), Returns()),
            "inside layer (root) (Sequential), after layer 1 (Returns) returned: they cannot rebuild",
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
    assert "layer fc (Linear) was called with keyword arguments only: its full backward hooks get ()" in (
        repr(recording)
    )
    with record(net, "fc", kinds="forward") as recording:
        net(torch.ones(1, 2))
    assert not recording.notes
