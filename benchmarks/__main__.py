"""Measure everything and write the tables into benchmarks/README.md."""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import correct, other, picker, speed

README = Path(__file__).parent / "README.md"
PEERS = ("torch", "torchvision", "torchlens", "nnsight", "captum", "matplotlib")


def markdown(rows: list[dict[str, object]]) -> str:
    """Write rows as a Markdown table."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, ["---"] * len(heads), *[[str(row.get(head, "–")) for head in heads] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Columns = dict[str, dict[str, object]]


def speeds(rounds: int) -> Iterator[str]:
    """Measure, and give the tables of time and memory as far as they are."""
    done: list[tuple[str, Columns, Columns]] = []
    for backward in (False, True):
        kind = "forward and backward" if backward else "forward without gradients"
        done.append((kind, {}, {}))
        for name, (model, make) in speed.models().items():
            if backward and name == speed.CALM:
                continue
            for size in (1, 8):
                column = f"{name}, batch {size}"
                rows = speed.measure(model, make(size), backward, rounds)
                print(f"{column}, {kind}\n{markdown(rows)}", flush=True)
                enter(rows, column, *done[-1][1:])
                yield "\n\n".join(
                    f"### Time, {kind}\n\n{markdown(list(times.values()))}\n\n"
                    f"### Peak memory above an idle process, MB, {kind}\n\n{markdown(list(memory.values()))}"
                    for kind, times, memory in done
                )


def enter(rows: list[dict[str, object]], column: str, times: Columns, memory: Columns) -> None:
    """Put what was measured into a column of the tables."""
    base = next(float(str(row["MB"])) for row in rows if row["tool"] == speed.PLAIN)
    for row in rows:
        tool, megabytes = str(row["tool"]), float(str(row["MB"]))
        plain = tool == speed.PLAIN
        mine = times.setdefault(tool, {"tool": tool}), memory.setdefault(tool, {"tool": tool})
        mine[0][column] = f"{row['ms']:.0f} ms" if plain else f"{row['time']:.2f}"
        mine[1][column] = f"{megabytes:.0f} MB" if plain else f"{megabytes:.0f} ({megabytes / max(base, 1.0):.1f} ×)"


def others(rounds: int) -> str:
    """Measure and return the table of the other promises."""
    torch_ms, hookscope_ms = other.importing(5)
    subplots, grid = other.grids(rounds)
    references, captured = other.per_layer(rounds)
    floors = {batch: other.nothing_overwritten(batch, rounds) for batch in (1, 8)}
    picked, dropped = picker.waits(rounds)
    rows: list[dict[str, object]] = [
        {
            "what": "in JupyterLab, resnet18, 64 channels: from picking a layer to its picture, against a Dropdown, an "
            "Output and 64 subplots",
            "measured": f"{picked:.0f} ms, {dropped / picked:.0f} × faster ({dropped:.0f} ms)",
        },
        {"what": "make, enter and leave a capture of 1,000 layers", "measured": f"{other.entering(rounds):.1f} ms"},
        {
            "what": "a pass through 1,000 layers that add 1: hooks that keep references, a new capture",
            "measured": f"{references:.1f} ms, {captured:.1f} ms",
        },
        {
            "what": "resnet18 where nothing is written in place, without gradients, against hooks that keep "
            "references: hooks that share copy-on-write and see writes (the floor), and a first capture",
            "measured": "; ".join(
                f"batch {batch}: {floor:.2f} ×, {captured:.2f} ×" for batch, (floor, captured) in floors.items()
            ),
        },
        {
            "what": "`import hookscope` against `import torch`",
            "measured": f"{hookscope_ms / torch_ms:.2f} × ({hookscope_ms:.0f} ms, {torch_ms:.0f} ms)",
        },
        {
            "what": "64 maps of 112×112 to PNG bytes: `feature_grid` against 64 subplots of the same size in pixels",
            "measured": f"{subplots / grid:.0f} × faster ({grid:.1f} ms, {subplots:.0f} ms)",
        },
    ]
    return markdown(rows)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help="correct, speed, other; all of them without any")
    parser.add_argument("--rounds", type=int, default=11, help="how often each pass is timed")
    options = parser.parse_args()
    wanted = options.parts or ["correct", "speed", "other"]
    write(
        "made",
        f"Made by `make bench` (rounds: {options.rounds}) with "
        + ", ".join(f"{name} {version(name)}" for name in PEERS)
        + f", Python {platform.python_version()}, {torch.get_num_threads()} threads, {platform.system()}.",
    )
    if "correct" in wanted:
        write("correct", markdown(correct.table()))
    if "other" in wanted:
        write("other", others(options.rounds))
    if "speed" in wanted:
        for tables in speeds(options.rounds):
            write("speed", tables)


def write(name: str, block: str) -> None:
    """Put a table in its place in the README."""
    text = README.read_text(encoding="utf-8")
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    text = re.sub(pattern, lambda found: f"{found[1]}\n{block}\n\n{found[2]}", text, flags=re.DOTALL)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
