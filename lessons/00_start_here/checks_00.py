"""Exercises of chapter 00: keep what a layer returned, and read the numbers of its maps."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

import torch
from torch import nn

from hookscope import census, samples
from hookscope_course.practice import Wrong
from hookscope_course.practice.probing import SWALLOWED, Breaks, registrations, swallows


def check_q1(output_of: Callable[[nn.Module, nn.Module, torch.Tensor], object]) -> Wrong | None:
    two = torch.cat([samples.digit(2), samples.digit(8)]).double()
    for net, x in ((samples.digit_cnn(), samples.digit(5)), (samples.digit_cnn().double(), two)):
        if wrong := _wrong_outputs(output_of, net, x):
            return wrong
    breaking = nn.Sequential(Breaks())
    return Wrong(SWALLOWED) if swallows(lambda: output_of(breaking[0], breaking, two)) else None


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
        with registrations() as registered:
            answer = output_of(layer, net, x)
        left = census(net, include_global=False).filter(layer=name)
        if not scores:
            return Wrong("your function never called `model(x)`, so the layer saw another input than in the model")
        if answer is None:
            return Wrong("your function returned None; return what the hook has kept")
        if not isinstance(answer, torch.Tensor):
            return Wrong(f"your function returned a {answer.__class__.__name__}; it should return the tensor itself")
        if answer.shape == inputs.shape and torch.equal(answer, inputs):
            return Wrong(f"for {name} you returned what went in; the output is the hook's third argument")
        if answer.shape != expected.shape or not torch.equal(answer, expected):
            if answer.shape == expected.shape:
                return Wrong(f"for {name} you returned a tensor of the right shape, but with other numbers in it")
            return Wrong(
                f"for {name} you returned a tensor of shape {tuple(answer.shape)}, but what the layer returned "
                f"has shape {tuple(expected.shape)}"
            )
        if len(left) > 1:
            return Wrong(f"the output is right, but your hook is still on {name}; call `remove()` on its handle")
        if "forward" not in registered:
            return Wrong("the output is right, but you found it without a forward hook; use one, on `layer`")
        if not all(torch.equal(found, right_scores) for found in scores):
            return Wrong(
                "the output is right, but with your hook on, the model's scores are different: "
                "what the hook returned took the place of the output; let it return None"
            )
        if len(scores) > 1:
            return Wrong(f"the output is right, but you called the model {len(scores)} times; once is enough")
        if len(calls) > 1:
            return Wrong("the output is right, but you called `layer` yourself once more; keep what the hook is given")
    return None


def check_q2(strongest: object) -> Wrong | None:
    if isinstance(strongest, torch.Tensor) and strongest.numel() == 1:
        strongest = strongest.item()
    if isinstance(strongest, bool) or not isinstance(strongest, Integral):
        return Wrong(f"the answer is a channel number from 0 to 15, not of type {strongest.__class__.__name__}")
    strongest = int(strongest)
    net = samples.digit_cnn()
    maps = net.block1(samples.digit(3)).detach()[0]
    best = int(maps.amax(dim=(1, 2)).argmax())
    if strongest == best:
        return None
    if strongest == best + 1:
        return Wrong(f"channels are counted from 0, so the strongest one is one below {strongest}")
    if strongest == int(maps.mean(dim=(1, 2)).argmax()):
        return Wrong(f"channel {strongest} has the largest mean; asked for is the largest single value")
    if not 0 <= strongest < len(maps):
        return Wrong(f"there is no channel {strongest}; block1 has channels 0 to {len(maps) - 1}")
    if strongest == int(net.block1(samples.digit(5))[0].amax(dim=(1, 2)).argmax()):
        return Wrong(f"channel {strongest} is the strongest for the 5; the question is about the 3")
    return Wrong(f"channel {strongest} reaches only {maps[strongest].max():.2f}; another one goes higher")
