"""What 100 and 1,000 learners need, computed from what the load test has measured (`hub/measured.json`).

    python -m hub.costs                                        cores and memory
    python -m hub.costs --gib-hour 0.004 --core-hour 0.03      and what an hour costs, with your prices

Two ways: machines like the one of the load test, with the hub of this folder on each, where learners share what is the
same for all; and pods of Zero to JupyterHub, where each learner has a container and shares nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measured", "Need", "needs", "table"]

MEASURED = Path(__file__).with_name("measured.json")
CLASSES = (100, 1000)
SPARE = 1.25  # times what was measured: other chapters hold more than the two of the load test, and nobody is average
MIB = 1024


@dataclass(frozen=True)
class Measured:
    """Figures of a load test, for one way; memory in MiB.

    Attributes:
        learner: what each learner adds.
        house: what is there for all: hub, proxy, what is shared.
        cells: seconds of a processor that a learner took for the chapter.
        minutes: that a learner takes to read and do the chapter.

    """

    learner: float
    house: float
    cells: float
    minutes: float

    @classmethod
    def of(cls, load: dict[str, Any], minutes: float, shares: bool) -> Measured:
        """Read the figures from what `python -m tests.hub.load --json FILE` has written.

        Args:
            load: what stands there.
            minutes: that a learner takes.
            shares: whether what learners share counts once for all, or for each of them.

        Raises:
            KeyError: one is missing.

        """
        own = sum(load["own" if shares else "pss"]) / load["learners"]
        shared = sum(load["pss"]) - own * load["learners"]
        work = sum(load["work"][phase] for phase in ("kernels", "chapter 02", "picker", "click"))
        return cls(own, shared + sum(load["house"].values()), work / load["learners"], minutes)


@dataclass(frozen=True)
class Need:
    """What a number of learners need: GiB and cores, together, and how much of it one learner is."""

    learners: int
    gib: float
    cores: float

    def hour(self, gib_hour: float, core_hour: float) -> float:
        """The price of an hour.

        Example:
            >>> Need(100, 20.0, 2.0).hour(gib_hour=0.5, core_hour=1.0)
            12.0

        """
        return self.gib * gib_hour + self.cores * core_hour


def needs(measured: Measured, learners: int, each_machine: int | None) -> Need:
    """Compute what learners need.

    Args:
        measured: the figures.
        learners: how many.
        each_machine: how many sit at one machine, each with a house of its own; None: pods, one house for all.

    Example:
        >>> needs(Measured(learner=100, house=1000, cells=30, minutes=10), 100, each_machine=50)
        Need(learners=100, gib=14.6, cores=6.2)

    """
    houses = math.ceil(learners / each_machine) if each_machine else 1
    gib = SPARE * (learners * measured.learner + houses * measured.house) / MIB
    cores = SPARE * learners * measured.cells / (60 * measured.minutes)
    return Need(learners, round(gib, 1), round(cores, 1))


def table(figures: dict[str, Any], gib_hour: float | None, core_hour: float | None) -> str:
    """The needs as a Markdown table; with prices, the price of an hour.

    Args:
        figures: what `hub/measured.json` holds.
        gib_hour: price of a GiB for an hour.
        core_hour: price of a core for an hour.

    """
    priced = gib_hour is not None and core_hour is not None
    head = ["learners", "way", "memory, GiB", "cores", "an hour"]
    lines = [f"| {' | '.join(head)} |", "| ---: | --- | ---: | ---: | ---: |"]
    shared, alone = figures["preloaded"], figures["usual"]
    ways = (
        ("machines, preloaded kernels", Measured.of(shared, figures["minutes"], shares=True), shared["learners"]),
        ("pods, nothing shared", Measured.of(alone, figures["minutes"], shares=False), None),
    )
    for learners in CLASSES:
        for name, measured, each_machine in ways:
            need = needs(measured, learners, each_machine)
            price = f"{need.hour(gib_hour or 0, core_hour or 0):.2f}" if priced else f"{need.gib}·G + {need.cores}·C"
            lines.append(f"| {learners:,} | {name} | {need.gib} | {need.cores} | {price} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m hub.costs", description="What 100 and 1,000 learners need.")
    parser.add_argument("--gib-hour", type=float, help="G, what a GiB of memory costs for an hour")
    parser.add_argument("--core-hour", type=float, help="C, what a core costs for an hour")
    options = parser.parse_args(words)
    if (options.gib_hour is None) != (options.core_hour is None):
        parser.error("--gib-hour and --core-hour belong together")
    if min(options.gib_hour or 0, options.core_hour or 0) < 0:
        parser.error("a price is not negative")
    try:
        figures = json.loads(MEASURED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"{MEASURED.name} is missing: python -m tests.hub.load --json FILE measures it", file=sys.stderr)
        return 1
    print(table(figures, options.gib_hour, options.core_hour))
    return 0


if __name__ == "__main__":
    sys.exit(main())
