"""A learner's share of the machine holds for all that they run, with cgroups of both versions and without."""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hub.limits import Limits, Share
from hub.running import check_interpreter
from hub.settings import HubError
from tests.hub.running import why_not

LIMITS = Limits(memory=300 << 20, cpus=1.5, processes=100)
as_root = pytest.mark.skipif(os.getuid() != 0, reason="limits of others take root")


def test_version_2_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    folder = tmp_path / "hookscope" / "1a2b" / "anna"
    folder.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max"):
        (folder / name).touch()
    share = Share("1a2b/anna", LIMITS, tmp_path)
    share.make()
    assert not share.instead
    told = {path.name: path.read_text() for path in folder.iterdir()}
    assert told == {
        "memory.max": str(300 << 20), "memory.swap.max": "0", "pids.max": "100", "cpu.max": "150000 100000"
    }  # fmt: skip
    for above in (tmp_path, tmp_path / "hookscope", tmp_path / "hookscope" / "1a2b"):
        assert (above / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert not (folder / "cgroup.subtree_control").exists(), "else no process might be in it"


def run(share: Share, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(words, preexec_fn=share.take, capture_output=True, text=True, check=False)


EATS = "eaten = []\nfor step in range(100): eaten.append(bytearray(b'x' * (10 << 20)))\nprint('ate all')"


@as_root
def test_in_a_real_cgroup_memory_has_an_end() -> None:
    share = Share(f"test-{secrets.token_hex(3)}/anna", LIMITS)
    share.make()
    if share.instead:
        pytest.skip(f"no cgroups here: {share.instead}")
    try:
        assert "/anna" in run(share, "print(open('/proc/self/cgroup').read())").stdout
        assert run(share, EATS).returncode == -9
        assert run(share, "print('next')").stdout == "next\n"
        assert run(share, "print(open('/proc/self/oom_score_adj').read())").stdout.strip() == "500"
    finally:
        share.remove()
        Share(share._name.parent.name, LIMITS).remove()


@as_root
def test_without_cgroups_it_says_so_and_each_process_has_the_limit(tmp_path: Path) -> None:
    share = Share("1a2b/anna", LIMITS, tmp_path / "nothing")
    share.make()
    assert "does not have the controllers memory, pids and cpu" in share.instead
    said = run(share, EATS)
    assert "MemoryError" in said.stderr
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC), resource.getrlimit(resource.RLIMIT_DATA))"
    assert run(share, code).stdout == f"{(100, 100)} {(300 << 20, 300 << 20)}\n"
    assert resource.getrlimit(resource.RLIMIT_NPROC) != (100, 100), "only what is started has them"


@as_root
def test_a_python_that_learners_cannot_reach_is_refused_with_the_folder() -> None:
    with tempfile.TemporaryDirectory() as made:  # not among pytest's own, which the next pytest closes as it starts
        Path(made).chmod(0o755)
        closed = Path(made, "closed")
        closed.mkdir(mode=0o700)
        (closed / "python").symlink_to(sys.executable)
        with pytest.raises(HubError, match="Put this checkout into a folder that everyone can open") as refused:
            check_interpreter(str(closed / "python"))
        assert f"other users cannot open {closed}" in str(refused.value)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_python_of_this_checkout_is_not_refused() -> None:
    check_interpreter()
