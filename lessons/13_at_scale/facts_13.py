"""What chapter 13 says of more than one rank, run on two, or on one that talks to itself."""

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hookscope import samples
from hookscope_course import ranks

# As from a notebook: the ranks get the functions themselves, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """Two ranks."""
    if not hasattr(os, "fork"):
        pytest.skip("`ranks` forks")
    with ranks.start(2) as group:
        yield group


def _means_of(rank: int, before: str, looked_at: str) -> float:
    """On a rank: the running mean that the pass that is looked at begins with, of rank 0 or its own: 7 times the rank.

    Args:
        rank: this one.
        before: how the pass before it runs: with "grad", in "no_sync", under "no_grad" or "inference_mode".
        looked_at: how it runs itself; "eval" is a pass with gradients in eval().

    """
    ddp = DistributedDataParallel(nn.BatchNorm1d(1))
    around = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "no_sync": ddp.no_sync}
    x = torch.full((2, 1), float(rank))
    ddp(x).sum().backward()
    for how in (before, looked_at):
        ddp.train(how != "eval")
        ddp.module.running_mean.fill_(7.0 * rank)
        seen = list[float]()
        look = ddp.module.register_forward_pre_hook(lambda m, args, seen=seen: seen.append(m.running_mean.item()))
        with around.get(how, nullcontext)():
            y = ddp(x).sum()
        if y.requires_grad:
            y.backward()
        look.remove()
    return seen[0]


def test_each_rank_keeps_its_buffers_after_a_pass_that_averages_nothing(says, two: Any):
    says(
        "After a training pass, the next forward pass gives all ranks the buffers of rank 0.",
        "After a pass under `no_grad()` or in `no_sync()`, each rank keeps its own buffers.",
        "So the first validation pass after a training pass is a collective, too.",
    )

    def own_after(before: str, looked_at: str) -> float:
        return _means_of(dist.get_rank(), before, looked_at)

    for looked_at in ("grad", "eval", "no_grad", "no_sync"):
        assert two.run(own_after, "grad", looked_at) == [0, 0], looked_at
    for before, looked_at in (
        ("no_sync", "grad"),
        ("no_grad", "grad"),
        ("no_grad", "no_grad"),
        ("inference_mode", "grad"),
    ):
        assert two.run(own_after, before, looked_at) == [0, 7], (before, looked_at)


def test_rank_0_can_validate_alone(says, two: Any):
    says("To validate on rank 0 only, call `ddp.module`.")

    def train_validate_train() -> float:
        ddp, x = DistributedDataParallel(nn.BatchNorm1d(1)), torch.ones(2, 1)
        ddp(x).sum().backward()
        if dist.get_rank() == 0:
            with torch.no_grad():
                ddp.module(x)  # with `ddp(x)`, a process ends in the next pass
        ddp(x).sum().backward()
        return float(ddp.module.running_mean)

    first, second = two.run(train_validate_train)
    assert first == second


def test_a_wrapper_that_nobody_keeps_averages_nothing(says, two: Any):
    says("`DDP(net)(x).sum().backward()` does not average the gradients, because no variable keeps the wrapper alive.")
    says("With DDP's default options, there is no error.")

    def gradient(**options: bool) -> float:
        layer, x = nn.Linear(1, 1), torch.full((1, 1), 2.0 + 2 * dist.get_rank())
        DistributedDataParallel(layer, **options)(x).sum().backward()
        return layer.weight.grad.item()

    assert two.run(gradient) == [2, 4]
    with pytest.raises(ranks.RankError, match="reducer"):
        two.run(partial(gradient, find_unused_parameters=True))


