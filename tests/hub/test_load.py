"""The load test itself: with few learners, so that it stays able to run; and that its scales weigh right."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from tests.hub.load import LAYERS, Load, at, measure, report
from tests.hub.memory import Held, descendants, worked
from tests.hub.running import running_hub
from tests.shared import ROOT

# In a small process of its own: what the tests' process shares with others grows when one of these ends.
SHARING = """
import json, mmap, os, sys
from tests.hub.memory import held, holding
size = int(sys.argv[1]) << 20
with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
    before = held(os.getpid())
    memory.write(b"x" * size)
    alone = held(os.getpid())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(0)
    shared, both = held(os.getpid()), holding([os.getpid(), child])
    os.write(writing, b"x")
    os.waitpid(child, 0)
print(json.dumps([(each.pss, each.own) for each in (before, alone, shared, both)]))
"""


def test_a_page_that_two_share_is_half_a_page_of_each() -> None:
    size = 64
    done = subprocess.run([sys.executable, "-c", SHARING, str(size)], cwd=ROOT, capture_output=True, check=True)
    before, alone, shared, both = (Held(*pair) for pair in json.loads(done.stdout))
    assert math.isclose(alone.own - before.own, size, abs_tol=4)
    assert alone.own - shared.own > size - 4, "what is shared is not one's own"
    assert size / 2 - 4 < alone.pss - shared.pss
    assert abs(both.pss - alone.pss) < 8, "together they hold it once"


def test_work_and_children_are_found() -> None:
    code = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '30'])\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = descendants(parent.pid)
        end = time.monotonic() + 20
        while worked(family) < 0.3 and time.monotonic() < end:
            time.sleep(0.1)
        assert worked(family) >= 0.3
        assert len(family) == 2
        assert Path(f"/proc/{family[1]}/comm").read_text() == "sleep\n"
        for pid in family:
            os.kill(pid, 9)


def test_a_percentile_is_a_value_that_there_was() -> None:
    times = [float(n) for n in range(1, 31)]
    assert (at(0.5, times), at(0.95, times), at(0.95, [2.0])) == (15.0, 29.0, 2.0)
    assert math.isnan(at(0.5, []))


@pytest.mark.slow
def test_three_learners_go_through_chapter_02_and_the_picker(tmp_path: Path) -> None:
    load = Load(3, 0.1)
    with running_hub(tmp_path, learners=3) as hub:
        measure(hub, load, within=1)
    assert load.failures == []
    assert [len(times) for times in (load.up, load.kernel, load.imports, load.made, load.pick)] == [3] * 5
    assert len(load.cell) % 3 == 0
    assert len(load.cell) > 3 * 20
    assert {*load.by_kind} >= {"server", "kernel"}
    assert all(0 < own < pss < 1500 for own, pss in zip(load.own, load.pss, strict=True))
    assert {*load.house} == {"hub", "proxy"}
    assert "failures" in report(load)
    assert len({*LAYERS}) > 1
