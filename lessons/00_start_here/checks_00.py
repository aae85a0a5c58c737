"""Exercises of chapter 00: keep what a layer returned, and read the numbers of its maps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hookscope import census, samples
from lessons.checks import Exercise, Wrong, ____

__all__ = ["____", "q1", "q2"]


def _check_output_of(output_of: Callable[[nn.Module, nn.Module, torch.Tensor], object]) -> Wrong | None:
    net = samples.digit_cnn()
    calls = 0

    def count(module: nn.Module, args: object) -> None:
        nonlocal calls
        calls += 1

    net.register_forward_pre_hook(count)
    five = samples.digit(5)
    inputs = five
    for name in ("block1", "block2", "block3"):
        layer = net.get_submodule(name)
        calls = 0
        expected = layer(inputs)
        answer = output_of(layer, net, five)
        left = census(net, include_global=False).filter(layer=name)
        if calls == 0:
            return Wrong("your function never called `model(x)`, so the layer saw another input than in the model")
        if answer is None:
            return Wrong("your function returned None; return what the hook has kept")
        if not isinstance(answer, torch.Tensor):
            return Wrong(f"your function returned a {type(answer).__name__}; it should return the tensor itself")
        if answer.shape == inputs.shape and torch.equal(answer, inputs):
            return Wrong(f"for {name} you returned what went in; the output is the hook's third argument")
        if answer.shape != expected.shape or not torch.equal(answer, expected):
            return Wrong(
                f"for {name} you returned shape {tuple(answer.shape)}, but the layer returned another tensor "
                f"of shape {tuple(expected.shape)}"
            )
        if len(left):
            return Wrong(f"the output is right, but your hook is still on {name}; call `remove()` on its handle")
        inputs = expected
    return None


q1 = Exercise(
    "00.1",
    question="Write `output_of(layer, model, x)`. It returns the tensor that `layer` returned while `model(x)` ran. "
    "Use a forward hook, and leave no hook behind.",
    difficulty="easy",
    minutes=5,
    check=_check_output_of,
    why="The hook saw the output on its way to the next layer, and the handle took the hook off again.",
    hints=(
        "It is the cell with `keep` from section 1, put into a function.",
        "A list made inside the function is a good place to keep the output: `kept.append(...)`.",
        "In this order: define the hook, register it, call `model(x)`, `handle.remove()`, return `kept[0]`.",
    ),
    solution="""
def output_of(layer, model, x):
    kept = []

    def keep(module, args, output):
        kept.append(output.detach().clone())

    handle = layer.register_forward_hook(keep)
    model(x)
    handle.remove()
    return kept[0]

q1.check(output_of)
""",
    wrong={
        """
def output_of(layer, model, x):
    kept = []
    layer.register_forward_hook(lambda module, args, output: kept.append(output.detach().clone()))
    model(x)
    return kept[0]

q1.check(output_of)
""": "your hook is still on block1",
        """
def output_of(layer, model, x):
    kept = []
    with layer.register_forward_hook(lambda module, args, output: kept.append(args[0])):
        model(x)
    return kept[0]

q1.check(output_of)
""": "you returned what went in",
        """
def output_of(layer, model, x):
    return layer(x)

q1.check(output_of)
""": "never called `model(x)`",
        """
def output_of(layer, model, x):
    kept = []
    with layer.register_forward_hook(lambda module, args, output: kept.append(output)):
        model(x)
    return kept

q1.check(output_of)
""": "returned a list",
        """
def output_of(layer, model, x):
    with layer.register_forward_hook(lambda module, output: None):
        model(x)

q1.check(output_of)
""": "takes 2 positional arguments but 3 were given",
    },
)


def _check_strongest(strongest: object) -> Wrong | None:
    if isinstance(strongest, torch.Tensor) and strongest.numel() == 1:
        strongest = strongest.item()
    if not isinstance(strongest, int):
        return Wrong(f"the answer is a channel number from 0 to 15, not a {type(strongest).__name__}")
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
    return Wrong(f"channel {strongest} reaches {maps[strongest].max():.2f} only; another one goes higher")


q2 = Exercise(
    "00.2",
    question="Show the network a 3: `samples.digit(3)`. Which channel of `block1` holds the largest single value? "
    "Give its number.",
    difficulty="easy",
    minutes=3,
    check=_check_strongest,
    why="The largest value marks the place where the picture fits that channel's filter best.",
    hints=(
        "Keep the output of `block1` with a hook, draw it with `hookscope.feature_grid`, and read the column max. "
        'Or let `hookscope.widgets.LayerPicker(net, samples.digit(3), layer="block1")` order the channels by max.',
        "In code: `maps[0].amax(dim=(1, 2))` is the largest value of every channel.",
    ),
    solution="""
with net.block1.register_forward_hook(keep):
    net(samples.digit(3))

strongest = kept["block1"][0].amax(dim=(1, 2)).argmax().item()
q2.check(strongest)
""",
    wrong={
        """
maps = net.block1(samples.digit(3))
q2.check(maps[0].mean(dim=(1, 2)).argmax().item())
""": "has the largest mean",
        """
maps = net.block1(samples.digit(3))
q2.check(maps[0].amax(dim=(1, 2)).argmax().item() + 1)
""": "counted from 0",
        "q2.check('block1')\n": "a channel number from 0 to 15",
        """
maps = net.block1(samples.digit(3))
q2.check(maps[0].amax(dim=(1, 2)).argmin().item())
""": "another one goes higher",
        "q2.check(16)\n": "there is no channel 16",
    },
    setup="""
net, kept = samples.digit_cnn(), {}

def keep(module, args, output):
    kept["block1"] = output.detach().clone()
""",
)