def test_fsdp2_runs_hooks_after_the_reduction(says, two: Any):
    says(
        "A post-accumulate hook runs *after* the gradients were reduced over the ranks.",
        "Register hooks on weights after `fully_shard`: it makes new parameters, and hooks on the old ones do not run.",
        "A tensor hook on a weight does not run at all.",
    )

    def step_in_hook() -> tuple[float, list[str]]:
        from torch.distributed.fsdp import fully_shard

        layer, fired = nn.Linear(1, 2, bias=False), list[str]()
        nn.init.constant_(layer.weight, 5.0)
        layer.weight.register_post_accumulate_grad_hook(lambda weight: fired.append("on the old weight"))
        fully_shard(layer)

        def step(weight: Any) -> None:
            fired.append("post-accumulate hook")
            with torch.no_grad():
                weight -= 0.1 * weight.grad

        layer.weight.register_hook(lambda grad: fired.append("tensor hook"))
        layer.weight.register_post_accumulate_grad_hook(step)
        layer(torch.full((1, 1), 2.0 + 2 * dist.get_rank())).sum().backward()
        return round(layer.weight.full_tensor()[0].item(), 4), fired

    first, second = two.run(step_in_hook)
    assert first == second, "what it finds was reduced over the ranks"
    assert first[0] in (4.7, 4.4), "the mean; before torch 2.9 the sum, with gloo"
    assert first[1] == ["post-accumulate hook"]


