"""Where full backward hooks stop a model, a recording explains it."""

import pytest
import torch
from torch import nn

from hookscope import capture
from hookscope.recordings.record import FullBackwardHookError, record
from tests.shared.awkward_models import Do, Net
from tests.shared.recording_helpers import list_hooks, make_ones


def test_leaving_out_the_layers_named_helps():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    with record(model, "2", "") as recording:
        model(make_ones(2, 4)).sum().backward()
    assert recording.order("full_backward") == ["full_backward 2", "full_backward (root)"]


def writes(write):
    """Build a model that changes what its layer returned, through a view of it."""

    def run(self, x):
        y = self.fc(x)
        write(y)
        return y

    return Net(run, fc=nn.Linear(4, 4))


THROUGH_A_VIEW = {
    "setitem": lambda y: y.__setitem__((slice(None), 0), 0),
    "view of a view": lambda y: y[None].permute(2, 1, 0)[0].zero_(),
    "as_strided": lambda y: y.as_strided((2,), (1,)).zero_(),
}


@pytest.mark.parametrize("write", THROUGH_A_VIEW.values(), ids=THROUGH_A_VIEW)
def test_a_write_through_a_view_is_explained(write):
    model = writes(write)
    before = list_hooks(model)
    with pytest.raises(FullBackwardHookError, match=r"after layer fc \(Linear\)"), record(model):
        model(make_ones(2, 4)).sum().backward()
    assert list_hooks(model) == before
    with record(model, kinds=("forward_pre", "forward")):
        model(make_ones(2, 4)).sum().backward()
    model.fc.register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError) as caught, capture(model):
        model(make_ones(2, 4))
    assert any("a full backward hook on layer 'fc'" in note for note in caught.value.__notes__)


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
    model = writes(write)
    with pytest.raises(RuntimeError, match=said) as caught, record(model):
        model(make_ones(2, 4))
    assert not isinstance(caught.value, FullBackwardHookError)


def test_an_error_explained_once_stays_so_and_others_pass():
    model = nn.Sequential(nn.ReLU(), Do(lambda x: torch.max(x, 1)))
    with pytest.raises(FullBackwardHookError) as caught, record(model), record(model):
        model(make_ones(2, 4))
    assert type(caught.value.__cause__) is TypeError
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    model.register_full_backward_hook(lambda *args: None)
    model[0].register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError) as caught, record(model, kinds="forward"):
        model(make_ones(2, 4))
    assert type(caught.value) is RuntimeError
