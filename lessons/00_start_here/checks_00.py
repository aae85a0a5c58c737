"""Exercises of chapter 00: keep what a layer returned, and send what the program needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hookscope import census, samples
from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    ERROR_HIDDEN,
    BreakingLayer,
    hides_errors,
    record_registrations,
)


def check_q1(output_of: Callable[[nn.Module, nn.Module, torch.Tensor], object]) -> Wrong | None:
    two = torch.cat([samples.digit(2), samples.digit(8)]).double()
    for net, x in ((samples.digit_cnn(), samples.digit(5)), (samples.digit_cnn().double(), two)):
        if wrong := _wrong_outputs(output_of, net, x):
            return wrong
    breaking = nn.Sequential(BreakingLayer())
    return Wrong(ERROR_HIDDEN) if hides_errors(lambda: output_of(breaking[0], breaking, two)) else None


def _seen(net: nn.Module, x: torch.Tensor, names: tuple[str, ...]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What goes into each layer, and what comes out."""
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    handles = [
        net.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: found.update({name: (args[0].clone(), output.clone())})
        )
        for name in names
    ]
    net(x)
    for handle in handles:
        handle.remove()
    return found


def _wrong_outputs(
    output_of: Callable[[nn.Module, nn.Module, torch.Tensor], object], net: nn.Module, x: torch.Tensor
) -> Wrong | None:
    scores: list[torch.Tensor] = []
    net.register_forward_hook(lambda module, args, output: scores.append(output))
    right_scores = net(x)
    names = "block1", "block2", "block3", "block2.conv"  # a block ends with a ReLU: nothing below 0 comes out of it
    for name, (inputs, expected) in _seen(net, x, names).items():
        layer, calls = net.get_submodule(name), list[object]()
        layer.register_forward_hook(lambda module, args, output, calls=calls: calls.append(module))
        scores.clear()
        with record_registrations() as registered:
            answer = output_of(layer, net, x)
        left = census(net, include_global=False).filter(layer=name)
        if not scores:
            return Wrong(
                "your function never called `model(x)`; call the model, so that `layer` gets its input from the "
                "layers before it"
            )
        if answer is None:
            return Wrong("your function returned None; return what the hook stored")
        if not isinstance(answer, torch.Tensor):
            return Wrong(f"your function returned a {answer.__class__.__name__}; it should return the tensor itself")
        if answer.shape == inputs.shape and torch.equal(answer, inputs):
            return Wrong(f"for {name} you returned the input; the output is the hook's third argument")
        if answer.shape != expected.shape or not torch.equal(answer, expected):
            if answer.shape == expected.shape:
                return Wrong(f"for {name} you returned a tensor of the right shape, but with different values")
            return Wrong(
                f"for {name} you returned a tensor of shape {tuple(answer.shape)}, but what the layer returned "
                f"has shape {tuple(expected.shape)}"
            )
        if len(left) > 1:
            return Wrong(f"the output is right, but your hook is still on {name}; call `remove()` on its handle")
        if "forward" not in registered:
            return Wrong("the output is right, but you did not use a forward hook; register one on `layer`")
        if not all(torch.equal(found, right_scores) for found in scores):
            return Wrong(
                "the output is right, but with your hook on, the model's scores are different, because "
                "what your hook returned replaced the output; let it return None"
            )
        if len(scores) > 1:
            return Wrong(f"the output is right, but you called the model {len(scores)} times; once is enough")
        if len(calls) > 1:
            return Wrong(
                "the output is right, but you called `layer` yourself a second time; return what the hook stored"
            )
    return None


class _DigitReader(nn.Module):
    """The colleague's program."""

    def __init__(self) -> None:
        super().__init__()
        self.network = samples.digit_cnn()

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.network(1 - scan)
        return scores


@blind_to(one_dtype_only="her reader takes float32 only", swallows_errors=CALLS_NOTHING)
def check_q2(prepare: Callable[[torch.Tensor], object]) -> Wrong | None:
    reader = _DigitReader()
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
            return Wrong("you return the images as they are, and her reader reads all ten as a 0")
        low, high = sent.min().item() + 0.0, sent.max().item() + 0.0  # no -0
        return Wrong(f"her reader reads {', '.join(map(str, read))}; your values go from {low:g} to {high:g}")
    return None
