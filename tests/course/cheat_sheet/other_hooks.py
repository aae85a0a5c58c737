"""Demonstrations of the hooks around a step, on several tensors, on what is saved for backward, and on what is sent."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn

from tests.course.cheat_sheet import NAMES, TEXT, Noting, Row, X, optimizer_of, shows, x_that_requires


@shows(
    "optimizer.register_step_pre_hook",
    fires="before `step`",
    returns="`(args, kwargs)`",
    trap="`args[0]` is the optimizer",
)
def step_pre_hook(row: Row) -> None:
    weight, seen = nn.Parameter(torch.tensor(2.0)), []
    optimizer = optimizer_of(weight)

    def closure() -> torch.Tensor:
        seen.append("closure")
        return torch.zeros(())

    def give_a_closure(optimizer: object, args: tuple[object, ...], kwargs: object) -> object:
        seen.append((weight.item(), args[0] is optimizer))
        return (*args, closure), kwargs

    handle = row.put_on(give_a_closure, optimizer=optimizer)
    optimizer.step()
    assert seen == [(2, True), "closure"]
    assert weight == -1
    row.take_off(handle)
    optimizer.step()
    assert len(seen) == 2


@shows(
    "optimizer.register_step_post_hook",
    fires="after `step`",
    returns="nothing; a value is ignored",
    trap="it does not fire if `step` raises",
)
def step_post_hook(row: Row) -> None:
    weight, seen = nn.Parameter(torch.tensor(2.0)), []
    optimizer = optimizer_of(weight)
    handle = row.put_on(lambda optimizer, args, kwargs: seen.append(weight.item()) or "a value", optimizer=optimizer)
    optimizer.step()
    assert seen == [-1]
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 // 0)
    row.take_off(handle)
    optimizer.step()
    assert seen == [-1]


@shows(
    "graph.register_multi_grad_hook",
    fires="when the last of their gradients is there",
    returns="nothing; a value is ignored",
    trap="None for a tensor not reached",
)
def multi_grad_hook(row: Row) -> None:
    seen: list[object] = []
    tensors = [torch.tensor(value, requires_grad=True) for value in (2.0, 3.0)]
    for tensor in tensors:
        tensor.register_hook(lambda grad: seen.append(grad.item()))
    handle = row.put_on(lambda grads: seen.append([*grads]) or "a value", tensors=tensors)
    (tensors[0] * tensors[1]).backward()
    assert len(seen) == 3
    assert [seen[-1], [tensor.grad for tensor in tensors]] == [[3, 2]] * 2
    seen.clear()
    (4 * tensors[0]).backward()
    assert seen == [4, [4, None]]
    loss, alone = 2 * torch.tensor(1.0, requires_grad=True), []
    with torch.autograd.graph.register_multi_grad_hook([loss], alone.append):
        loss.backward()
    assert alone == []
    row.take_off(handle)
    (4 * tensors[0]).backward()
    assert seen[2:] == [4]


@shows(
    "graph.saved_tensors_hooks",
    fires="at saving for backward; when backward needs it",
    returns="anything; the tensor",
    trap="only the inner of two blocks counts",
)
def saved_tensors_hooks(row: Row) -> None:
    assert row.arguments == "tensor; what `pack` returned"
    seen: list[object] = []
    names: dict[str, object] = dict(NAMES, seen=seen, x=x_that_requires())
    names["pack"] = lambda tensor: seen.append("pack") or [tensor.item()]
    names["unpack"] = lambda kept: seen.append(kept) or torch.tensor([[10 * kept[0]]])
    names["none"] = lambda tensor: seen.append("outer")
    block = f"{row.code}\n    y = x.pow(2)\n    seen.append('forward is done')"
    exec(block, names)
    names["y"].backward()
    assert seen == ["pack", "forward is done", [3]]
    assert names["x"].grad == 60, "by what unpack returned"
    seen.clear()
    exec(f"with graph.saved_tensors_hooks(none, none):\n    {block.replace(chr(10), chr(10) + '    ')}", names)
    names["x"].pow(2)
    assert seen == ["pack", "forward is done"]


@shows(
    "ddp.register_comm_hook",
    fires="when a bucket is ready to be sent",
    returns="a `Future` of gradients",
    trap="a second one is an error",
)
def communication_hook(row: Row) -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    ddp, seen = nn.parallel.DistributedDataParallel(Noting()), []

    def ten_times(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append((state, bucket.buffer().item()))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(10 * bucket.buffer())
        return future

    handle = row.put_on(ten_times, ddp=ddp, state="mine")
    ddp(X).backward()
    assert seen == [("mine", 3)]
    assert ddp.module.weight.grad == 30
    assert "A communication hook has no handle and stays" in TEXT
    assert handle is None
    with pytest.raises(RuntimeError, match="can only be called once"):
        row.put_on(ten_times, ddp=ddp, state="mine")
