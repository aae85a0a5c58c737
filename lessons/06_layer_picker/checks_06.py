"""Exercises of chapter 06: three hunts for a layer or a channel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hookscope import capture, find_layers, samples
from hookscope.layers.find import LayerNotFoundError
from hookscope_course.chapters.ch06_damaged_networks import patient
from hookscope_course.practice import Wrong
from hookscope_course.practice.check_helpers import add_foreign_hooks, count_hooks, format_count
from hookscope_course.practice.exercise_kinds import returns, runs_model
from hookscope_course.practice.probe_models import Applies


def _why_not_layer(layer: str) -> str:
    net, five = patient(), samples.digit(5)
    try:
        find_layers(net, layer)
    except LayerNotFoundError as error:
        reply = str(error).partition(" See docs/")[0]  # a learner's copy has no such page
        return reply.replace("no layer", "there is no layer", 1)
    if layer not in dict(net.named_modules()):
        return f"{layer!r} is a pattern, which can match several layers; give the name of one layer"
    with torch.no_grad(), capture(net, lambda name, module: True) as seen:
        net(five)
    output = seen[layer].output if layer in seen else torch.ones(1)
    zeros = round(100 * float((output == 0).float().mean()))
    if zeros < 100:
        below = f", because all its values are below 0, up to {output.max():.0f}" if output.max() < 0 else ""
        what = layer or "the whole network"
        return f"{zeros} % of the output of {what} is zero{below}; another layer returns nothing but zeros"
    if layer == "block2":
        return "block2 returns nothing but zeros because its last layer does; look at the layers inside it"
    return f"{layer} returns nothing but zeros, but so does the layer before it; which one was the first?"


check_q1 = returns("block2.relu", what='a layer\'s name, as in "block1.conv"', reasons=_why_not_layer)


def _reach() -> tuple[Tensor, Tensor]:
    """What each channel reaches on the standing bar, and on the lying one."""
    with torch.no_grad(), capture(net := samples.digit_cnn(), "block2.relu") as seen:
        net(_bars())
    standing, lying = seen["block2.relu"].output.amax(dim=(2, 3))
    return standing, lying


def _prefer_standing() -> int:
    standing, lying = _reach()
    return int((standing - lying).argmax())


def _why_not_channel(channel: int) -> str:
    standing, lying = _reach()
    if not 0 <= channel < len(standing):
        return f"there is no channel {channel}; block2.relu has channels 0 to {len(standing) - 1}"
    more = standing - lying
    reached = f"channel {channel} reaches {standing[channel]:.2f} on the standing bar and {lying[channel]:.2f} lying"
    if channel == int(more.argmin()):
        return f"{reached}: of all channels, this one prefers the lying bar most"
    if channel == int(standing.argmax()):
        return f"{reached}: the highest of all, and nearly the same for both, so it prefers neither"
    if more[channel] > 0:
        return f"{reached}: it prefers the standing bar, but another channel does so more strongly"
    return f"{reached}: it does not prefer the standing bar"


check_q2 = returns(_prefer_standing, what="the number of a channel", reasons=_why_not_channel)


def _bars() -> Tensor:
    bars = torch.zeros(2, 1, 28, 28)
    bars[0, 0, 4:24, 13:16] = 1
    bars[1, 0, 13:16, 4:24] = 1
    return bars


def _small(inplace: bool) -> nn.Sequential:
    """Make 3, -4 into 6, -8, then 6, 0, then 9, 0, then 9, then 9, 9; the ReLU changes most of all leaves."""
    net = nn.Sequential()
    net.add_module("twice", nn.Linear(2, 2, bias=False))
    net.add_module("relu", nn.ReLU(inplace))
    net.add_module("more", nn.Linear(2, 2, bias=False))
    net.add_module("sum", nn.Linear(2, 1, bias=False))
    net.add_module("spread", nn.Linear(1, 2, bias=False))
    values = {
        "twice": 2 * torch.eye(2),
        "more": 1.5 * torch.eye(2),
        "sum": torch.ones(1, 2),
        "spread": torch.ones(2, 1),
    }
    net.load_state_dict({f"{name}.weight": value for name, value in values.items()})
    return net.eval()


_ADDED = {"widens": [2] * 8, "leaps": [0, 0, 0, 8], "swings": [3, -3]}
"""Most by the sum; by the highest change, the squares and the mean with its sign; by the mean of the sizes."""


class _Adds(nn.Module):
    """Adds a separate number to each element of its input."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.get_buffer("numbers")


def _take_first(many: int) -> Applies:
    return Applies(lambda x: x[:, :many])


def _adding() -> nn.Sequential:
    net = nn.Sequential()
    for name, numbers in _ADDED.items():
        net.add_module(f"front{len(numbers)}", _take_first(len(numbers)))
        net.add_module(name, _Adds(numbers))
    return net.eval()


def _two_relus() -> nn.Sequential:
    """The first sample is changed by the Linear layer alone, the second by the first ReLU, and by more."""
    last = nn.Linear(2, 2, bias=False)
    last.load_state_dict({"weight": 2 * torch.eye(2)})
    return nn.Sequential(nn.ReLU(), nn.ReLU(), last).eval()


@runs_model()
def check_q3(most_changed: Callable[[nn.Module, Tensor], object]) -> Wrong | None:
    x = torch.tensor([[3.0, -4.0]])
    cases = [
        ("a small network of Linear layers and a ReLU", _small(inplace=False), x, "relu"),
        ("the same network with an in-place ReLU", _small(inplace=True), x, "relu"),
        ("two samples that disagree, through two ReLUs", _two_relus(), torch.tensor([[1.0, 2], [-8, -9]]), "0"),
        ("three layers that add numbers to their input", _adding(), torch.zeros(1, 8), "swings"),
        ("the digit CNN", samples.digit_cnn(), samples.digit(5), "block3.relu"),
    ]
    for number, (what, net, given, expected) in enumerate(cases):
        answer = most_changed(add_foreign_hooks(net), given)
        if left := count_hooks(net):
            return Wrong(f"{format_count(left)} still on {what}; remove every handle")
        if answer == expected:
            continue
        if answer is None:
            return Wrong("your function returned None; return the name of a layer")
        if number == 1:
            return Wrong(
                f"for {what} you returned {answer!r}, not 'relu': when the forward hook runs, the in-place ReLU has "
                "already overwritten its input, so nothing seems to change; make a copy before it runs"
            )
        if not isinstance(answer, str):
            return Wrong(f"for {what} you returned {answer!r}; return only the name of a layer, such as {expected!r}")
        if answer in _ADDED:
            return Wrong(
                f"for {what}, {', '.join(f'{name!r} {added}' for name, added in _ADDED.items())}, you returned "
                f"{answer!r}. By `(output - before).abs().mean()` it is {expected!r}, which changes each by 3"
            )
        if answer in dict(net.named_modules()) and net.get_submodule(answer)._modules:
            return Wrong(f"for {what} you returned {answer!r}, which contains other layers; compare only the leaves")
        return Wrong(f"for {what} you returned {answer!r}, but {expected!r} changes its input more")
    return None
