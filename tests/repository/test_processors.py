"""`make processors` names the cells whose output depends on the processor or on the number of threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from tests.shared import ROOT
from tools import processors

SOURCES = ["import torch; 6 * 7", "torch.backends.cpu.get_cpu_capability()", "torch.get_num_threads()"]


@pytest.mark.slow
def test_a_cell_that_depends_on_the_processor_or_on_threads_is_named(tmp_path: Path) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if why := processors.why_not("sse4", platform.machine(), capability):
        pytest.skip(why)
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [new_code_cell(source) for source in SOURCES]
    nbformat.write(new_notebook(cells=cells, metadata=python), tmp_path / "tiny.ipynb")
    mine = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "JUPYTER_PATH")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words, str(tmp_path / "tiny.ipynb")]
        return subprocess.run(command, cwd=ROOT, env=mine, capture_output=True, text=True, check=False)

    assert run("hookscope_course.strict", "--steady").returncode == 0
    done = run("tools.processors", "--runs", "own:1", "own:2", "sse4:1", "--")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if "again:" not in line]
    found = [line.rpartition(" failed ")[0] or line.rpartition("::")[2] for line in lines]
    assert found == [
        "own 1 thread 3 passed 0",
        "own 2 threads 2 passed 1",
        "Cell 2",
        "sse4 1 thread 2 passed 1",
        "Cell 1",
    ], done.stdout + done.stderr
    assert done.returncode == 1
    assert "ATEN_CPU_CAPABILITY=default" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_run_that_collects_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert processors.main(["--runs", "own:1", "--", "tests/no_such_test.py"]) == 1
    assert "pytest ended with status" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "machine", "capability", "why"),
    [
        ("own", "arm64", "DEFAULT", ""),
        ("avx2", "x86_64", "AVX512", ""),
        ("avx2", "x86_64", "AVX2", "uses AVX2 anyway"),
        ("avx2", "x86_64", "DEFAULT", "has no AVX2"),
        ("sse4", "AMD64", "AVX2", ""),
        ("sse4", "aarch64", "SVE256", "is not an x86"),
        ("avx2", "arm64", "DEFAULT", "is not an x86"),
    ],
)
def test_a_set_that_the_processor_lacks_is_skipped_for_its_reason(
    name: str, machine: str, capability: str, why: str
) -> None:
    found = processors.why_not(name, machine, capability)
    assert why in found
    assert bool(why) == bool(found)


def test_a_run_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        processors.main(["--runs", "sse4"])
    assert "such as sse4:1" in capsys.readouterr().err
