"""What a learner may use of the machine: a cgroup of their own, where there are cgroups; else limits of processes."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PERIOD = 100_000  # microseconds, of which a processor is worth so many
_FIRST_TO_GO = "500"  # when the whole machine runs out of memory: rather a learner's process than the hub


@dataclass(frozen=True)
class Limits:
    """How much of each thing.

    Attributes:
        memory: bytes, of all processes together.
        cpus: processors, as in 1.5.
        processes: and threads.

    """

    memory: int
    cpus: float
    processes: int


_NONE = Limits(0, 0.0, 0)


class Share:
    """A learner's share of the machine.

    Args:
        name: of its cgroup, as in "1a2b3c4d/anna".
        limits: how large it is; not needed to remove it.
        root: where the system shows its cgroups.

    """

    def __init__(self, name: str, limits: Limits = _NONE, root: Path = Path("/sys/fs/cgroup")) -> None:
        self.limits, self._root = limits, root
        self._name = Path("hookscope") / name
        self.instead = ""
        """Why there is no cgroup, once `make` has found that out."""

    def make(self) -> None:
        """Make the cgroup, or bring its limits up to date; without one, say why in `instead`."""
        self.instead = ""
        try:
            if not self._settings():
                raise OSError(f"{self._root} does not have the controllers memory, pids and cpu")
            for folder, values in self._settings():
                self._hand_down(folder)
                folder.mkdir(parents=True, exist_ok=True)
                for file, value in values.items():
                    if (folder / file).exists():  # the memory with swap, where swap is not counted
                        (folder / file).write_text(value)
        except OSError as error:
            self.instead = str(error)

    def take(self) -> None:
        """Put the process that calls it, while it still is root, into the share."""
        if self.instead:
            memory, processes = self.limits.memory, self.limits.processes
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
            os.nice(5)
        else:
            for folder, _ in self._settings():
                (folder / "cgroup.procs").write_text("0")
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)

    def remove(self) -> None:
        """Remove the cgroup, if nothing is in it any more."""
        for folder, _ in self._settings():
            with suppress(OSError):
                folder.rmdir()

    def _settings(self) -> list[tuple[Path, dict[str, str]]]:
        """List the folders of the cgroup, and what is to be written into each."""
        memory, processes = str(self.limits.memory), str(self.limits.processes)
        time = str(int(self.limits.cpus * _PERIOD))
        if (self._root / "cgroup.controllers").exists():  # version 2: one tree
            if not {"memory", "pids", "cpu"} <= {*(self._root / "cgroup.controllers").read_text().split()}:
                return []
            values = {
                "memory.max": memory,
                "memory.swap.max": "0",
                "pids.max": processes,
                "cpu.max": f"{time} {_PERIOD}",
            }
            return [(self._root / self._name, values)]
        each = {
            # In this order: the second may not be smaller than the first, nor the first larger than the second.
            "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
            "pids": {"pids.max": processes},
            "cpu": {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": time},
        }
        if not all((self._root / controller / "cgroup.procs").exists() for controller in each):
            return []
        return [(self._root / controller / self._name, values) for controller, values in each.items()]

    def _hand_down(self, folder: Path) -> None:
        """Version 2: what is above must hand its controllers down."""
        if not (self._root / "cgroup.controllers").exists():
            return
        above = [self._root, *reversed([part for part in folder.parents if self._root in part.parents])]
        for part in above:
            part.mkdir(exist_ok=True)
            (part / "cgroup.subtree_control").write_text("+memory +pids +cpu")
