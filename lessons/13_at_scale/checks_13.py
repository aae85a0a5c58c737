"""Chapter 13: a communication hook that sends half, and a mean over what all ranks saw. Both run on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hookscope
from hookscope import samples
from hookscope_course import ranks
from hookscope_course.exercises import Wrong

NUMBERS = 10_000


def _run(worker: Callable[..., Any], *args: Any) -> list[Any]:
    """Use the processes that the notebook has, or start some."""
    return ranks.start(2).run(worker, *args)


def _average_of(hook: Callable[..., Any]) -> tuple[float, int]:
    """On a rank: the gradient of a weight whose inputs are 2 on rank 0 and 4 on rank 1, and the bytes it took."""
    layer = nn.Linear(NUMBERS, 1, bias=False)
    ddp = nn.parallel.DistributedDataParallel(layer)
    ddp.register_comm_hook(None, hook)
    inputs = torch.full((1, NUMBERS), 2.0 + 2 * dist.get_rank())
    ddp(inputs).sum().backward()  # the first pass also opens connections
    layer.zero_grad()
    before = ranks.bytes_received()
    ddp(inputs).sum().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.mean().item(), ranks.bytes_received() - before


def check_q1(hook: Callable[..., Any]) -> Wrong | None:
    try:
        ((gradient, received), _) = _run(_average_of, hook)
    except ranks.RankError as error:
        if "SIGSEGV" in str(error):
            return Wrong("your hook returned None, and that ended both processes (SIGSEGV); return the Future")
        return Wrong(f"{error}")
    if round(gradient, 2) != 3:
        return Wrong(f"the gradients 2 and 4 became {gradient:g} on both ranks; their mean is 3")
    if received > 3 * NUMBERS:
        return Wrong(
            f"the mean is right, but {NUMBERS:,} gradients took {received / NUMBERS:.0f} bytes each on the wire; send 2"
        )
    return None


def _means_of(function: Callable[[nn.Module, Tensor], Any], images: Tensor) -> tuple[Any, int]:
    """On a rank: call the function with this rank's pictures, five on rank 0 and two on rank 1."""
    model = samples.digit_cnn()
    means = function(model, images[:5] if dist.get_rank() == 0 else images[5:])
    return means, len(hookscope.census(model))


def check_q2(function: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
    images = samples.digits("test").images[:7]
    model = samples.digit_cnn()
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    per_picture = seen["block3"].output.mean((2, 3))
    try:
        results = _run(_means_of, function, images)
    except ranks.RankError as error:
        return Wrong(f"{error}")
    for rank, (means, left) in enumerate(results):
        if not isinstance(means, Tensor) or means.shape != (32,):
            found = tuple(means.shape) if isinstance(means, Tensor) else repr(means)
            return Wrong(f"rank {rank} returned {found}; it should be a tensor of 32 numbers, one per channel")
        if left:
            return Wrong(f"on rank {rank} there are {left} hooks left on the model")
        if torch.allclose(means, per_picture.mean(0), atol=1e-5):
            continue
        halves = per_picture[:5].mean(0), per_picture[5:].mean(0)
        if torch.allclose(means, halves[rank], atol=1e-5):
            return Wrong(f"rank {rank} returned the means of its own pictures only")
        if torch.allclose(means, (halves[0] + halves[1]) / 2, atol=1e-5):
            return Wrong(
                "you returned the mean of the two ranks' means; rank 0 has 5 pictures and rank 1 has 2, "
                "and each picture should count the same"
            )
        ratio = (means.sum() / per_picture.mean(0).sum()).item()
        return Wrong(f"rank {rank} returned numbers that are, all together, {ratio:.2g} times the right ones")
    return None
