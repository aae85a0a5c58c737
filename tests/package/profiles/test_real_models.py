"""What layers of torchvision's and transformers' models cost is what torch's own tools say."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.utils.flop_counter import FlopCounterMode

from hookscope import census, profile
from tests.shared.language import IDS, gpt2, small_vit


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval().requires_grad_(False)


def ranks(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).argsort().argsort().float()


def test_times_of_a_resnet_are_those_of_the_profiler() -> None:
    net, x = resnet(), torch.randn(4, 3, 96, 96)
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        costs = profile(net, x, repeats=9, backward=False)
        times: dict[str, list[float]] = {name: [] for name in layers}
        running = ExitStack()
        for name in layers:
            module = net.get_submodule(name)
            module.register_forward_pre_hook(
                lambda *_, name=name: running.enter_context(record_function(name)) and None
            )
            module.register_forward_hook(lambda *_: running.close())
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(9):
                net(x)
    finally:
        torch.set_num_threads(threads)
    for event in found.events():  # type: ignore[no-untyped-call]
        if event.name in times:
            times[event.name].append(event.cpu_time_total / 1e6)
    # The shortest of several, here and there: another process may take the processor during any of them.
    ours, theirs = [min(costs[name].forward.runs) for name in layers], [min(times[name]) for name in layers]
    assert 0.6 < sum(ours) / sum(theirs) < 1.6
    # By chance 40 layers would be in much the same order once in many thousand times.
    assert float(torch.corrcoef(torch.stack([ranks(ours), ranks(theirs)]))[0, 1]) > 0.6


@pytest.mark.parametrize("kind", ["resnet18", "vit", "gpt2"])
def test_flops_are_those_of_torchs_counter_and_no_hook_stays(kind: str) -> None:
    make: Any = {"resnet18": resnet, "vit": small_vit, "gpt2": gpt2}[kind]
    net, x = make(), IDS if kind == "gpt2" else torch.randn(2, 3, 32, 32)
    net.requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        net(x)
    costs = profile(net, x, repeats=1, backward=False)
    theirs = counter.get_flop_counts()
    title = type(net).__name__
    assert costs[""].flops == sum(theirs["Global"].values()) > 0
    for name in costs:
        assert costs[name].flops == sum(theirs.get(f"{title}.{name}" if name else title, {}).values())
    assert not len(census(net))
