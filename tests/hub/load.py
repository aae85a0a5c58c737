"""The load test: a real hub, and N learners who work through chapter 02 and click in the picker of 06, all at once.

    python -m tests.hub.load --learners 30

Signs each learner in over HTTP, starts the server, opens the learner's own copy of the chapter in a kernel over a
websocket, runs all code cells with pauses as a class makes them, then makes the LayerPicker of chapter 06, and chooses
another layer as the page does, each once within five seconds, until the picture's bytes have come. Prints what it took
as a table, and as JSON with --json FILE.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hub.client import Cells, Learner, chapters_cells
from tests.hub.memory import Held, busy_and_idle, descendants, free, held, holding, processes_of, worked
from tests.hub.running import RunningHub, running_hub

CHAPTER, PICKER = "02_call_order.ipynb", "06_layer_picker.ipynb"
LAYERS = ("block1.conv", "block2.conv", "block2.relu", "block3.conv", "block3.relu")


@dataclass
class Load:
    """What was measured; times in seconds, memory in MiB."""

    learners: int
    pause: float
    up: list[float] = field(default_factory=list)
    all_up: float = 0.0
    kernel: list[float] = field(default_factory=list)
    cell: list[float] = field(default_factory=list)
    imports: list[float] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    pick: list[float] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    pss: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    by_kind: dict[str, list[float]] = field(default_factory=dict)
    house: dict[str, float] = field(default_factory=dict)
    taken: float = 0.0
    left: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    tester: float = 0.0
    failures: list[str] = field(default_factory=list)


def measure(hub: RunningHub, load: Load, within: float = 5.0, seed: int = 0) -> Load:
    """Let a hub's learners work, and write down what it took.

    Args:
        hub: with `load.learners` learners.
        load: gets the figures.
        within: seconds in which each clicks once.
        seed: of the pauses.

    """
    random.seed(seed)
    before = free()
    began, visitors = time.monotonic(), [hub.person(place) for place in range(len(hub.learners))]
    with ThreadPoolExecutor(len(visitors)) as crowd:

        def everyone(what: Callable[[Any], Any], of: Iterable[Any], phase: str) -> list[Any]:
            busy, idle = busy_and_idle()
            worked_before = worked(_everybody(hub))
            results = list(crowd.map(_noting(what, load, phase), of))
            load.work[phase] = worked(_everybody(hub)) - worked_before
            more, rest = (now - then for now, then in zip(busy_and_idle(), (busy, idle), strict=True))
            load.busy[phase] = more / max(1e-9, more + rest)
            return results

        def come(visitor: Learner) -> float:
            visitor.sign_in()
            try:
                visitor.open()
            except Exception as error:
                log = hub.home(visitor.name) / ".hookscope-server.log"
                said = log.read_text()[-1000:] if log.exists() else "no log"
                raise RuntimeError(f"{error}; its server's log: {said}") from error
            return time.monotonic() - began

        load.up = [took for took in everyone(come, visitors, "start") if took is not None]
        load.all_up = time.monotonic() - began
        here = [visitor for visitor in visitors if visitor.web.cookies]
        desks = [desk for desk in everyone(lambda who: _open(who, load), here, "kernels") if desk]
        everyone(lambda desk: _chapter(desk, load), desks, "chapter 02")
        everyone(lambda desk: _make_picker(desk, load), desks, "picker")
        time.sleep(2)  # a click comes when the page stands still
        bell = time.monotonic()
        moments = [within * (n + random.random()) / len(desks) for n in range(len(desks))]
        random.shuffle(moments)
        everyone(lambda each: _click(each[0], bell + each[1], load), zip(desks, moments, strict=True), "click")
        _weigh(hub, load)
        load.taken, load.left = before - free(), free()
        for desk in desks:
            desk.cells.close()
        everyone(lambda visitor: visitor.stop(), here, "stop")
    used = resource.getrusage(resource.RUSAGE_SELF)
    load.tester = used.ru_utime + used.ru_stime
    return load


def _everybody(hub: RunningHub) -> set[int]:
    """The processes of the hub and of its learners."""
    kinds = processes_of([name for name, _ in hub.learners]).values()
    learners = {pid for of in kinds for pids in of.values() for pid in pids}
    return learners | {*descendants(hub.process.pid)}


def _noting(what: Callable[[Any], Any], load: Load, phase: str) -> Callable[[Any], Any]:
    """The same, with failures written down: one learner's must not end the others' lesson."""

    def guarded(argument: Any) -> Any:
        try:
            return what(argument)
        except Exception as error:
            load.failures.append(f"{phase}: {type(error).__name__}: {str(error)[:1500]}")
            return None

    return guarded


@dataclass
class Desk:
    """A learner with an open notebook."""

    visitor: Learner
    cells: Cells
    chapter: list[tuple[str, str, bool]]
    picker: str = ""


def _open(visitor: Learner, load: Load) -> Desk:
    chapter = chapters_cells(visitor.notebook(CHAPTER))
    begin = time.perf_counter()
    cells = visitor.connected(visitor.kernel(CHAPTER))
    cells.run("None")
    load.kernel.append(time.perf_counter() - begin)
    return Desk(visitor, cells, chapter)


def _chapter(desk: Desk, load: Load) -> None:
    for number, (cell, source, may_fail) in enumerate(desk.chapter):
        time.sleep(random.uniform(0, 2 * load.pause))
        begin = time.perf_counter()
        desk.cells.run(source, cell)
        took = time.perf_counter() - begin
        (load.cell if number else load.imports).append(took)
        load.slowest[cell] = max(took, load.slowest.get(cell, 0.0))
        if desk.cells.error and not may_fail:
            load.failures.append(f"{CHAPTER}, cell {cell}: {desk.cells.error[:300]}")


def _make_picker(desk: Desk, load: Load) -> None:
    """Run the cells of chapter 06 up to the first picker, and find out how the page would speak to it."""
    begin = time.perf_counter()
    for cell, source, _ in chapters_cells(desk.visitor.notebook(PICKER)):
        desk.cells.run(source, cell)
        assert not desk.cells.error, f"{PICKER}, cell {cell}: {desk.cells.error}"
        if "LayerPicker(net" in source:
            break
    load.made.append(time.perf_counter() - begin)
    desk.picker = desk.cells.run("print(picker.model_id)")


def _click(desk: Desk, moment: float, load: Load) -> None:
    """Choose another layer as the page does, and wait for the picture."""
    time.sleep(max(0.0, moment - time.monotonic()))
    layer = random.choice(LAYERS)
    begin = time.perf_counter()
    change = {"method": "update", "state": {"layer": layer}, "buffer_paths": []}
    number = desk.cells.tell("comm_msg", {"comm_id": desk.picker, "data": change})

    def has_picture(message: dict[str, Any], size: int) -> bool:
        assert message["msg_type"] != "error", message["content"]
        paths = message["content"].get("data", {}).get("buffer_paths", []) if message["msg_type"] == "comm_msg" else []
        return ["png"] in paths and size > 0

    assert any(has_picture(*each) for each in desk.cells.answers(number))
    load.pick.append(time.perf_counter() - begin)


def _weigh(hub: RunningHub, load: Load) -> None:
    """What each learner's processes hold, and what the house holds for all."""
    found = processes_of([name for name, _ in hub.learners])
    for kinds in found.values():
        whole = Held()
        for kind, pids in kinds.items():
            part = holding(pids)
            whole += part
            load.by_kind.setdefault(kind, []).append(part.pss)
        load.pss.append(whole.pss)
        load.own.append(whole.own)
    learners = {pid for kinds in found.values() for pids in kinds.values() for pid in pids}
    for pid in descendants(hub.process.pid):
        if pid not in learners:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            known = (
                ("guesses", "hub.guesses"),
                ("proxy", "configurable-http-proxy"),
            )
            names = [name for name, mark in known if mark in line] + ["hub"]
            load.house[names[0]] = load.house.get(names[0], 0.0) + held(pid).pss


