"""What `capture` keeps is what a clone at the moment the layer returned keeps, and the model does not notice."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from hookscope import census, leaves
from hookscope.captures.capture import Capture, NotCapturedError, capture
from tests.shared import awkward
from tests.shared.awkward import MODELS, RAISED, Case, Net, cloning, deep_clone, difference, loss_of, tensors_in

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own about sparse tensors, checkpoints and the like

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait for each other when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclasses.dataclass
class Played:
    """Everything that a run left behind."""

    output: Any
    strides: list[tuple[int, ...]]
    gradients: list[Any]
    state: dict[str, Any]
    random: list[Any]
    flags: dict[str, Any]
    hooks: int
    error: str
    seen: Any


def play(build: Callable[[], Case], mode: str, watch: Callable[[nn.Module], AbstractContextManager[Any]]) -> Played:
    """Build a model and run it, forward and (in mode grad) backward, inside `watch(model)`."""
    model, args, kwargs = build()
    hooks = len(census(model))
    output, error = None, ""
    torch.manual_seed(1)
    watching = watch(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(MODES[mode]())
        seen = None
        try:
            with watching as seen:
                output = model(*args, **kwargs)
                loss = loss_of(output)
                if loss.requires_grad:
                    loss.backward()
        except Exception as raised:  # compared with what the model raises unwatched
            error = f"{type(raised).__name__}: {raised}"
    results = [t for t in tensors_in(output) if t.layout == torch.strided]
    trained = [*model.parameters(), *tensors_in((args, kwargs))]
    return Played(
        output=deep_clone(output),
        strides=[t.stride() for t in results],
        gradients=[(t.requires_grad, t.grad) for t in trained],
        state=deep_clone(dict(model.state_dict())) | {f"arg {i}": t.clone() for i, t in enumerate(tensors_in(args))},
        random=[torch.get_rng_state(), random.getstate()],
        flags={name: (module.training, type(module).__name__) for name, module in model.named_modules()},
        hooks=len(census(model)) - hooks,
        error=error,
        seen=seen,
    )


def assert_same_calls(seen: Capture, reference: list[awkward.Call], *, gradients: bool, inputs: bool) -> None:
    assert seen.order == [call.layer for call in reference]
    counts: dict[str, int] = {}
    for expected in reference:
        counts[expected.layer] = counts.get(expected.layer, 0) + 1
        call = seen[expected.layer].calls[expected.number - 1]
        where = f"{call.layer}#{call.number}"
        assert (call.layer, call.number) == (expected.layer, expected.number)
        if inputs:
            assert not difference((call.args, call.kwargs), expected.inputs, f"{where}: inputs")
        if expected.output is RAISED:
            with pytest.raises(NotCapturedError):
                _ = call.output
            continue
        assert not difference(call.output, expected.output, where)
        assert not any(tensor.requires_grad for tensor in tensors_in(call.output)), f"{where} is not detached"
        if gradients and tensors_in(expected.grad):
            assert not difference(call.grad, expected.grad, f"gradient of {where}")
        else:
            with pytest.raises(NotCapturedError):
                _ = call.grad
    assert {name: len(seen[name].calls) for name in seen} == counts


def assert_same_run(actual: Played, expected: Played) -> None:
    assert actual.error == expected.error
    for quality in ("output", "strides", "gradients", "state", "random", "flags"):
        assert not difference(getattr(actual, quality), getattr(expected, quality), quality)


def check(
    build: Callable[[], Case], mode: str, *, gradients: bool, inputs: bool, fused: bool = False, keep: str = "tensors"
) -> str:
    """Compare a captured run with a cloned and with an unwatched one; returns the error that all three raised."""
    plain = play(build, mode, contextlib.nullcontext)
    cloned = play(build, mode, lambda model: cloning(model, gradients))
    captured = play(build, mode, lambda model: capture(model, gradients=gradients, inputs=inputs, keep=keep))
    assert_same_run(captured, cloned if fused else plain)
    assert captured.hooks == 0
    assert_same_calls(captured.seen, cloned.seen, gradients=gradients, inputs=inputs)
    return plain.error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_every_call_is_kept_and_nothing_else_changes(name: str, mode: str) -> None:
    keep = "copies" if name in awkward.RESIZES else "tensors"
    error = check(MODELS[name], mode, gradients=mode == "grad", inputs=False, fused=name in awkward.FUSED, keep=keep)
    assert not error


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_kept_as_they_were_before_the_layer_ran(name: str) -> None:
    keep = "copies" if name in awkward.RESIZES else "tensors"
    check(MODELS[name], "grad", gradients=False, inputs=True, fused=name in awkward.FUSED, keep=keep)


@pytest.mark.parametrize("name", list(MODELS)[awkward.PEERS :])
def test_the_reference_is_the_same_every_time(name: str) -> None:
    first, second = (play(MODELS[name], "grad", lambda model: cloning(model, gradients=True)) for _ in range(2))
    assert first.seen
    assert not difference(first.seen, second.seen)


# --- what a layer's output is safe from, beyond the model itself


def test_what_happens_after_the_block_does_not_reach_the_capture() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    x = torch.randn(2, 4)
    with cloning(model) as reference:
        model(x)
    with capture(model) as seen:
        output = model(x)
    output.detach().zero_()
    x.zero_()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model(torch.ones(2, 4))
    assert_same_calls(seen, reference, gradients=False, inputs=False)


def test_what_is_done_to_the_capture_does_not_reach_the_model() -> None:
    weight = awkward.Own(lambda self: (self.weight, self.seen))
    model = Net(lambda self, x: self.b(x) + self.own()[0].sum(), own=weight, b=nn.Linear(4, 3))
    x = torch.randn(2, 4)
    with capture(model, inputs=True) as seen:
        output = model(x)
    before = deep_clone((dict(model.state_dict()), output, x))
    for call in seen.calls:
        for tensor in tensors_in((call.output, call.args, call.kwargs)):
            tensor.fill_(7)
    assert not difference((dict(model.state_dict()), output, x), before)


def test_a_training_step_inside_the_block() -> None:
    def train(watch: Callable[[nn.Module], AbstractContextManager[Any]]) -> tuple[Any, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with watch(model) as seen:
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model(torch.randn(6, 4))).backward()
                optimizer.step()
        return seen, model

    _, plain = train(lambda model: contextlib.nullcontext())
    reference, _ = train(lambda model: cloning(model, gradients=True))
    seen, trained = train(lambda model: capture(model, gradients=True))
    assert not difference(dict(trained.state_dict()), dict(plain.state_dict()))
    assert_same_calls(seen, reference, gradients=True, inputs=False)
    assert len(seen["0"].calls) == 3


def test_memory_of_parameters_buffers_and_arguments_stays_where_it_is() -> None:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        weight, steps = self.own()
        with torch.no_grad():
            for tensor in (weight, steps, self.identity(x)):
                tensor.add_(1)
        return self.b(x)

    own = awkward.Own(lambda self: (self.weight, self.seen))
    model = Net(run, own=own, identity=nn.Identity(), b=nn.Linear(4, 3))
    array = torch.zeros(2, 4)
    windows = [tensor.detach().numpy() for tensor in (own.weight, own.seen, array)]
    before = [window.copy() for window in windows]
    with capture(model, inputs=True):
        model(array)
    for window, was in zip(windows, before, strict=True):
        assert (window == was + 1).all()


# --- errors


class StopEarlyError(Exception):
    """Raised by a layer on purpose."""


def failing(when: int) -> Net:
    def explode(x: torch.Tensor) -> torch.Tensor:
        model.count += 1
        if model.count == when:
            raise StopEarlyError
        return x * 2

    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.relu(self.explode(self.a(x)))
        return x

    model = Net(run, a=nn.Linear(4, 4), explode=awkward.Do(explode), relu=nn.ReLU(inplace=True))
    model.count = 0
    return model


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_exception_in_forward_leaves_no_hook_and_keeps_what_was_there(when: int, gradients: bool) -> None:
    torch.manual_seed(0)
    model = failing(when)
    with pytest.raises(StopEarlyError), cloning(model) as reference:
        model(torch.ones(2, 4))
    model.count = 0
    with pytest.raises(StopEarlyError), capture(model, gradients=gradients) as seen:
        model(torch.ones(2, 4))
    assert len(census(model)) == 0
    assert [call.output is RAISED for call in reference] == [False] * (3 * when - 2) + [True]
    assert seen.order == ["a", "explode", "relu"] * (when - 1) + ["a", "explode"]
    assert_same_calls(seen, reference, gradients=False, inputs=False)


def test_an_exception_that_the_model_catches() -> None:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.inner(x)
        except StopEarlyError:
            x = self.inner.a(x) * 3
        return self.b(x)

    def build() -> Case:
        torch.manual_seed(0)
        return Net(run, inner=failing(2), b=nn.Linear(4, 3)), (torch.ones(2, 4),), {}

    assert not check(build, "grad", gradients=True, inputs=True)
    assert not check(build, "inference", gradients=False, inputs=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_in_the_block_or_in_backward_leaves_no_hook(error: type[BaseException]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))

    def explode(grad: torch.Tensor) -> None:
        raise error

    def run() -> None:
        with capture(model, gradients=True):
            output = model(torch.ones(2, 4))
            output.register_hook(explode)
            output.sum().backward()

    with pytest.raises(error):
        run()
    assert len(census(model)) == 0
    with pytest.raises(error), capture(model):
        raise error
    assert len(census(model)) == 0


# --- torchvision, family by family

FAMILIES: dict[str, tuple[int, ...]] = {
    # Shape of the input, the smallest that works; for detection of the one image in a list.
    "squeezenet1_1": (2, 3, 33, 33),
    "shufflenet_v2_x0_5": (2, 3, 32, 32),
    "mnasnet0_5": (2, 3, 32, 32),
    "lraspp_mobilenet_v3_large": (2, 3, 32, 32),
    "alexnet": (1, 3, 64, 64),
    "convnext_tiny": (1, 3, 32, 32),
    "densenet169": (2, 3, 32, 32),
    "efficientnet_b0": (2, 3, 32, 32),
    "efficientnet_v2_s": (2, 3, 32, 32),
    "googlenet": (2, 3, 64, 64),
    "inception_v3": (2, 3, 299, 299),
    "maxvit_t": (1, 3, 224, 224),
    "mobilenet_v2": (2, 3, 32, 32),
    "mobilenet_v3_large": (2, 3, 32, 32),
    "regnet_x_400mf": (2, 3, 32, 32),
    "regnet_y_400mf": (2, 3, 32, 32),
    "resnet50": (2, 3, 32, 32),
    "resnext50_32x4d": (2, 3, 32, 32),
    "wide_resnet50_2": (2, 3, 32, 32),
    "swin_t": (1, 3, 32, 32),
    "swin_v2_t": (1, 3, 64, 64),
    "vgg11_bn": (1, 3, 32, 32),
    "vit_b_32": (1, 3, 224, 224),
    "deeplabv3_mobilenet_v3_large": (2, 3, 32, 32),
    "deeplabv3_resnet50": (2, 3, 32, 32),
    "fcn_resnet50": (2, 3, 32, 32),
    "fasterrcnn_resnet50_fpn": (3, 64, 64),
    "fasterrcnn_mobilenet_v3_large_fpn": (3, 64, 64),
    "fcos_resnet50_fpn": (3, 64, 64),
    "keypointrcnn_resnet50_fpn": (3, 64, 64),
    "maskrcnn_resnet50_fpn": (3, 64, 64),
    "retinanet_resnet50_fpn": (3, 64, 64),
    "ssd300_vgg16": (3, 64, 64),
    "ssdlite320_mobilenet_v3_large": (3, 64, 64),
    "r3d_18": (1, 3, 4, 32, 32),
    "mc3_18": (1, 3, 4, 32, 32),
    "r2plus1d_18": (1, 3, 4, 32, 32),
    "s3d": (1, 3, 16, 224, 224),
    "swin3d_t": (1, 3, 4, 32, 32),
    "raft_small": (1, 3, 128, 128),
}
FAST = 4


def torchvision_model(name: str) -> Case:
    from torchvision import models

    shape = FAMILIES[name]
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    detection = builder.__module__.startswith("torchvision.models.detection")
    if detection:
        options["num_classes"] = 2 if "keypoint" in name else 3
        if not name.startswith("ssd"):
            options |= {"min_size": 64, "max_size": 64}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    torch.manual_seed(0)
    model = builder(**options)
    if detection:
        return model.eval(), ([torch.rand(shape)],), {}
    images = torch.rand(shape)
    return model, (images, images.flip(-1)) if name.startswith("raft") else (images,), {}


@pytest.mark.parametrize("mode", ["no_grad", "grad"])
@pytest.mark.parametrize(
    "name", [*list(FAMILIES)[:FAST], *(pytest.param(name, marks=pytest.mark.slow) for name in list(FAMILIES)[FAST:])]
)
def test_torchvision(name: str, mode: str) -> None:
    assert not check(lambda: torchvision_model(name), mode, gradients=mode == "grad", inputs=False)


# --- what was overwritten, and gradients that come more than once


@contextlib.contextmanager
def holding(model: nn.Module) -> Iterator[list[tuple[str, Any, Any]]]:
    """Hold every output as it is, beside a clone of it: what differs at the end was overwritten."""
    held: list[tuple[str, Any, Any]] = []
    counts: dict[str, int] = {}

    def hold(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            counts[name] = counts.get(name, 0) + 1
            held.append((f"{name}#{counts[name]}", output, deep_clone(output)))

        return hook

    handles = [layer.register_forward_hook(hold(name)) for name, layer in leaves(model).items()]
    yield held
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("name", list(MODELS)[: awkward.PEERS])
def test_overwritten_names_every_output_that_changed(name: str) -> None:
    held = play(MODELS[name], "no_grad", holding).seen
    seen = play(MODELS[name], "no_grad", capture).seen
    changed = {label.removesuffix("#1") for label, output, clone in held if difference(output, clone)}
    assert changed <= set(seen.overwritten)
    in_place = {call.label for call in seen.calls if call.label in seen.overwritten}
    assert set(seen.overwritten) == in_place
    if name in ("shared conv called twice", "LSTM tuple", "an unused layer", "vit_b_16"):
        assert not seen.overwritten
    if name == "vgg16":
        assert len(seen.overwritten) == 15  # as measured for the tools that keep references


def test_gradients_of_several_backward_passes_add_up() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.ones(2, 4)
    with capture(model, gradients=True) as seen:
        output = model(x)
        output.sum().backward(retain_graph=True)
        once = seen["0"].grad
        once = once.clone()
        output.sum().backward()
    assert torch.equal(seen["0"].grad, 2 * once)
    assert torch.equal(seen["1"].grad, torch.full((2, 4), 2.0))
