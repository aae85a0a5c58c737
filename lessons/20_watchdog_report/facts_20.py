"""What chapter 20 says of its runs, trained with ten seeds."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookscope import leaves
from hookscope_course.chapters import ch20_training_runs as training_runs
from hookscope_course.chapters.ch20_training_runs import (
    TrainingRun,
    healthy_run,
    is_finite,
    lost_run,
    norm_net,
    record_run,
)


class UnderTheRoot(nn.Module):
    """The norm of the lesson, with the number that it adds under the root."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean((1, 2, 3), keepdim=True) + self.added).sqrt()


@pytest.mark.slow
def test_black_images_are_lost_in_the_first_norm_for_ten_seeds(says):
    says(
        "Every loss is finite, but every parameter is lost.",
        "The loss ignores the black images, so it stays finite in step 4.",
        "But the gradient is NaN, and it reaches every weight.",
        "The loss is NaN one step later, when all layers return NaN",
        "a number under the root that float16 can hold, such as 1e-6.",
    )
    for seed in range(10):
        net, losses, alarms = training_runs.norm_cnn(partial(UnderTheRoot, 1e-8), seed), list[float](), list[Any]()

        def look(name: str, module: nn.Module, args: object, output: Tensor, losses: Any, alarms: Any) -> None:
            if not is_finite(output):
                alarms.append((len(losses), name))

        layers = leaves(net)
        for name, layer in layers.items():
            layer.register_forward_hook(partial(look, name, losses=losses, alarms=alarms))
        training_runs.train_padded(net, losses, epochs=1)
        assert alarms[0] == (4, "block1.norm")
        assert all(map(math.isfinite, losses))
        assert not any(map(is_finite, net.parameters()))
        assert net(torch.ones(1, 1, 28, 28).half()).isnan().all(), "and so is its loss"
        assert [name for step, name in alarms if step == 5] == [*layers]
        repaired, losses = training_runs.norm_cnn(partial(UnderTheRoot, 1e-6), seed), []
        training_runs.train_padded(repaired, losses, epochs=1)
        assert all(map(math.isfinite, losses))
        assert all(map(is_finite, repaired.parameters()))


def first_bark(run: TrainingRun, barks: Callable[[float], bool]) -> int | None:
    return next((step for step, sizes in enumerate(run.largest) if any(map(barks, sizes))), None)


def is_large(size: float) -> bool:
    return not size <= 1000


@pytest.mark.slow
def test_an_overflow_comes_long_before_the_nan_for_ten_seeds(says):
    says(
        "The squares are the first to overflow: `square` returns inf.",
        "the block returns zeros, and the loss stays near 2.30",
        "The gradient of a square is 2 · x, and above 32,752 this is inf in float16.",
        "The gradient that arrives there is 0, and 0 · inf is NaN.",
        "So a weight becomes NaN, and one step later the loss.",
        "`nan` waits for this, and is too late.",
        "`large` is early, but it barks in the healthy run as well",
        "`inf` is early and silent.",
        "The NaN comes later, from a backward pass.",
    )
    for seed in range(10):
        net, arrived, lost_weight = norm_net(seed), list[Any](), list[bool]()

        def look(module: nn.Module, grad_input: Any, grad_output: Any, arrived: Any = arrived) -> None:
            arrived.append(grad_output[0])

        def look_at(weight: Tensor, lost_weight: Any = lost_weight) -> None:
            lost_weight.append(not is_finite(weight.grad))

        net.block1.square.register_full_backward_hook(look)
        net.block1.linear.weight.register_post_accumulate_grad_hook(look_at)
        lost, healthy = record_run(net, lost_run), record_run(norm_net(seed), healthy_run)
        assert lost.first
        assert lost.loss
        step, name = lost.first
        assert name.endswith("square")
        assert step <= lost.loss - 10
        assert all(abs(loss - 2.30) < 0.1 for loss in lost.losses[step : lost.loss])
        largest = {name: [sizes[at] for sizes in lost.largest] for at, name in enumerate(lost.names)}
        is_above = [size > 32752 for size in largest["block1.linear"][: lost.loss]]
        assert is_above == [False] * (lost.loss - 1) + [True], "in the step before the loss is NaN, and not earlier"
        assert largest["block1.linear"][lost.loss - 1] < math.inf
        assert largest["block1"][lost.loss - 1] == 0
        assert not arrived[lost.loss - 1].any()
        assert lost_weight.index(True) == lost.loss - 1
        assert first_bark(lost, math.isnan) == lost.loss
        early = first_bark(lost, is_large)
        assert early is not None
        assert early < step
        assert first_bark(healthy, is_large) == 0
        assert healthy.first is None
        assert healthy.loss is None
        assert sum(healthy.losses[-5:]) / 5 < healthy.losses[0] - 0.2, "it learns"


def test_how_small_a_float16_is_and_what_mending_leaves_alone(says):
    says("float16 has no number as small as 1e-8:", "`mend` changes nothing as long as all is finite.")
    assert [bool(torch.zeros(1).half() + small) for small in (1e-8, 1e-6)] == [False, True]
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()]
    assert torch.equal(finite.view(torch.int16), finite.nan_to_num().view(torch.int16)), "-0, too"


def train_with(seed: int, train: Callable[[nn.Module], list[float]], act: Callable[[Any], Any]) -> list[float]:
    """Return the losses of a run whose every module has a hook that returns what `act` makes of its output."""
    net = norm_net(seed)
    for module in net.modules():
        module.register_forward_hook(lambda module, args, output: act(output))
    return train(net)


def test_a_hook_that_mends_hides_the_mistake_for_ten_seeds(says):
    says("in the lost run it hides the mistake: the loss is never NaN, and the network never learns")
    for seed in range(10):
        losses = train_with(seed, lost_run, Tensor.nan_to_num)
        assert all(map(math.isfinite, losses))
        assert min(losses) > 2.1
        assert all(abs(loss - 2.30) < 0.1 for loss in losses[-5:])


def test_a_hook_that_draws_numbers_changes_the_batches_for_ten_seeds(says, monkeypatch: pytest.MonkeyPatch):
    says("So from step 1 on, the training gets other batches.")
    monkeypatch.setattr(training_runs, "STEPS", 3)
    for seed in range(10):
        plain, drawn = (
            train_with(seed, healthy_run, act) for act in (lambda output: None, lambda output: torch.rand(1) and None)
        )
        assert [a == b for a, b in zip(plain, drawn, strict=True)] == [True, False, False]


class AfterTheRoot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean((1, 2, 3), keepdim=True).sqrt() + 1e-3)


def test_a_gradient_can_be_the_first(says):
    says(
        "one step late, at the first layer",
        "in the step in which it is made",
    )
    net = training_runs.norm_cnn(AfterTheRoot).float()
    losses: list[float] = []
    bad_outputs: list[Any] = []
    bad_grads: list[Any] = []

    def look(name: str, module: nn.Module, args: object, output: Tensor) -> None:
        step = len(losses)
        if not is_finite(output):
            bad_outputs.append((step, name))
        if output.requires_grad:
            output.register_hook(lambda grad: None if is_finite(grad) else bad_grads.append((step, name)))

    for name, module in net.named_modules():
        if not [*module.children()]:
            module.register_forward_hook(partial(look, name))
    net.get_submodule("block1.conv").register_forward_pre_hook(lambda module, args: (args[0].float(),))
    training_runs.train_padded(net, losses)
    assert bad_outputs[0] == (5, "block1.conv"), "one step late, at the first layer"
    assert bad_grads[0][0] == 4, "in the step in which it is made"
    assert bad_grads[0][1] == "block3.conv", "what the last norm received"
