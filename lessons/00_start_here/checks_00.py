"""Exercises of chapter 00: keep what a layer returned, and send what the program needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hookscope import samples
from hookscope_course.chapters.ch00_reader import DigitReader
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import CALLS_NOTHING
from hookscope_course.practice.exercise_kinds import WatchedCall, runs_model
from hookscope_course.practice.probe_models import make_broken

_OutputOf = Callable[[nn.Module, nn.Module, torch.Tensor], object]


def _break(output_of: _OutputOf) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: output_of(model[0], model, torch.ones(1, 2))


@runs_model((torch.float32, 5), (torch.float64, 2, 8), broken=_break)
def check_q1(output_of: _OutputOf, dtype: torch.dtype, *digits: int) -> Wrong | None:
    x = torch.cat([samples.digit(digit) for digit in digits]).to(dtype)
    names = "block1", "block2", "block3", "block2.conv"  # a block ends with a ReLU: nothing below 0 comes out of it
    for name in names:
        if wrong := _wrong_output(output_of, samples.digit_cnn().to(dtype), name, x):
            return wrong
    return None


def _wrong_output(output_of: _OutputOf, net: nn.Module, name: str, x: torch.Tensor) -> Wrong | None:
    layer, seen = net.get_submodule(name), list[tuple[torch.Tensor, torch.Tensor]]()

    def note(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        seen.append((args[0].clone(), output.clone()))

    with layer.register_forward_hook(note):
        scores = net(x)
        call = WatchedCall(net, lambda: output_of(layer, net, x), own=1)
    answer, (given, expected) = call.result, seen[0]
    if answer is None:
        return Wrong("your function returned None; it should return the tensor that the hook stored")
    if not isinstance(answer, torch.Tensor):
        return Wrong(f"your function returned a {answer.__class__.__name__}; it should return the tensor itself")
    if answer.shape == given.shape and torch.equal(answer, given):
        return Wrong(f"for {name} you returned the input; the output is the hook's third argument")
    if answer.shape != expected.shape or not torch.equal(answer, expected):
        if answer.shape == expected.shape:
            return Wrong(f"for {name} you returned a tensor of the right shape, but with different values")
        return Wrong(
            f"for {name} you returned a tensor of shape {tuple(answer.shape)}; the layer's output "
            f"has shape {tuple(expected.shape)}"
        )
    if wrong := call.find_traces("the output is right", scores):
        return wrong
    if len(seen) > 2:
        return Wrong(
            "the output is right, but you called `layer` yourself again; return the tensor that the hook stored"
        )
    return None


@blind_to(one_dtype_only="her reader takes float32 only", swallows_errors=CALLS_NOTHING)
def check_q2(prepare: Callable[[torch.Tensor], object]) -> Wrong | None:
    reader = DigitReader()
    for index, digits in ((7, range(10)), (2, range(10)), (7, [5])):
        images = torch.cat([samples.digit(digit, index) for digit in digits])
        sent = prepare(images.clone())
        if not isinstance(sent, torch.Tensor):
            return Wrong(f"your function returned a {sent.__class__.__name__}; it should return a tensor of images")
        if sent.shape != images.shape:
            return Wrong(
                f"for images of shape {tuple(images.shape)} your function returned a tensor of shape "
                f"{tuple(sent.shape)}; return images of the same shape"
            )
        read = reader(sent.to(images.dtype)).argmax(1).tolist()
        if read == [*digits]:
            continue
        if torch.equal(sent, images):
            return Wrong("you returned the images unchanged, so her reader reads all ten as a 0")
        low, high = sent.min().item() + 0.0, sent.max().item() + 0.0  # no -0
        return Wrong(f"her reader reads {', '.join(map(str, read))}; your values go from {low:g} to {high:g}")
    return None
