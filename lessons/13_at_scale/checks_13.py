"""Chapter 13: a communication hook that sends half, and a mean over what all ranks saw. Both run on two ranks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course import ranks
from hookscope_course.practice import Wrong, blind_to, check_helpers
from hookscope_course.practice.check_helpers import ERROR_HIDDEN, BreakingLayer, hides_errors
from hookscope_course.practice.side_effects import Guard

NUMBERS = 10_000


def _run(worker: Callable[..., Any], *args: Any) -> list[Any]:
    """Use the notebook's existing processes, or start new ones."""
    return ranks.start(2).run(worker, *args)


def _average_of(hook: Callable[..., Any], dtype: torch.dtype, scale: float) -> dict[str, Any]:
    """On a rank: what became of the gradient of a weight, whose inputs are 2 on rank 0 and 4 on rank 1, times a scale.

    Returns:
        The mean of the gradient, the bytes it took, the dtypes that the hook's Future held, what the guard found.

    """
    guard, dtypes = Guard(), set[torch.dtype]()
    guarded = guard.guard(hook)

    def note(future: Any) -> Any:
        value = future.value()
        dtypes.update(part.dtype for part in (value if isinstance(value, list) else [value]))
        return value

    @functools.wraps(hook)
    def watched(state: Any, bucket: Any) -> Any:
        future = guarded(state, bucket)
        return future.then(note) if isinstance(future, torch._C.Future) else future

    layer = nn.Linear(NUMBERS, 1, bias=False, dtype=dtype)
    ddp = nn.parallel.DistributedDataParallel(layer)
    ddp.register_comm_hook(None, watched)
    inputs = torch.full((1, NUMBERS), scale * (2.0 + 2 * dist.get_rank()), dtype=dtype)
    ddp(inputs).sum().backward()  # the first pass also opens connections
    layer.zero_grad()
    before = ranks.bytes_received()
    ddp(inputs).sum().backward()
    assert layer.weight.grad is not None
    gradient, received = layer.weight.grad.mean().item(), ranks.bytes_received() - before
    return {"gradient": gradient, "received": received, "dtypes": dtypes, "found": guard.found}


def _alone(hook: Callable[..., Any]) -> float:
    """On a rank: what became of the gradient 2 where the world is this rank alone."""
    alone: Any = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    dist.distributed_c10d._update_default_pg(alone)  # to start a third process would take seconds
    layer = nn.Linear(1, 1, bias=False)
    ddp = nn.parallel.DistributedDataParallel(layer)

    @functools.wraps(hook)
    def named(state: Any, bucket: Any) -> Any:  # DDP asks for a name, which not every callable has
        return hook(state, bucket)

    ddp.register_comm_hook(None, named)
    ddp(torch.full((1, 1), 2.0)).sum().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


@blind_to(swallows_errors="a communication hook calls no module")
def check_q1(hook: Callable[..., Any]) -> Wrong | None:
    return _wrong_average(hook, torch.float32, 1) or _wrong_average(hook, torch.float64, 50_000) or _fixed_count(hook)


def _fixed_count(hook: Callable[..., Any]) -> Wrong | None:
    try:
        alone = _run(_alone, hook)[0]
    except ranks.RankError as error:
        return Wrong(f"it works on two ranks. On one rank alone: {error}")
    if abs(alone / 2 - 1) < 0.01:
        return None
    return Wrong(
        f"it works on two ranks only: on one rank, a gradient of 2 became {alone:g}; divide by dist.get_world_size()"
    )


