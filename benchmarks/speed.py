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
QUICK, MORE = 0.05, 5  # seconds; shorter passes vary more, and are timed so many times as often
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


Model = tuple[nn.Module, Callable[[int], Tensor]]
"""A model, and the function that makes a batch of inputs."""


def _torchvision(name: str, size: int, **options: Any) -> Model:
    import torchvision

    torch.manual_seed(0)
    return getattr(torchvision.models, name)(weights=None, **options), images(size)


def _calm_resnet18() -> nn.Module:
    """Make a resnet18 that computes the same and writes to nothing in place: neither ReLU nor addition."""
    from torchvision.models.resnet import BasicBlock, ResNet

    class OutOfPlaceBlock(BasicBlock):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            shortcut = x if self.downsample is None else self.downsample(x)
            inside = self.relu(self.bn1(self.conv1(x)))
            return self.relu(self.bn2(self.conv2(inside)) + shortcut)  # type: ignore[no-any-return]

    model: nn.Module = ResNet(OutOfPlaceBlock, [2, 2, 2, 2])
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def images(size: int) -> Callable[[int], Tensor]:
    """Return a function that makes a batch of random pictures."""
    return lambda batch: torch.randn(batch, 3, size, size)


MODELS: dict[str, Callable[[], Model]] = {
    "resnet18": lambda: _torchvision("resnet18", 224),
    # Smaller pictures for the heavy ones: at 224×224 the whole run takes an hour.
    "vgg16 at 112×112": lambda: _torchvision("vgg16", 112),
    "vit_b_16 at 112×112": lambda: _torchvision("vit_b_16", 112, image_size=112),
    CALM: lambda: (_calm_resnet18(), images(224)),
    "LSTM": lambda: (Recurrent(), lambda batch: torch.randn(batch, 100, 64)),
}
"""What makes each model."""


def labels(backward: bool) -> list[str]:
    """Name the tools that are timed."""
    return [label for label in TOOLS if (label not in NO_GRAPH if backward else "gradients" not in label)]


def passes(model: nn.Module, backward: bool) -> Iterator[tuple[str, Callable[[Tensor], Any]]]:
    """Give, for each tool, what is timed: a pass, with what the tool keeps still alive when it returns."""
    for label in labels(backward):
        tool, own_backward = TOOLS[label], "gradients" in label
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
        rounds *= MORE if taken_once < QUICK else 1
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