def at(share: float, times: list[float]) -> float:
    """The value that a share of the values does not exceed; the nearest that there is.

    Example:
        >>> at(0.95, [1.0, 2.0, 3.0, 4.0])
        4.0

    """
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)] if times else math.nan


def report(load: Load) -> str:
    """The figures as a table."""
    shared = sum(load.pss) - sum(load.own)
    rows = [
        ("servers up, all of them", f"{load.all_up:.1f} s; half after {at(0.5, load.up):.1f} s"),
        ("a kernel, until it has run a cell", _times(load.kernel)),
        ("the cell of imports", _times(load.imports)),
        ("another cell of chapter 02", _times(load.cell)),
        ("chapter 06 up to the picker", _times(load.made)),
        ("pick → picture", _times(load.pick)),
        (
            "PSS for each learner",
            f"{statistics.fmean(load.pss or [math.nan]):.0f} MiB, at most {max(load.pss, default=0):.0f}",
        ),
        ("of it not shared with anybody", f"{statistics.fmean(load.own or [math.nan]):.0f} MiB"),
        ("shared, in the learners' part, once", f"{shared:.0f} MiB"),
        *(
            (f"of a learner: {kind}", f"{sum(part) / load.learners:.0f} MiB")
            for kind, part in sorted(load.by_kind.items())
        ),
        *((f"the house: {name}", f"{part:.0f} MiB") for name, part in sorted(load.house.items())),
        ("memory of the machine taken, and left", f"{load.taken:.0f} MiB, {load.left:.0f} MiB"),
        *((f"processors busy: {phase}", f"{share:.0%}") for phase, share in load.busy.items()),
        *(
            (f"the class's own work: {phase}", f"{work:.0f} s of a processor")
            for phase, work in load.work.items()
            if work > 0
        ),
        ("the tester's own part", f"{load.tester:.0f} s of a processor"),
        ("failures", str(len(load.failures))),
    ]
    width = max(len(name) for name, _ in rows)
    head = f"{load.learners} learners, a pause of {load.pause:g} s on average before each cell"
    lines = [
        head,
        *(f"  {name:<{width}}  {said}" for name, said in rows),
        *(f"  ! {each}" for each in load.failures[:10]),
    ]
    return "\n".join(lines)


def _times(times: list[float]) -> str:
    half, most, longest = at(0.5, times), at(0.95, times), max(times, default=math.nan)
    return f"p50 {half:.2f} s, p95 {most:.2f} s, max {longest:.2f} s (n={len(times)})"


def main(words: list[str] | None = None) -> int:
    """Run the load test; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hub.load", description="A class in a real hub, measured.")
    parser.add_argument("--learners", type=int, default=30)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds before each cell, on average")
    parser.add_argument("--json", type=Path, help="write all figures there, too")
    options = parser.parse_args(words)
    if not 1 <= options.learners <= 200:
        parser.error(f"--learners {options.learners}: give 1 to 200")
    load = Load(options.learners, options.pause)
    with tempfile.TemporaryDirectory() as folder, running_hub(Path(folder), options.learners) as hub:
        measure(hub, load)
    print(report(load))
    if options.json:
        options.json.write_text(json.dumps(asdict(load), indent=1))
    return 1 if load.failures else 0


if __name__ == "__main__":
    sys.exit(main())
