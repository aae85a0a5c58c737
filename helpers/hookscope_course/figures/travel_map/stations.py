"""The stations of the travel map: what becomes of a hook when its model is copied, saved, compiled or converted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, cast
from warnings import catch_warnings

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

__all__ = ["ASKED", "FATES", "HOOKED", "PLAIN", "STATIONS", "Fate", "Outcome", "Station", "make_net", "outcome_of"]

Fate = Literal["follows", "stays", "left", "baked"]
FATES: dict[Fate, tuple[str, str]] = {
    "follows": ("fires, handle works", "It fires, and handle.remove() takes it off."),
    "stays": ("fires, handle fails", "It fires, and handle.remove() does not take it off."),
    "left": ("left behind", "It is left behind: no call, no ×10."),
    "baked": ("only ×10 stays", "It is never called, but its ×10 stays."),
}
"""What can become of a hook: in short, and in a sentence."""
PLAIN, HOOKED = 6, 60


class Station(NamedTuple):
    """A place on the map.

    Args:
        code: the call that takes the model there.
        does: the same in words.
        is_same: whether the hooked module is still the same object there.
        why: why the hook fares as it does.
        sees: the difference for a hook in training; the chapter asks for it, and the map does not.

    """

    code: str
    does: str
    is_same: bool
    why: str
    sees: str = ""


STATIONS: dict[str, Station] = {
    "deepcopy": Station(
        "copy.deepcopy(model)",
        "The model is copied, as for an average of its weights.",
        False,
        "deepcopy copies the dictionary of hooks, and a function in it stays the same function. Your handle removes "
        "only from the dictionary of the original.",
    ),
    "state_dict": Station(
        "new.load_state_dict(…)",
        "A new model loads the state_dict of yours.",
        False,
        "A state_dict holds parameters and buffers, and no hooks.",
    ),
    "prune": Station(
        "prune.l1_unstructured(…)",
        "The weight 0 is pruned away.",
        True,
        "Pruning changes the weight, and the module is the same object. So your hook and your handle stay.",
    ),
    "compile": Station(
        "torch.compile(model)",
        "The hook is on the model, and then the model is compiled and run.",
        True,
        "torch compiles the hook together with the model. It checks before each run whether this hook is still there.",
    ),
    "export": Station(
        "torch.export.export(…)",
        "The model is exported, with the hook on.",
        False,
        "export runs the model once and writes down what happens to tensors. The ×10 is written down; the call is not.",
    ),
    "quantize": Station(
        "quantize_dynamic(model)",
        "The Linear is replaced by one that computes with 8-bit integers.",
        False,
        "quantize_dynamic makes a new layer, and gives it the forward hooks of the old one. Your handle belongs to the "
        "old layer.",
    ),
    "checkpoint": Station(
        "checkpoint(model, x)",
        "The model runs in a checkpoint, and then backward() runs.",
        True,
        "A checkpoint does not store outputs of layers. So backward() runs this layer again, together with its hook.",
        "called 2×, once in backward()",
    ),
    "autocast": Station(
        "torch.autocast(…)",
        "The model runs under autocast.",
        True,
        "autocast runs a Linear in half precision, so a hook on it gets rounded numbers.",
        "sees torch.bfloat16",
    ),
    "scaler": Station(
        "scaler.scale(loss)",
        "GradScaler scales the loss before backward().",
        True,
        "scaler.step() divides by the scale again, but hooks run earlier, in backward().",
        "sees gradients times the scale",
    ),
}
ASKED = [name for name, station in STATIONS.items() if not station.sees]
"""The stations whose fate the map asks for."""


class Outcome(NamedTuple):
    """What torch did at a station.

    Args:
        returns: what one pass returned there, rounded; `PLAIN` without a hook, `HOOKED` with it.
        calls: how often the hook was called in it.
        after: what a pass returned after `handle.remove()`.

    """

    returns: int
    calls: int
    after: int

    @property
    def fate(self) -> Fate:
        """What became of the hook."""
        if self.calls:
            return "follows" if self.after == PLAIN else "stays"
        return "left" if self.returns == PLAIN else "baked"


def make_net() -> nn.Sequential:
    """Return a model that makes 3 · 2 + 0 · 5 = 6 of [2, 5]."""
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU())
    nn.init.constant_(net.get_parameter("0.weight"), 0.0)
    with torch.no_grad():
        net.get_parameter("0.weight")[0, 0] = 3.0
    return net.eval()


_Model = Callable[[Tensor], Tensor]


def _load(net: nn.Sequential, x: Tensor) -> _Model:
    new = make_net()
    new.load_state_dict(net.state_dict())
    return new


def _prune(net: nn.Sequential, x: Tensor) -> _Model:
    prune.l1_unstructured(net[0], "weight", amount=1)  # type: ignore[no-untyped-call]
    return net


def _compile(net: nn.Sequential, x: Tensor) -> _Model:
    fast: _Model = torch.compile(net, backend="eager")
    fast(x)
    return fast


def _quantize(net: nn.Sequential, x: Tensor) -> _Model:
    new: _Model = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})  # type: ignore[no-untyped-call]
    return new


def _checkpoint(net: nn.Sequential, x: Tensor) -> _Model:
    def run(rows: Tensor) -> Tensor:
        with torch.enable_grad():
            output = cast(Tensor, checkpoint(net, rows, use_reentrant=False))
            output.sum().backward()  # type: ignore[no-untyped-call]
        return output

    return run


def _autocast(net: nn.Sequential, x: Tensor) -> _Model:
    def run(rows: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cast(Tensor, net(rows))

    return run


def _scale(net: nn.Sequential, x: Tensor) -> _Model:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def run(rows: Tensor) -> Tensor:
        with torch.enable_grad():
            output: Tensor = net(rows)
            scaler.scale(output.sum()).backward()  # type: ignore[no-untyped-call]
        return output

    return run


_TAKES: dict[str, Callable[[nn.Sequential, Tensor], _Model]] = {
    "deepcopy": lambda net, x: copy.deepcopy(net),
    "state_dict": _load,
    "prune": _prune,
    "compile": _compile,
    "export": lambda net, x: cast(Any, torch.export.export(net, (x,))).module(),
    "quantize": _quantize,
    "checkpoint": _checkpoint,
    "autocast": _autocast,
    "scaler": _scale,
}


@cache
def outcome_of(name: str) -> Outcome:
    """Take a model with a hook to a station, run it there, remove the hook by its handle, and run it again.

    Args:
        name: one of `STATIONS`.

    """
    net, x, calls = make_net(), torch.tensor([[2.0, 5.0]]), list[int]()

    def ten_times(module: nn.Module, args: object, output: Tensor) -> Tensor:
        calls.append(1)
        return 10 * output

    handle = net[0].register_forward_hook(ten_times)
    with torch.no_grad(), catch_warnings(action="ignore"):  # quantize_dynamic is deprecated, and warns
        there = _TAKES[name](net, x)
        calls.clear()
        returns = round(there(x).item())
        count = len(calls)
        handle.remove()
        return Outcome(returns, count, round(there(x).item()))