def _rows_under_fsdp2(when: str) -> dict[str, int]:
    """On a rank: the rows of a weight that hooks find, on a layer inside and on the outermost part's own layer."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    net, rows = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), dict[str, int]()

    def note_as(name: str, layer: nn.Linear) -> None:
        weight: Any = layer.weight
        rows[name] = len(weight.to_local() if isinstance(weight, DTensor) else weight)

    def register() -> None:
        for layer, name in zip(net.children(), ("inner", "own"), strict=True):
            layer.register_forward_pre_hook(lambda m, args, name=name: note_as(f"{name}, pre-hook", m))
            layer.register_forward_hook(lambda m, args, output, name=name: note_as(f"{name}, hook", m))

    if when == "before":
        register()
    fully_shard(net[0])
    fully_shard(net)
    if when == "after":
        register()
    loss = net(torch.ones(2, 4)).sum()
    note_as("own, after the pass", net[1])
    loss.backward()
    note_as("own, after backward()", net[1])
    return rows


def test_fsdp2_shows_a_whole_weight_or_a_part(says, two: Any):
    says(
        "finds 3 rows. If you register it before, yours runs first and finds all 6.",
        "The pre-hook finds 6 in both cases, because `fully_shard` puts its own pre-hook at the front",
        "the weights that only the last call shards, `fully_shard(net)`, stay whole after the forward pass, until "
        "their gradients are there.",
    )
    own = {"own, pre-hook": 2, "own, hook": 2, "own, after the pass": 2, "own, after backward()": 1}
    assert two.run(_rows_under_fsdp2, "after") == [{"inner, pre-hook": 6, "inner, hook": 3, **own}] * 2
    assert two.run(_rows_under_fsdp2, "before") == [{"inner, pre-hook": 6, "inner, hook": 6, **own}] * 2


def test_a_full_tensor_needs_all_ranks(says, two: Any):
    says("Both are collectives: if you call one only on rank 0, the training stands still, as in the opening.")

    def fetch(of: str, asked: int) -> list[float] | None:
        from torch.distributed.fsdp import fully_shard

        layer = nn.Linear(1, 2, bias=False)
        nn.init.constant_(layer.weight, 5.0)
        fully_shard(layer)
        layer(torch.ones(1, 1)).sum().backward()
        weight: Any = layer.weight
        tensor = weight if of == "weight" else weight.grad
        return tensor.full_tensor().flatten().tolist() if dist.get_rank() < asked else None

    assert two.run(fetch, "weight", 2) == [[5, 5], [5, 5]]
    for of in ("weight", "gradient"):
        with pytest.raises(ranks.RankError, match="waited"):
            two.run(fetch, of, 1)


def test_a_full_backward_hook_finds_a_plain_weight_under_fsdp2(says, two: Any):
    says(
        "In a full backward hook, the weight is whole again, but it is a plain parameter without `full_tensor()`.",
        "There, its `.grad` holds the gradient of this rank.",
    )

    def look() -> list[Any]:
        from torch.distributed.fsdp import fully_shard

        net, found = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2)), list[Any]()
        nn.init.constant_(net.get_parameter("1.weight"), 1.0)
        fully_shard(net[0])
        fully_shard(net)

        def note(layer: nn.Module, grad_input: Any, grad_output: Any) -> None:
            weight = layer.get_parameter("weight")
            assert weight.grad is not None
            found.extend([len(weight), hasattr(weight, "full_tensor"), weight.grad.flatten().tolist()])

        net[0].register_full_backward_hook(note)
        net(torch.full((1, 1), 3.0 + dist.get_rank(), requires_grad=True)).sum().backward()
        return found

    assert two.run(look) == [[2, False, [6, 6]], [2, False, [8, 8]]]


def test_numbers_are_read_in_ones_own_shape(says, two: Any):
    says(
        "as for the shapes (2, 3) and (3, 2), there is no error, and each rank reads the other's numbers in its own "
        "shape.",
    )

    def gather() -> list[Any]:
        mine = torch.arange(6).reshape((2, 3) if dist.get_rank() == 0 else (3, 2)) + 10 * dist.get_rank()
        both = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(both, mine)
        return [each.tolist() for each in both]

    first, second = two.run(gather)
    assert first == [[[0, 1, 2], [3, 4, 5]], [[10, 11, 12], [13, 14, 15]]]
    assert second == [[[0, 1], [2, 3], [4, 5]], [[10, 11], [12, 13], [14, 15]]]


def test_buckets_and_what_is_sent(says, tmp_path: Path):
    says(
        "By default, and if all gradients have the same dtype, one bucket holds all of them in the first step.",
        "From the second step on, the first bucket is full at 1 MiB, and each of the others at 25 MiB.",
        "A communication hook runs once for each bucket in each step.",
        "It sends the gradients of the biases as they are.",
        "has 26,530 gradients.",
        "You can register one communication",
    )

    class Weights(nn.Module):
        def __init__(self, *mib: int) -> None:
            super().__init__()
            self.all = nn.ParameterList(torch.zeros(2**18 * each) for each in mib)

        def forward(self, x: Tensor) -> Any:
            return sum((p * x).sum() for p in self.all)

    def steps(net: nn.Module, hook: Any, x: Tensor, state: object = None) -> list[list[float]]:
        seen, found = list[float](), list[list[float]]()

        def note(state, bucket):
            seen.append(bucket.buffer().nbytes / 2**20)
            return hook(state, bucket)

        (ddp := DistributedDataParallel(net)).register_comm_hook(state, note)
        with pytest.raises(RuntimeError, match="only be called once"):
            ddp.register_comm_hook(None, note)
        for _ in range(3):
            seen.clear()
            ddp(x).sum().backward()
            found.append([*seen])
        return found

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        plain, one = default_hooks.allreduce_hook, torch.ones(1)
        assert steps(Weights(1, 1, 1), plain, one) == [[3], [1, 2], [1, 2]]
        assert steps(Weights(20, 20, 30), plain, one) == [[70], [30, 40], [30, 40]], "over 25"
        net, state = samples.digit_cnn(), powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        steps(net, powerSGD_hook.powerSGD_hook, samples.digits("test").images[:4], state)
    finally:
        dist.destroy_process_group()
    sent = sum(sum(p.flatten(1).shape) if p.dim() > 1 else len(p) for p in net.parameters())
    assert state.compression_stats()[1:] == (26530, sent)


@pytest.mark.slow
def test_the_loss_falls_more_slowly_with_power_sgd_from_each_of_ten_initializations(says, tmp_path: Path):
    """One process with 32 scans takes the same steps as two with 16: PowerSGD averages, and so does DDP."""
    says("the loss falls more slowly. It did so from each of the ten initializations that we tried.")
    images, labels = samples.digits("train")

    def last_losses(seed: int, compress: bool) -> float:
        torch.manual_seed(seed)
        ddp = DistributedDataParallel(samples.DigitCNN())
        if compress:
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer, losses = torch.optim.Adam(ddp.parameters(), lr=0.003), []
        for rows in torch.arange(1280).split(32):
            loss = F.cross_entropy(ddp(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return statistics.mean(losses[-10:])

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        for seed in range(10):
            assert last_losses(seed, compress=True) > 1.5 * last_losses(seed, compress=False)
    finally:
        dist.destroy_process_group()
