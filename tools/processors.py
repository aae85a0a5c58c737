"""Run the notebooks and the package's tests as other processors do, and with two threads.

    python -m tools.processors                                         three runs of everything (make processors)
    python -m tools.processors notebooks/03_forward_hooks.ipynb        the same runs of one notebook
    python -m tools.processors --runs sse4:1 sse4:2 -- tests/package   other runs: a set of instructions and the threads

Variables of the environment make torch use fewer instructions than the processor has. Its sums then round differently,
as on an older processor. No variable turns it into a newer one or into an ARM: that is what check.yml has a runner for.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tools.changed_tests import ROOT

__all__ = ["RUNS", "SETS", "main", "why_not"]

SETS: dict[str, dict[str, str]] = {
    "own": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    # Not MKL_ENABLE_INSTRUCTIONS: MKL ignores it on a processor of AMD.
    "sse4": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}
"""The variables of each set of instructions."""
RUNS = ("own:2", "avx2:1", "sse4:1")
"""Each differs from `make test`, which is own:1, in one thing."""
PATHS = ("notebooks", "tests/package", "tests/course/test_exercises.py")
_X86 = ("DEFAULT", "AVX2", "AVX512")  # what torch calls them, fewest instructions first


def why_not(name: str, machine: str, capability: str) -> str:
    """Say why a set of instructions is not run on a machine; empty if it is.

    Args:
        name: of the set.
        machine: as `platform.machine()` has it.
        capability: as `torch.backends.cpu.get_cpu_capability()` has it without any variable.

    Example:
        >>> why_not("avx2", "x86_64", "AVX512"), why_not("avx2", "x86_64", "AVX2")
        ('', 'this processor uses AVX2 anyway; see own')

    """
    if name == "own":
        return ""
    if machine.lower() not in ("x86_64", "amd64") or capability not in _X86:
        return f"this processor is not an x86 ({machine}, {capability})"
    asked = SETS[name]["ATEN_CPU_CAPABILITY"].upper()
    if asked == capability:
        return f"this processor uses {asked} anyway; see own"
    return f"this processor has no {asked}" if _X86.index(asked) > _X86.index(capability) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and the tests and cells that failed below it; return 1 if any did."""
    parser = argparse.ArgumentParser(prog="python -m tools.processors", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="SET:THREADS", type=_check_run)
    parser.add_argument("paths", nargs="*", default=PATHS, metavar="PATH", help="notebooks and tests")
    options = parser.parse_args(arguments)
    plain = {key: value for key, value in os.environ.items() if not any(key in each for each in SETS.values())}
    capability = _get_capability(plain)
    failed = False
    for run in options.runs:
        name, threads = run.split(":")
        label = f"{name:<5} {threads} thread{'s' * (threads != '1')}".ljust(15)
        if reason := why_not(name, platform.machine(), capability):
            print(f"{label} skipped: {reason}", flush=True)
        else:
            settings = SETS[name] | {"OMP_NUM_THREADS": threads}
            failed |= not _run(label, settings, plain | settings, options.paths)
    return int(failed)


def _check_run(text: str) -> str:
    name, _, threads = text.partition(":")
    if name not in SETS or not re.fullmatch("[1-9][0-9]*", threads):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(SETS)} with its threads, such as sse4:1")
    return text


def _get_capability(environment: Mapping[str, str]) -> str:
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(label: str, settings: Mapping[str, str], environment: Mapping[str, str], paths: Sequence[str]) -> bool:
    start = time.monotonic()
    # -c and -p: a notebook from elsewhere is checked as those of the course. loadfile: its cells share a kernel.
    strict = ["-c", str(ROOT / "pyproject.toml"), "-p", "hookscope_course.strict", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", *strict, "-n", "auto", "--dist", "loadfile"]
    done = subprocess.run([*command, *paths], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    names = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    passed = sum(map(int, re.findall(r"\b(\d+) passed\b", done.stdout)))
    print(f"{label} {passed:>6,} passed {len(names):>4} failed {time.monotonic() - start:>6.0f} s", flush=True)
    for name in names:
        print(f"  {name}")
    if names:
        print(f"  again: {' '.join(f'{key}={value}' for key, value in settings.items())} .venv/bin/python -m pytest …")
    elif done.returncode:
        print(f"  pytest ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
