"""A fresh capture in a loop, as people write it, each tool in a process of its own: processor time against no tool.

What keeping activations costs depends on what the process did before. glibc gives memory that was freed at the end of
the heap back to the system, unless larger blocks have been freed before: then every pass that keeps more than the last
one left has to have its pages made again, and that costs more than hooks do. In a process that has timed something
else already, one sees nothing of it. So each tool is timed alone; and once more where glibc is told to keep what is
freed, so that both can be seen.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median

import torch

from benchmarks.speed import MODELS, PLAIN
from benchmarks.tools import TOOLS, Pass

__all__ = ["COLUMNS", "FRESH", "KEPT", "PASSES", "alone", "table", "timed"]

FRESH = (
    "hooks that keep references",
    "hooks that clone",
    "hooks that share copy-on-write and see writes",
    "**hookscope**, first capture",
    "**hookscope**, same capture again",
)
"""What is timed."""
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
"""What tells glibc to give nothing back."""
PASSES = {1: 12, 8: 3}
"""Batch size -> how many passes follow each other."""
COLUMNS = {
    f"batch {batch}{kept}": (batch, settings)
    for batch in PASSES
    for kept, settings in (("", {}), (", memory kept by glibc", KEPT))
}
"""The columns, each with the size of the batch and what the environment tells glibc."""
_MODEL, _BLOCKS = "resnet18", 3


def table(processes: int) -> list[dict[str, object]]:
    """Time every tool in so many processes, which take turns; return the rows: ratios, and pages made for a pass."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(processes):
        for tool in FRESH:
            for column, (batch, settings) in COLUMNS.items():
                found.setdefault((tool, column), []).append(alone(tool, batch, settings))
    rows: dict[str, dict[str, object]] = {tool: {"tool": tool} for tool in FRESH}
    for (tool, column), measured in found.items():
        ratios, pages = zip(*measured, strict=True)
        rows[tool][column] = f"{median(ratios):.2f} ({median(pages):,.0f})"
    return list(rows.values())


def alone(tool: str, batch: int, settings: dict[str, str]) -> tuple[float, float]:
    """Time a tool in a new process, see `timed`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.capture_loops", tool, str(batch), str(PASSES[batch])],
        env={**os.environ, **settings},
        check=True,
        capture_output=True,
        text=True,
    )
    ratio, pages = done.stdout.split()[-2:]
    return float(ratio), float(pages)


def timed(tool: str, batch: int, passes: int) -> tuple[float, float]:
    """Return the processor time of a pass under a tool, as a ratio to the model alone, and the pages made for it.

    Args:
        tool: its name in `TOOLS`.
        batch: how many pictures.
        passes: how many follow each other; the model alone and the tool take turns, three times.

    """
    torch.manual_seed(0)
    model, images = MODELS[_MODEL]()
    model.eval()
    x = images(batch)
    alone, tooled = TOOLS[PLAIN](model), TOOLS[tool](model)

    def loop(run: Pass, times: int) -> tuple[float, float]:
        taken, faults = [], _faults()
        for _ in range(times):
            begin = time.process_time()
            run(x)  # what it keeps is gone before the next pass
            taken.append(time.process_time() - begin)
        return median(taken), (_faults() - faults) / times

    ratios, pages = [], []
    with torch.no_grad():
        loop(alone, 3)
        for _ in range(_BLOCKS):
            base, _none = loop(alone, passes)
            loop(tooled, 2)
            mine, made = loop(tooled, passes)
            ratios.append(mine / base)
            pages.append(made)
    return median(ratios), median(pages)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, size, count = sys.argv[1:]
    print(*timed(name, int(size), int(count)))
