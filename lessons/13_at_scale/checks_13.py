"""Chapter 13: a communication hook that sends half, and a mean over what all ranks saw. Both run on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hookscope
from hookscope import samples
from lessons import ranks
from lessons.checks.blank import ____
from lessons.checks.exercise import Exercise, Wrong

__all__ = ["____", "q1", "q2"]

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


def _check_half_average(hook: Callable[..., Any]) -> Wrong | None:
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


q1 = Exercise(
    "13.1",
    question="Write a comm hook that averages the gradients over the ranks and sends two bytes per number, as "
    "`torch.bfloat16`. What comes out must have the bucket's dtype again.",
    difficulty="medium",
    minutes=6,
    check=_check_half_average,
    why="the collective sends the tensor that you hand to it, in its dtype; what you then do with it costs no wire.",
    hints=(
        "Make a smaller copy of `bucket.buffer()`, hand that one to `dist.all_reduce`, and turn the result back in "
        "`.then`.",
        "`small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()`; in the function that you give to "
        "`.then`, `future.value()[0].to(bucket.buffer().dtype)`.",
    ),
    solution="""
def half_average(state, bucket):
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    work = dist.all_reduce(small, async_op=True)
    return work.get_future().then(lambda future: future.value()[0].to(torch.float32))

q1.check(half_average)
""",
    setup="import torch.distributed as dist\n",
    wrong={
        """
def half_average(state, bucket):
    small = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(small, async_op=True)
    return work.get_future().then(lambda future: future.value()[0].to(torch.float32))

q1.check(half_average)
""": "2 and 4 became 6",
        """
def half_average(state, bucket):
    mean = bucket.buffer() / dist.get_world_size()
    work = dist.all_reduce(mean, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])

q1.check(half_average)
""": "took 4 bytes each",
        """
def half_average(state, b):
    return None

q1.check(half_average)
""": "KeyError: 'bucket'",
        """
def half_average(state, bucket):
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    dist.all_reduce(small)

q1.check(half_average)
""": "your hook returned None",
        """
def half_average(state, bucket):
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    dist.all_reduce(small)
    return small.float()

q1.check(half_average)
""": "must return a torch.futures.Future object",
    },
)


def _means_of(function: Callable[[nn.Module, Tensor], Any], images: Tensor) -> tuple[Any, int]:
    """On a rank: call the function with this rank's pictures, five on rank 0 and two on rank 1."""
    model = samples.digit_cnn()
    means = function(model, images[:5] if dist.get_rank() == 0 else images[5:])
    return means, len(hookscope.census(model))


def _check_channel_means(function: Callable[[nn.Module, Tensor], Any]) -> Wrong | None:
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


q2 = Exercise(
    "13.2",
    question="Each rank calls `channel_means` with the same model and with pictures of its own, not equally many. "
    "Return on every rank the mean of each channel of `block3`'s output over the pictures of all ranks: 32 numbers.",
    difficulty="medium",
    minutes=8,
    check=_check_channel_means,
    why="sums and counts may be added over ranks, means may not.",
    hints=(
        "Rank 0 has 5 pictures and rank 1 has 2. What can you add up over the ranks so that each picture counts once?",
        "`all_reduce` a sum over the pictures, and `all_reduce` how many they are. Then divide.",
    ),
    solution="""
def channel_means(model, images):
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    total = seen["block3"].output.mean((2, 3)).sum(0)
    count = torch.tensor(float(len(images)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count

q2.check(channel_means)
""",
    setup="import hookscope\nimport torch.distributed as dist\n",
    wrong={
        """
def channel_means(model, images):
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    return seen["block3"].output.mean((0, 2, 3))

q2.check(channel_means)
""": "its own pictures only",
        """
def channel_means(model, images):
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    means = seen["block3"].output.mean((0, 2, 3))
    dist.all_reduce(means)
    return means / dist.get_world_size()

q2.check(channel_means)
""": "mean of the two ranks' means",
        """
def channel_means(model, images):
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    total = seen["block3"].output.mean((2, 3)).sum(0)
    dist.all_reduce(total)
    return total

q2.check(channel_means)
""": "7 times the right ones",
        """
def channel_means(model, images):
    kept = []
    model.block3.register_forward_hook(lambda module, args, output: kept.append(output.detach()))
    model(images)
    total, count = kept[0].mean((2, 3)).sum(0), torch.tensor(float(len(images)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count

q2.check(channel_means)
""": "1 hooks left",
        """
def channel_means(model, images):
    with hookscope.capture(model, "block3") as seen, torch.no_grad():
        model(images)
    return seen["block3"].output

q2.check(channel_means)
""": "rank 0 returned (5, 32, 7, 7)",
    },
)
