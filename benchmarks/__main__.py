"""Measure everything and write all that benchmarks/README.md says in figures."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import attentions, capture_loops, correct, edit_costs, edits, other, picker, speed, sweeps
from tests.shared.awkward_models import PEERS as MODELS_OF_PEERS
from tests.shared.lab import CHROMIUM
from tools.page_blocks import put, table

README = Path(__file__).parent / "README.md"
PEERS = ("torchlens", "nnsight")
EDITING = (*PEERS, "tdhook", "pyvene", "transformers")
SWEPT = 5
"""How often a sweep is timed at most."""

KINDS = {"forward without gradients": False, "forward and backward": True}
"""The kinds of passes that are timed, and whether each goes backward."""
Columns = dict[str, dict[str, object]]


def made(part: str, rounds: int) -> str:
    """Say when and with what a table was made; each says it, since each can be made alone."""
    packages, timing = MADE[part]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", *packages))
    return (
        f"Made on {datetime.now(UTC):%Y-%m-%d} with {versions}, Python {platform.python_version()}, "
        f"{platform.system()}{timing(rounds)}."
    )


def _threads(rounds: int) -> str:
    return f"; {torch.get_num_threads()} threads"


def _one_thread(rounds: int) -> str:
    return f"; processor time, one thread; rounds: {rounds}"


def _sweeps_too(rounds: int) -> str:
    return f"{_one_thread(rounds)}, {min(rounds, SWEPT)} for the sweeps"


def _quick(rounds: int) -> str:
    more = f"{speed.MORE * rounds} for passes of less than {1000 * speed.QUICK:.0f} ms"
    return f"{_threads(rounds)}; rounds: {rounds}, {more}"


MADE: dict[str, tuple[tuple[str, ...], Callable[[int], str]]] = {
    "correct": ((*PEERS, "captum"), _threads),
    "changes": (EDITING, _sweeps_too),
    "sweeps": (EDITING, lambda rounds: _one_thread(min(rounds, SWEPT))),
    "attention": (EDITING, _one_thread),
    "other": (("matplotlib",), lambda rounds: f"{_threads(rounds)}; rounds: {rounds}, imports {min(rounds, 5)}"),
    "fresh": ((), lambda rounds: f"; processor time, one thread; {min(rounds, SWEPT)} processes for each figure"),
    "speed": ((*PEERS, "captum"), _quick),
}
"""Which packages each part of the page was made with, and how it was timed."""


def verdicts() -> str:
    """Judge every tool on every model, and return the table."""
    return f"The first {MODELS_OF_PEERS} models of `tests/shared/awkward_models`.\n\n{table(correct.table())}"


def columns(backward: bool) -> dict[str, tuple[str, int]]:
    """Name the columns of the tables of time and memory, each with the model and the size of the batch."""
    names = [name for name in speed.MODELS if not (backward and name == speed.CALM)]
    return {f"{name}, batch {size}": (name, size) for name in names for size in (1, 8)}


def speeds(rounds: int) -> str:
    """Measure every tool on every model, and return the tables of time and memory."""
    tables = []
    for kind, backward in KINDS.items():
        times: Columns = {}
        memory: Columns = {}
        for column, (name, size) in columns(backward).items():
            model, make = speed.MODELS[name]()
            rows = speed.measure(model, make(size), backward, rounds)
            print(f"{column}, {kind}\n{table(rows)}", flush=True)
            enter(rows, column, times, memory)
        tables.append(f"### Time, {kind}\n\n{table(list(times.values()))}")
        tables.append(f"### Peak memory above an idle process, MB, {kind}\n\n{table(list(memory.values()))}")
    return "\n\n".join(tables)


def enter(rows: list[dict[str, object]], column: str, times: Columns, memory: Columns) -> None:
    """Put what was measured into a column of the tables."""
    base = next(float(str(row["MB"])) for row in rows if row["tool"] == speed.PLAIN)
    for row in rows:
        tool, megabytes = str(row["tool"]), float(str(row["MB"]))
        plain = tool == speed.PLAIN
        mine = times.setdefault(tool, {"tool": tool}), memory.setdefault(tool, {"tool": tool})
        mine[0][column] = f"{row['ms']:.0f} ms" if plain else f"{row['time']:.2f}"
        mine[1][column] = f"{megabytes:.0f} MB" if plain else f"{megabytes:.0f} ({megabytes / max(base, 1.0):.1f} ×)"


def _picking(rounds: int) -> str:
    picked, dropped = picker.waits(rounds)
    return f"{picked:.0f} ms, {dropped / picked:.0f} × faster ({dropped:.0f} ms)"


def _entering(rounds: int) -> str:
    return f"{other.entering(rounds):.1f} ms"


def _per_layer(rounds: int) -> str:
    references, captured = other.per_layer(rounds)
    return f"{references:.1f} ms, {captured:.1f} ms"


def _copying(rounds: int) -> str:
    costs = {
        (name, batch): other.copying(name, batch, 5 * rounds)
        for name, batch in (("resnet18", 1), ("resnet18", 8), ("vit_b_16 at 112×112", 1))
    }
    return "; ".join(
        f"{name}, batch {batch}: {copied:.2f} ×, {referred:.2f} ×"
        for (name, batch), (copied, referred) in costs.items()
    )


def _importing(rounds: int) -> str:
    torch_ms, hookscope_ms = other.importing(min(rounds, 5))
    return f"{hookscope_ms / torch_ms:.2f} × ({hookscope_ms:.0f} ms, {torch_ms:.0f} ms)"


def _grids(rounds: int) -> str:
    subplots, grid = other.grids(rounds)
    return f"{subplots / grid:.0f} × faster ({grid:.1f} ms, {subplots:.0f} ms)"


OTHERS: dict[str, Callable[[int], str]] = {
    "in JupyterLab, resnet18, 64 channels: from picking a layer to its picture, against a Dropdown, an Output and 64 "
    "subplots": _picking,
    "make, enter and leave a capture of 1,000 layers": _entering,
    "a pass through 1,000 layers that add 1: hooks that keep references, a new capture": _per_layer,
    "a new capture, without gradients: `copy=True` against hooks that clone, `copy=False` against hooks that keep "
    "references": _copying,
    "`import hookscope` against `import torch`": _importing,
    "64 maps of 112×112 to PNG bytes: `feature_grid` against 64 subplots of the same size in pixels": _grids,
}
"""The other promises, and what measures each."""


def others(rounds: int) -> str:
    """Measure the other promises, and return their table."""
    rows: list[dict[str, object]] = []
    for what, measure in OTHERS.items():
        rows.append({"what": what, "measured": measure(rounds)})
        print(rows[-1], flush=True)
    return table(rows)


def _editing(rounds: int, stay: bool = False) -> str:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    pictures, words = torch.randn(8, 3, 224, 224), torch.randint(0, 1000, (8, edit_costs.TOKENS))
    nets = {
        "resnet18": (resnet18().eval(), pictures, ["layer1.0.conv1", "layer3.1.conv2"]),
        "GPT-2, 768 wide, 12 layers": (edit_costs.gpt2(768, 12, 12), words, ["transformer.h.2", "transformer.h.3.mlp"]),
        "GPT-2, 128 wide": (edit_costs.gpt2(128), words, ["transformer.h.2", "transformer.h.3.mlp"]),
    }
    return "; ".join(
        # More rounds for what takes milliseconds.
        f"{name}, batch {batch}: {edit_costs.editing(net, inputs[:batch], layers, rounds * more, stay):.2f} ×"
        for name, (net, inputs, layers) in nets.items()
        for batch, more in ((1, 10), (8, 3))
    )


def _sweeping(rounds: int) -> str:
    found = {width: edit_costs.sweeping(width, min(rounds, SWEPT)) for width in (128, 768)}
    return "; ".join(
        f"{width} wide: {ratio:.2f} × of {seconds:.1f} s, {apart:.0e} of the scale apart"
        for width, (seconds, ratio, apart) in found.items()
    )


def _attending(rounds: int) -> str:
    sizes = {"768 wide, 12 layers, 128 tokens": (768, 12, 12, 128), "128 wide, 6 layers, 64 tokens": (128, 4, 6, 64)}
    return "; ".join(
        # More rounds for what takes milliseconds.
        f"{name}: {edit_costs.attending(*size, rounds * more):.2f} ×"
        for (name, size), more in zip(sizes.items(), (1, 10), strict=True)
    )


CHANGES: dict[str, Callable[[int], str]] = {
    "`edit` of two layers in a block that stays open, against plain hooks that stay on": lambda rounds: _editing(
        rounds, stay=True
    ),
    "`edit` of two layers in a new block, against plain hooks that are registered and removed": _editing,
    "`sweep` of a GPT-2 (1,000 words), 18 layers × 12 positions, against the plain loop of hooks": _sweeping,
    "`attention` of a GPT-2, against the pass alone": _attending,
}
"""What changes a model or looks into its attention, and what measures each; processor time, one thread."""


@contextmanager
def _on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def changes(rounds: int) -> str:
    """Measure what changes cost, and judge every editor on every awkward edit."""
    with _on_one_thread():
        rows: list[dict[str, object]] = [{"what": what, "measured": run(rounds)} for what, run in CHANGES.items()]
    return f"{table(edits.table())}\n\n{table(rows)}"


def swept(rounds: int) -> str:
    """Judge every tool on every sweep, and time the same sweep with each."""
    with _on_one_thread():
        return table(sweeps.table(min(rounds, SWEPT)))


def attended(rounds: int) -> str:
    """Judge every tool on the attention maps of every model, and time them."""
    with _on_one_thread():
        return table(attentions.table(rounds))


PARTS: dict[str, Callable[[int], str]] = {
    "correct": lambda rounds: verdicts(),
    "changes": changes,
    "sweeps": swept,
    "attention": attended,
    "other": others,
    "fresh": lambda rounds: table(capture_loops.table(min(rounds, SWEPT))),
    "speed": speeds,
}
"""The parts of the page that are made, and what makes each."""


def main() -> None:
    """Measure what was asked for, and write each part when all of it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all of them without any")
    parser.add_argument("--rounds", type=int, default=11, help="how often each pass is timed")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    wanted = [part for part in PARTS if part in (options.parts or PARTS)]
    if "other" in wanted and CHROMIUM is None:
        parser.error("other needs a browser; on Debian: apt-get install chromium")
    for part in wanted:
        put(README, part, f"{PARTS[part](options.rounds)}\n\n{made(part, options.rounds)}")


if __name__ == "__main__":
    main()
