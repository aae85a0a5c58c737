"""The other promises: entering and leaving, importing, and a grid of feature maps."""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import hookscope
from benchmarks.speed import MODELS
from benchmarks.tools import Pass, bare_clones, bare_references, capture


def _median(function: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


class _Add(nn.Module):
    """As little as a layer can do that returns something new."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def entering(rounds: int) -> float:
    """Return the milliseconds to make, enter and leave a capture of 1,000 layers."""
    model = nn.Sequential(*[nn.Identity() for _ in range(1000)])

    def enter() -> None:
        with hookscope.capture(model):
            pass

    return _median(enter, rounds)


def per_layer(rounds: int) -> tuple[float, float]:
    """Return the milliseconds of a pass through 1,000 layers with hooks that keep references, and with a capture."""
    # Not nn.Identity, which returns what it is given: the caller's own memory, which is never shared.
    model, x = nn.Sequential(*[_Add() for _ in range(1000)]), torch.zeros(1)

    def references() -> None:
        held: list[object] = []
        handles = [layer.register_forward_hook(lambda module, args, output: held.append(output)) for layer in model]
        model(x)
        for handle in handles:
            handle.remove()

    def captured() -> None:
        with hookscope.capture(model):
            model(x)

    with torch.no_grad():
        return _median(references, rounds), _median(captured, rounds)


def copying(name: str, batch: int, rounds: int) -> tuple[float, float]:
    """Return what a capture costs as two ratios: `copy=True` to hooks that clone, `copy=False` to hooks that refer.

    Processor time of a pass without gradients, the median of `rounds` pairs.
    """
    model, images = MODELS[name]()
    model.eval()
    x = images(batch)

    def seconds(run: Pass) -> float:
        model(x)  # each finds the allocator alike
        start = time.process_time()
        kept = run(x)
        taken = time.process_time() - start
        del kept
        return taken

    ratios = []
    with torch.no_grad():
        for ours, hooks in ((capture(copy=True), bare_clones), (capture(copy=False), bare_references)):
            pair = ours(model), hooks(model)
            found = [seconds(pair[0]) / seconds(pair[1]) for _ in range(rounds + 2)]
            ratios.append(statistics.median(found[2:]))
    return ratios[0], ratios[1]


def importing(rounds: int) -> tuple[float, float]:
    """Return the milliseconds of `import torch` and of `import hookscope`, each in a new process, taking turns."""
    taken: dict[str, list[float]] = {"torch": [], "hookscope": []}
    for _ in range(rounds):
        for name, times in taken.items():
            code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            times.append(float(done.stdout) * 1000)
    return statistics.median(taken["torch"]), statistics.median(taken["hookscope"])


def _first_maps() -> Tensor:
    import torchvision
    from sklearn.datasets import load_sample_image

    torch.manual_seed(0)
    photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None, :, :224, 200:424] / 255
    with torch.no_grad():
        return torchvision.models.resnet18().conv1(photo)  # type: ignore[no-any-return]


def grids(rounds: int) -> tuple[float, float]:
    """Return the milliseconds of 64 maps of 112×112 to PNG bytes: as subplots, and as `feature_grid`, same size.

    The maps are those of resnet18's first layer on a photograph: noise would measure how long noise takes to compress.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    maps = _first_maps()
    height, width = hookscope.feature_grid(maps, channels=64).mosaic.shape

    def subplots() -> bytes:
        figure, axes = plt.subplots(8, 8, figsize=(width / 100, height / 100), dpi=100)
        for axis, values in zip(axes.flat, maps[0], strict=True):
            axis.imshow(values)
            axis.axis("off")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        plt.close(figure)
        return buffer.getvalue()

    def grid() -> bytes:
        return hookscope.feature_grid(maps, channels=64).png

    theirs, ours = [], []
    for _ in range(rounds):  # taking turns
        theirs.append(_median(subplots, 1))
        ours.append(_median(grid, 1))
    return statistics.median(theirs), statistics.median(ours)
