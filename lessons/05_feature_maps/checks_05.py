"""Exercises of chapter 05: draw channels at random, keep outputs from in-place operations, find silent channels."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from operator import index

import numpy as np
import torch
from torch import nn

from hookscope_course.practice import Wrong, blind_to
from hookscope_course.practice.check_helpers import (
    CALLS_NOTHING,
    add_foreign_hooks,
    format_numbers,
    record_registrations,
)
from hookscope_course.practice.exercise_kinds import WatchedCall, find_left_hooks, runs_model
from hookscope_course.practice.probe_models import Applies, make_broken


def _read_channels(channels: object, call: str) -> list[int] | Wrong:
    items = channels.tolist() if isinstance(channels, torch.Tensor | np.ndarray) else channels
    try:
        assert isinstance(items, list | tuple | range)
        assert not any(isinstance(item, bool | np.bool_) for item in items)
        return [index(item) for item in items]  # numbers, also as NumPy or as tensors without dimensions has them
    except (AssertionError, TypeError):
        return Wrong(f"`{call}` returned {channels!r}; it should return a list of channel numbers")


@blind_to(swallows_errors=CALLS_NOTHING)
def check_q1(draw: Callable[[torch.Tensor, int], object]) -> Wrong | None:
    state = torch.get_rng_state()
    choices = {}
    for seed in (1, 2, 3):
        many = _read_channels(draw(torch.zeros(32, 2, 2), seed), f"draw(maps, {seed})")
        if isinstance(many, Wrong):
            return many
        if any(not 0 <= channel < 32 for channel in many):
            return Wrong(f"of 32 maps you drew number {max(many)}; the last one is 31")
        if len(set(many)) < len(many):
            twice = next(channel for channel in many if many.count(channel) > 1)
            return Wrong(f"with seed {seed} you drew channel {twice} more than once; all 16 should be different")
        if len(many) != 16:
            return Wrong(f"of 32 maps you drew {len(many)}; it should be 16")
        if many == list(range(16)):
            return Wrong(f"with seed {seed} you picked channels 0 to 15 in order; draw them at random")
        steps = {(after - before) % 32 for before, after in pairwise(many)}
        if len(steps) == 1:
            return Wrong(f"with seed {seed} you picked {many}: these are evenly spaced; draw them at random")
        choices[seed] = many
    if choices[1] == choices[2]:
        return Wrong("seed 1 and seed 2 give the same channels; use the argument `seed`")
    if sorted(choices[1]) == sorted(choices[2]):
        return Wrong(f"seed 1 and seed 2 draw the same channels, {sorted(choices[1])}, only in a different order")
    again = _read_channels(draw(torch.zeros(32, 2, 2), 1), "draw(maps, 1)")
    if isinstance(again, Wrong) or again != choices[1]:
        return Wrong("two calls with seed 1 gave different channels; the same seed should give the same channels")
    drawn = set[int]()
    for seed in range(12):
        some = _read_channels(draw(torch.zeros(20, 2, 2), seed), f"draw(maps, {seed})")
        if isinstance(some, Wrong):
            return some
        if len(set(some)) != 16 or not set(some) <= set(range(20)):
            return Wrong(f"of 20 maps you drew {some}; it should be 16 different numbers from 0 to 19")
        drawn |= set(some)
    if len(drawn) < 20:  # by chance once in a billion
        never = sorted(set(range(20)) - drawn)
        return Wrong(f"with a dozen seeds you never drew {never} of 20 maps; each map should have a chance")
    few = _read_channels(draw(torch.zeros(3, 5, 4, dtype=torch.float64), 1), "draw(maps, 1)")
    if isinstance(few, Wrong) or sorted(few) != [0, 1, 2]:
        return Wrong(f"of 3 maps you drew {few}; it should be all three, 0, 1 and 2")
    if not torch.equal(state, torch.get_rng_state()):
        return Wrong(
            "the channels are right, but you set torch's own random state, on which someone's training may depend; "
            "use a `torch.Generator()`"
        )
    return None


class _AddsInPlace(nn.Module):
    """Writes into what its two layers returned: by a ReLU in place, and by `+=`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.first.weight, 2.0)
        nn.init.constant_(self.second.weight, 5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        y: torch.Tensor = self.second(x)
        y += 1
        return y


@runs_model(([-3.0, 3.0], torch.float32), ([1.0, -2.0, 4.0], torch.float64))
def check_q2(
    keep_outputs: Callable[[nn.Module, torch.Tensor], object], values: list[float], dtype: torch.dtype
) -> Wrong | None:
    model, x = _AddsInPlace().to(dtype), torch.tensor(values, dtype=dtype).view(-1, 1)
    call = WatchedCall(model, lambda: keep_outputs(model, x))
    kept = call.result
    if not isinstance(kept, dict):
        return Wrong(f"your function returned {kept!r}; it should return the dictionary `kept`")
    if not model.relu.inplace:
        return Wrong(
            "you set `inplace` of the caller's model to False; copy the feature map instead of changing the model"
        )
    if set(kept) != {"first", "relu", "second"}:
        return Wrong(f"`kept` has the names {list(kept)}; it should have 'first', 'relu' and 'second'")
    first = 2 * x
    returned = {"first": first, "relu": first.relu(), "second": 5 * first.relu()}
    for name, wanted in returned.items():
        tensor, expected = kept[name], wanted.flatten().tolist()
        if not isinstance(tensor, torch.Tensor):
            return Wrong(f"under {name!r} you kept a {tensor.__class__.__name__}; it should be a tensor")
        values = tensor.detach().flatten().tolist()
        if values == expected and tensor.shape != wanted.shape:
            shapes = f"{tuple(tensor.shape)}; it should have {tuple(wanted.shape)}"
            return Wrong(f"the values are right, but the tensor you kept under {name!r} has shape {shapes}")
        if values == expected and tensor.dtype != wanted.dtype:
            return Wrong(f"{name!r} returned {wanted.dtype}, but you kept {tensor.dtype}; do not convert it")
        if values != expected:
            return Wrong(f"{name!r} returned {format_numbers(expected)}, but you kept {format_numbers(values)}")
    if any(tensor.requires_grad for tensor in kept.values()):
        return Wrong("the values are right, but your tensors still have their graph; `detach()` removes it")
    return call.find_traces("the record is right", (10 * x.relu() + 1).requires_grad_(), hook="")


_SilentChannels = Callable[[nn.Module, nn.Module, object], object]
_BATCHES = (3, 3, 1)  # pictures in each batch
_SHAPE = (5, 7, 11)  # channels, rows, columns: no other tensor has this shape


def _batches() -> list[torch.Tensor]:
    """Make batches, after which channels 1 and 4 are silent."""
    batches = [torch.zeros(pictures, *_SHAPE) for pictures in _BATCHES]
    for batch in batches:
        batch[:, 0] = 1
    batches[0][1, 2, 3, 4] = -1  # channel 2: one place of one picture, in the first batch only, and below 0
    batches[-1][0, 3, 0, 0], batches[-1][0, 3, 0, 1] = 1, -1  # channel 3: in the last batch, and its sum is 0
    return [batch + 1 for batch in batches]


def _maps_kept(batches: list[torch.Tensor]) -> int:
    """Count the pictures whose maps are still in memory; the batches themselves are not maps."""
    return sum(
        len(found) if found.dim() == 4 else 1
        for found in gc.get_objects()
        if type(found) is torch.Tensor and found.shape[-3:] == _SHAPE and not any(found is batch for batch in batches)
    )


def _break(silent_channels: _SilentChannels) -> tuple[nn.Module, Callable[[], object]]:
    model = make_broken()
    return model, lambda: silent_channels(model[0], model, [torch.ones(1, 3, 2, 2)])


@runs_model(broken=_break)
def check_q3(silent_channels: _SilentChannels) -> Wrong | None:
    if wrong := _wrong_channels(silent_channels):
        return wrong
    layer = _Scales().double()
    model = add_foreign_hooks(nn.Sequential(Applies(lambda x: x - 1), layer, nn.Flatten()))
    batches = [1.1 + 0.3 * torch.rand(2, 3, 16, 16).double()] * 2  # small numbers, at 256 places
    with record_registrations() as registered:
        channels = _read_channels(silent_channels(layer, model, batches), "silent_channels(…)")
    if channels != [1]:
        return Wrong(f"on a second model, whose layer has 3 channels, you found {channels}; it should be [1]")
    if "forward" not in registered:
        return Wrong("the channels are right, but you registered no forward hook; use one")
    return None


class _Scales(nn.Module):
    """Multiplies the second of three channels by 0."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.tensor([2.0, 0.0, -1e-6]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors.view(-1, 1, 1)


def _wrong_channels(silent_channels: _SilentChannels) -> Wrong | None:
    layer, batches = Applies(lambda x: x - 1), _batches()
    model = add_foreign_hooks(nn.Sequential(layer, nn.Flatten()))
    calls, kept = 0, []

    def look(module: nn.Module, args: object) -> None:
        nonlocal calls
        calls += 1
        if calls in (1, len(batches)):
            kept.append(_maps_kept(batches))

    model.register_forward_pre_hook(look)
    answer = silent_channels(layer, model, iter(batches))
    if not calls:
        return Wrong("your function never called `model(batch)`")
    if calls < len(batches):
        times = "once" if calls == 1 else f"{calls} times"
        return Wrong(f"there are {len(batches)} batches, but you called the model {times}; call it with each of them")
    channels = _read_channels(answer, "silent_channels(…)")
    if isinstance(channels, Wrong):
        return channels
    if sorted(channels) != [1, 4]:
        return Wrong(_why_not(channels))
    if left := find_left_hooks(model, "the channels are right", own=1):
        return left
    if kept[1] - kept[0] > _BATCHES[0]:
        return Wrong(
            f"the channels are right, but you kept the maps of {kept[1] - kept[0]} images; keep one number per channel"
        )
    return None


def _why_not(channels: list[int]) -> str:
    said = f"you found {channels}"
    if sorted(channels) == [1, 3, 4]:
        return f"{said}, but channel 3 is not zero everywhere: it has a 1 and a -1 in the last batch, with the sum 0"
    if sorted(channels) == [1, 2, 4]:
        return f"{said}, but channel 2 is not zero everywhere: it is -1 at one position of one image in the first batch"
    return f"{said}; in these batches only channels 1 and 4 are zero at every position of every image"