def _wrong_average(hook: Callable[..., Any], dtype: torch.dtype, scale: float) -> Wrong | None:
    try:
        ranks_seen = _run(_average_of, hook, dtype, scale)
    except ranks.RankError as error:
        if "SIGSEGV" in str(error):
            return Wrong("your hook returned None, and that ended both processes (SIGSEGV); return the Future")
        if got := re.search(r"must return a torch\.futures\.Future object, but got ([\w.]+)", str(error)):
            kind = got[1].rsplit(".", 1)[-1]
            return Wrong(f"your hook returned a {kind}; it should return a torch.futures.Future")
        _, in_then, raised = str(error).rpartition("when running the callback: ")
        if in_then:
            return Wrong(f"the function that you gave to `.then` raised {raised.splitlines()[0]}")
        return Wrong(f"{error}")
    gradients = [seen["gradient"] for seen in ranks_seen]
    if not all(abs(gradient / (3 * scale) - 1) < 0.01 for gradient in gradients):
        first, second = (f"{gradient:g}" for gradient in gradients)
        became = f"{first} on both ranks" if first == second else f"{first} on rank 0 and {second} on rank 1"
        ends = "; the largest float16 value is 65504, so use bfloat16" if scale > 1 else ""
        return Wrong(
            f"the gradients {2 * scale:g} and {4 * scale:g} became {became}; the mean should be {3 * scale:g}{ends}"
        )
    received = min(seen["received"] for seen in ranks_seen)
    if received < NUMBERS:
        return Wrong("the mean is right, but you sent nothing to the other rank; it should exchange the gradients")
    if received > 3 * NUMBERS:
        each = received / NUMBERS
        return Wrong(f"the mean is right, but {NUMBERS:,} gradients took {each:.0f} bytes each; they should take 2")
    dtypes = set().union(*(seen["dtypes"] for seen in ranks_seen))
    if dtypes != {dtype}:
        came = ", ".join(sorted(map(str, dtypes)))
        return Wrong(f"the mean is right, but your Future holds {came}; it should be {dtype}, as in the bucket")
    found = next((seen["found"] for seen in ranks_seen if seen["found"]), "")
    return Wrong(found) if found else None


def _means_of(function: Callable[[nn.Module, Tensor], Any], images: Tensor, first: int) -> dict[str, Any]:
    """On a rank: call the function with this rank's images, the `first` ones on rank 0 and the others on rank 1."""
    model, guard = check_helpers.add_foreign_hooks(samples.digit_cnn().to(images.dtype)), Guard()
    means = guard.guard(function)(model, images[:first] if dist.get_rank() == 0 else images[first:])
    return {"means": means, "left": check_helpers.count_hooks(model), "found": guard.found}


def _keeps_errors(function: Callable[[nn.Module, Tensor], Any]) -> bool:
    """On a rank: whether the function keeps to itself what `block3` raised."""
    model = nn.Sequential()
    model.add_module("block3", BreakingLayer())
    return hides_errors(lambda: function(model, torch.ones(1, 1, 28, 28)))


def check_q2(function: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    images = samples.digits("test").images
    try:
        if wrong := _wrong_means(function, images[:7], 5):
            return wrong
        if wrong := _wrong_means(function, images[7:11].double(), 1):
            return wrong
        return Wrong(ERROR_HIDDEN) if any(_run(_keeps_errors, function)) else None
    except ranks.RankError as error:
        return Wrong(f"{error}")


def _wrong_means(function: Callable[[nn.Module, Tensor], Any], images: Tensor, first: int) -> Wrong | None:
    model = samples.digit_cnn().to(images.dtype)
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    per_image = seen["block3"].output.mean((2, 3))
    expected, halves = per_image.mean(0), (per_image[:first].mean(0), per_image[first:].mean(0))
    for rank, result in enumerate(_run(_means_of, function, images, first)):
        means = result["means"]
        if not isinstance(means, Tensor) or means.shape != (32,):
            found = tuple(means.shape) if isinstance(means, Tensor) else repr(means)
            return Wrong(f"rank {rank} returned {found}; it should be a tensor of 32 numbers, one per channel")
        if left := result["left"]:
            return Wrong(f"on rank {rank}, {check_helpers.format_count(left)} still on the model; remove every handle")
        if torch.allclose(means.to(expected.dtype), expected, atol=1e-5):
            if result["found"]:
                return Wrong(result["found"])
            continue
        means = means.to(expected.dtype)
        if torch.allclose(means, halves[rank], atol=1e-5):
            return Wrong(f"rank {rank} returned the means of its own images; it should use the images of both ranks")
        if torch.allclose(means, (halves[0] + halves[1]) / 2, atol=1e-5):
            return Wrong(
                f"you returned the mean of the two ranks' means; rank 0 has {first} images and rank 1 has "
                f"{len(images) - first}, and each image should count the same"
            )
        positions = seen["block3"].output[0, 0].numel()
        if torch.allclose(means / positions, expected, atol=1e-5):
            return Wrong(f"you summed over the {positions} positions of each channel; use their mean, `mean((2, 3))`")
        own = (first, len(images) - first)[rank]
        if torch.allclose(means * own / len(images), expected, atol=1e-5):
            return Wrong(f"rank {rank} divided by {own}, its own number of images; both ranks have {len(images)}")
        ratio = (means.sum() / expected.sum()).item()
        return Wrong(f"the sum of your numbers on rank {rank} is {ratio:.2g} times as large as it should be")
    return None
