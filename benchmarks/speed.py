"""Time and peak memory of one pass under each tool, as ratios to a plain forward in the same run."""

from __future__ import annotations

import copy
import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tools import TOOLS, Pass, at_work

PLAIN = "plain forward"
CALM = "resnet18, nothing in place"
NO_GRAPH = (
    "torchlens trace",
    "captum LayerActivation",
    "torchvision extractor",
    "hooks that share copy-on-write and see writes",
    "hooks that copy to warm buffers",
    "hooks that copy to warm buffers and see writes",
)
"""Not timed with a backward pass: what does not give the model's output, or is a floor for passes without one."""
PEERS = ("torchlens", "nnsight", "captum", "extractor")
_QUICK = 0.05  # seconds; shorter passes vary more, and are timed five times as often
_SETTLE = 0.2  # seconds; shorter passes are preceded by a plain one, so that each finds the allocator alike


class Recurrent(nn.Module):
    """Two LSTMs and a linear layer: outputs that are tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(64, 256, num_layers=2, batch_first=True)
        self.second = nn.LSTM(256, 256, batch_first=True)
        self.out = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify (N, T, 64) sequences."""
        return self.out(self.second(self.first(x)[0])[0][:, -1])  # type: ignore[no-any-return]


def models() -> dict[str, tuple[nn.Module, Callable[[int], Tensor]]]:
    """Make the models, and for each the function that makes a batch of inputs."""
    import torchvision

    torch.manual_seed(0)
    found: dict[str, tuple[nn.Module, Callable[[int], Tensor]]] = {
        "resnet18": (torchvision.models.resnet18(weights=None), images(224)),
        # Smaller pictures for the heavy ones: at 224×224 the whole run takes an hour.
        "vgg16 at 112×112": (torchvision.models.vgg16(weights=None), images(112)),
        "vit_b_16 at 112×112": (torchvision.models.vit_b_16(weights=None, image_size=112), images(112)),
    }
    found[CALM] = _calm_resnet18(), images(224)
    found["LSTM"] = Recurrent(), lambda batch: torch.randn(batch, 100, 64)
    return found


def _calm_resnet18() -> nn.Module:
    """Make a resnet18 that computes the same and writes to nothing in place: neither ReLU nor addition."""
    from torchvision.models.resnet import BasicBlock, ResNet

    class Block(BasicBlock):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            shortcut = x if self.downsample is None else self.downsample(x)
            inside = self.relu(self.bn1(self.conv1(x)))
            return self.relu(self.bn2(self.conv2(inside)) + shortcut)  # type: ignore[no-any-return]

    model: nn.Module = ResNet(Block, [2, 2, 2, 2])
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def images(size: int) -> Callable[[int], Tensor]:
    """Return a function that makes a batch of random pictures."""
    return lambda batch: torch.randn(batch, 3, size, size)


def passes(model: nn.Module, backward: bool) -> Iterator[tuple[str, Callable[[Tensor], Any]]]:
    """Give, for each tool, what is timed: a pass, with what the tool keeps still alive when it returns."""
    for label, tool in TOOLS.items():
        own_backward = "gradients" in label
        if (backward and label in NO_GRAPH) or (own_backward and not backward):
            continue
        # Some peers leave something behind on the model, which must not slow the others.
        run = tool(copy.deepcopy(model) if tool.__name__ in PEERS else model)
        yield label, _with_backward(run, model) if backward and not own_backward else run


def _with_backward(run: Pass, model: nn.Module) -> Callable[[Tensor], Any]:
    def both(batch: Tensor) -> Any:
        done = run(batch)
        done.output.sum().backward()
        return done

    return both


def measure(model: nn.Module, batch: Tensor, backward: bool, rounds: int) -> list[dict[str, object]]:
    """Measure every tool, taking turns: `rounds` times each, or more, after two passes that do not count."""
    model.eval()
    tools = {}
    for label, run in passes(model, backward):
        tools[label] = run
    times: dict[str, list[float]] = {label: [] for label in tools}
    memory: dict[str, float] = {}
    with torch.set_grad_enabled(backward):
        for label, run in tools.items():
            try:
                with at_work(label):
                    memory[label] = _peak(run, batch)
            except Exception as error:
                print(f"{label} fails: {type(error).__name__}", flush=True)
                del times[label]
            model.zero_grad(set_to_none=False)
        tools = {label: tools[label] for label in times}
        start = time.perf_counter()
        tools[PLAIN](batch)
        taken_once = time.perf_counter() - start
        settle = taken_once < _SETTLE
        rounds *= 5 if taken_once < _QUICK else 1
        for _ in range(rounds):
            gc.collect()
            for label, run in tools.items():
                if settle:
                    tools[PLAIN](batch)
                with at_work(label):
                    start = time.perf_counter()
                    kept = run(batch)
                    times[label].append(time.perf_counter() - start)
                    del kept
    base = statistics.median(times[PLAIN])
    return [
        {
            "tool": label,
            "time": statistics.median(taken) / base,
            "fastest": min(taken) / min(times[PLAIN]),
            "ms": 1000 * statistics.median(taken),
            "MB": memory[label],
        }
        for label, taken in times.items()
    ]


def _peak(run: Callable[[Tensor], Any], batch: Tensor) -> float:
    """Run twice, so that what is prepared once is there; return by how many MB the second raised the peak at most."""
    run(batch)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    idle = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    kept = run(batch)
    peak = _status("VmHWM")
    del kept
    return (peak - idle) / 1024


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found, field
    return int(found[1])
