"""A layer picker leaves the model, its hooks and the random numbers as they were, and lets go when it is closed."""

import contextlib

import ipywidgets
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope.widgets import LayerPicker, base
from tests.package.widgets.picker_models import make_convs, make_images


def test_the_model_stays_as_it_was() -> None:
    model = make_convs()
    model(make_images())  # makes the lazy layer
    model.train()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    picker = LayerPicker(model, make_images())
    picker.show = "gradient"
    picker.target = 2
    picker.run()
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])
    assert len(hookscope.census(model)) == 0


def test_a_model_that_raises_leaves_no_hook_and_a_living_widget() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.angry = nn.Conv2d(1, 2, 3), True

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            if self.angry:
                raise ValueError("not today")
            return y

    model, x = Moody(), torch.zeros(1, 1, 8, 8)
    with pytest.raises(ValueError, match="not today"):
        LayerPicker(model, x)
    assert len(hookscope.census(model)) == 0
    model.angry = False
    picker = LayerPicker(model, x)
    model.angry = True
    picker.run()
    assert picker.problem == "ValueError: not today"
    assert len(hookscope.census(model)) == 0
    model.angry = False
    picker.run()
    assert not picker.problem
    picker.channel = 1
    assert picker.large


def test_run_again_takes_the_weights_and_hooks_of_now() -> None:
    model, x = make_convs().eval(), make_images()
    model(x)
    picker = LayerPicker(model, x, layer="0")
    before, png = picker.activation.clone(), picker.png
    with torch.no_grad():
        model[0].weight.mul_(-1)
    assert torch.equal(picker.activation, before)
    picker.run()
    assert not torch.equal(picker.activation, before)
    assert picker.png != png
    handle = model[0].register_forward_hook(lambda module, args, output: output * 0)
    picker.run()
    handle.remove()
    assert picker.layer == "0"
    assert picker.rows[0]["% zeros"] == 100


def test_a_cell_that_runs_again_closes_what_it_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run = 0
    monkeypatch.setattr(base, "_get_cell", lambda: ("cell", run))
    model = samples.digit_cnn()
    counts = []
    for run in range(100):  # noqa: B007 (read by the lambda)
        first = LayerPicker(model, samples.digit(5))
        second = LayerPicker(model, samples.digit(6))
        counts.append(len(ipywidgets.widgets.widget._instances))
    assert counts[0] == counts[1] == counts[-1]
    assert first.comm is not None
    assert second.comm is not None
    assert len(hookscope.census(model)) == 0
    other = LayerPicker(model, samples.digit(5))
    monkeypatch.setattr(base, "_get_cell", lambda: ("another cell", 1))
    LayerPicker(model, samples.digit(5))
    assert other.comm is not None


def test_a_closed_picker_lets_go() -> None:
    import gc
    import weakref

    model = make_convs().eval()
    model(make_images())
    picker = LayerPicker(model, make_images())
    picker.show = "gradient"
    gone = weakref.ref(picker.activation)
    picker.close()
    gc.collect()
    assert gone() is None
    assert repr(picker) == "LayerPicker closed"


def test_run_again_takes_new_gradients_and_draws_no_random_numbers_of_yours() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) * torch.rand(3)

    model = Noisy()
    random = torch.random.get_rng_state()
    picker = LayerPicker(model, torch.ones(2, 3), layer="scale", show="gradient", target=1)
    assert torch.equal(torch.random.get_rng_state(), random)
    before = picker.gradient.clone()
    torch.manual_seed(7)
    picker.run()
    assert not torch.equal(picker.gradient, before)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.jit is deprecated
def test_a_scripted_part_is_put_back_as_well() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), torch.jit.script(nn.BatchNorm2d(2)), nn.Dropout())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    picker = LayerPicker(model, torch.ones(1, 1, 8, 8), layer="0")
    assert picker.activation.shape == (1, 2, 6, 6)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Observer(nn.Module):
    """Resizes its buffer, as the observers of quantization do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor([]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.lowest.resize_(x.shape[1]).copy_(x.amin((0, 2, 3)))
        return x


@pytest.mark.parametrize("fails", [False, True])
def test_a_buffer_that_a_pass_resizes_is_put_back(fails: bool) -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if fails:
                raise ValueError("not today")
            return x

    model = nn.Sequential(Observer(), nn.Dropout(), Raises())
    with contextlib.suppress(ValueError):
        LayerPicker(model, torch.ones(1, 2, 4, 4))
    assert model[0].lowest.shape == (0,)
    assert model[1].training


def test_a_product_is_of_one_pass() -> None:
    class Moving(nn.Module):
        """Is another function at every pass."""

        def forward(self, x: Tensor) -> Tensor:
            return x * next(factors)

    factors = iter(range(1, 100))
    picker = LayerPicker(nn.Sequential(Moving(), nn.Flatten()), torch.ones(1, 1, 2, 2), layer="0")
    picker.show = "activation × gradient"
    assert torch.equal(picker.shown, picker.activation * picker.gradient)
    fresh = LayerPicker(nn.Sequential(Moving(), nn.Flatten()), torch.ones(1, 1, 2, 2), layer="0")
    fresh._settling = True  # no picture yet: `shown` is the first to ask for a gradient
    fresh.show = "activation × gradient"
    shown = fresh.shown
    assert torch.equal(shown, fresh.activation * fresh.gradient)
