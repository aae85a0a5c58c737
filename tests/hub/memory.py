"""What processes hold, as the kernel of the machine counts it: a page that n processes share is 1/n page of each."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 1024  # smaps counts in KiB


@dataclass(frozen=True)
class Held:
    """Memory in MiB: `pss` with the fair part of what is shared, `own` without."""

    pss: float = 0.0
    own: float = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(self.pss + other.pss, self.own + other.own)


def held(pid: int) -> Held:
    """What one process holds; nothing, if it has ended."""
    sizes: dict[str, int] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0])
    return Held(sizes.get("Pss", 0) / MIB, (sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)) / MIB)


def processes_of(names: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """The processes of users of the machine, by user, and by what they are: server, kernel, other."""
    users = {pwd.getpwnam(name).pw_uid: name for name in names}
    found: dict[str, dict[str, list[int]]] = {name: {} for name in users.values()}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, KeyError):
            if folder.name.isdigit():
                name = users[folder.stat().st_uid]
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found[name].setdefault(_kind(words, folder), []).append(int(folder.name))
    return found


def _kind(words: list[str], folder: Path) -> str:
    line = " ".join(words)
    if "singleuser" in line:
        return "server"
    return "kernel" if "ipykernel" in line else "other"


def holding(pids: Iterable[int]) -> Held:
    """What several processes hold together."""
    return sum((held(pid) for pid in pids), Held())


def descendants(pid: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if folder.name.isdigit():
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def worked(pids: Iterable[int]) -> float:
    """Seconds of a processor that processes have used, those that have ended not counted."""
    ticks = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_and_idle() -> tuple[float, float]:
    """Seconds that the machine's processors have been at work, and not, since it started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / tick, idle / tick


def free() -> float:
    """MiB of the machine that a new process could have."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / MIB
