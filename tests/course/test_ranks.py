"""The runner of chapter 13: what comes back from the ranks, what went wrong on them, and that nothing stays behind."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
from torch import distributed

from hookscope_course import ranks
from hookscope_course.practice.chapter_exercises import exercises
from hookscope_course.ranks.group import explain_failed_start
from tests.kernels import RANKS, preloaded
from tests.shared import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="`ranks` forks")
# As from a notebook: the ranks get the functions themselves, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def imported_anew():
    """Have no fork of a preloaded process: /proc would not tell whose it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(RANKS, raising=False)
        yield


@pytest.fixture(scope="module")
def group(imported_anew):
    ranks.start(1).stop()  # another test's, which may be forks
    with ranks.start(2) as group:
        yield group


def processes_of(folder):
    """Every process that has this group's folder in its environment: torchrun, those that wait, their children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def gone(find):
    deadline = time.monotonic() + PATIENCE
    while find() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not find()


def summed(tensor):
    print("I am", distributed.get_rank())
    tensor = tensor + distributed.get_rank()
    distributed.all_reduce(tensor)
    return tensor


def received(numbers):
    tensor = torch.ones(numbers)
    distributed.all_reduce(tensor)
    before = ranks.bytes_received()
    distributed.all_reduce(tensor)
    return ranks.bytes_received() - before


def speaks_then_sleeps():
    distributed.barrier()
    time.sleep(1)


def raises():
    if distributed.get_rank() == 1:
        raise KeyError("bucket")
    distributed.barrier()


def leaves():
    sys.exit(3)


def dies():
    if distributed.get_rank() == 1:
        os._exit(3)
    distributed.barrier()


def is_killed():
    if distributed.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    if distributed.get_rank() == 0:
        distributed.barrier()


def both_receive():
    distributed.recv(torch.ones(1), 1 - distributed.get_rank())


def gathers_unequal():
    own = torch.ones(5 if distributed.get_rank() == 0 else 2)
    distributed.all_gather([torch.empty_like(own) for _ in range(2)], own)


def crashes():
    ctypes.string_at(0)


def comes_late(work):
    if distributed.get_rank() == 1:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            torch.ones(50, 50) @ torch.ones(50, 50) if work else time.sleep(1)
    distributed.barrier()
    return distributed.get_rank()


def unsendable():
    return threading.Lock()


def kills_the_waiting():
    if distributed.get_rank() == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def test_each_rank_returns_its_result_and_what_it_printed(group, capfd):
    results = group.run(summed, torch.tensor([1.0, 2.0]))
    assert [result.tolist() for result in results] == [[3.0, 5.0]] * 2
    assert capfd.readouterr() == ("rank 0: I am 0\nrank 1: I am 1\n", "")


def test_functions_classes_and_values_of_a_cell_go_along(group):
    cell = "factor = 10\nclass Box:\n    size = 2\ndef helper(x):\n    return factor * x + Box.size\ndef worker(x):\n"
    names = {"__name__": "__main__"}
    exec(cell + "    return helper(x)", names)
    assert group.run(names["worker"], 4) == [42, 42]


def listening(folder):
    """The addresses at which any process of a group listens, in all families."""
    found = set()
    for pid in processes_of(folder):
        with suppress(psutil.NoSuchProcess):
            sockets = psutil.Process(pid).net_connections(kind="inet")
            found |= {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def test_all_sockets_are_on_loopback_while_the_ranks_work(group):
    group.run(distributed.get_rank)  # they are up
    seen = []
    ending = threading.Event()

    def watch():
        while not ending.wait(0.1):
            seen.append(listening(group.folder))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        group.run(speaks_then_sleeps)
    finally:
        ending.set()
        watching.join()
    assert any(seen), "torchrun's store listens, and gloo"
    assert set().union(*seen) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_bytes_on_the_wire_are_those_of_the_tensor_and_little_more(group):
    for count in group.run(received, 25_000):
        assert 100_000 <= count < 102_000


def adds_nothing(model, images):
    return images.mean() + None


def test_an_error_in_an_answer_shows_the_learners_line_and_none_of_the_check():
    _, q2 = exercises(13)
    said = q2.check(adds_nothing).message
    assert "unsupported operand" in said
    assert re.findall(r"in (\w+), line \d+: (.+)", said) == [("adds_nothing", "`return images.mean() + None`")]


@pytest.mark.parametrize(
    ("worker", "timeout", "told"),
    [
        (
            raises,
            PATIENCE,
            [
                "rank 1 raised: KeyError: 'bucket'\n  in raises, line",
                "rank 0 did not return; its process was ended\n  in raises",
            ],
        ),
        pytest.param(leaves, PATIENCE, ["ranks 0 and 1 raised: SystemExit: 3"], marks=pytest.mark.slow),
        (dies, PATIENCE, ["rank 1 died: exit code 3", "rank 0 "]),
        (is_killed, PATIENCE, ["rank 0 died: killed by signal SIGKILL"]),
        (
            hangs,
            1,
            ["rank", "not return within 1 s", "ended\n  in hangs", ": `distributed.barrier()`"],
        ),
        (
            hangs,
            PATIENCE,
            ["rank 0 waited 6 s for a rank that did not come", "\n  in hangs", "rank 1 had returned by then"],
        ),
        pytest.param(
            both_receive,
            PATIENCE,
            ["ranks 0 and 1 waited 6 s for a rank that did not come", "\n  in both_receive, line"],
            marks=pytest.mark.slow,
        ),
        (
            gathers_unequal,
            PATIENCE,
            [
                "SIGABRT. Another rank sent more than this one has room for: in a collective",
                "same shape and dtype\n  in gathers_unequal",
            ],
        ),
        (crashes, PATIENCE, ["died: killed by signal SIGSEGV\n  in crashes, line"]),
        pytest.param(unsendable, PATIENCE, ["ranks 0 and 1 raised: TypeError: cannot pickle"], marks=pytest.mark.slow),
    ],
)
def test_a_bad_end_names_rank_and_place_and_the_next_run_works(group, worker, timeout, told, monkeypatch):
    monkeypatch.setattr("hookscope_course.ranks.group.GRACE_SECONDS", 0.5)
    with pytest.raises(ranks.RankError) as caught:
        group.run(worker, timeout=timeout)
    if timeout == PATIENCE:
        assert "return within" not in str(caught.value), "it waited for what never comes"
    for part in told:
        assert part in str(caught.value)
    assert str(caught.value) == caught.value._render_traceback_()[0].removeprefix("RankError: ")
    assert len(processes_of(group.folder)) == 3, "torchrun and the two that wait"
    assert group.run(distributed.get_rank) == [0, 1]


@pytest.mark.parametrize("work", [pytest.param(True, marks=pytest.mark.slow), False], ids=["works", "sleeps"])
def test_a_rank_that_is_only_late_is_waited_for(group, work, monkeypatch):
    monkeypatch.setattr("hookscope_course.ranks.group.STUCK_SECONDS", 2.0)
    assert group.run(comes_late, work) == [0, 1]


def test_ranks_that_sleep_without_waiting_for_each_other_may_sleep(group, monkeypatch):
    monkeypatch.setattr("hookscope_course.ranks.group.STUCK_SECONDS", 1.0)
    assert group.run(time.sleep, 4) == [None, None]


def test_an_interrupt_ends_the_run_and_not_the_group(group):
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 1, 10)  # again, if Python lost it in a finalizer, as it may
    try:
        with pytest.raises(KeyboardInterrupt):
            group.run(time.sleep, 100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.signal(signal.SIGINT, handler)
    assert group.run(distributed.get_rank) == [0, 1]


def test_start_returns_the_group_that_is_there(group):
    assert ranks.start(2) is group
    command = "torchrun --nproc-per-node=2 -m hookscope_course.ranks.process"
    assert repr(group) == f"2 processes on this machine, started by `{command}`"


def test_a_port_in_use_is_named():
    assert "port 29500 was taken by another program" in explain_failed_start("… EADDRINUSE …", 29500)


def test_a_group_can_be_stopped_before_it_is_up():
    with ranks.Group(2) as group:
        assert group.is_alive
    assert not group.is_alive
    assert gone(lambda: processes_of(group.folder))


def test_a_torchrun_that_fails_says_why(monkeypatch):
    monkeypatch.setattr("hookscope_course.ranks.group.sys.executable", "/bin/false")
    with ranks.Group(2) as group, pytest.raises(ranks.RankError, match="did not start the processes"):
        group.run(distributed.get_rank)


def drawn():
    return distributed.get_rank(), os.getppid(), torch.rand(1).item()


@pytest.mark.slow
def test_where_kernels_are_forks_the_ranks_are_too(tmp_path_factory, monkeypatch):
    with preloaded(tmp_path_factory.mktemp("k")) as environment:
        monkeypatch.setenv(RANKS, environment[RANKS])
        with ranks.Group(2) as group:
            first, second = group.run(drawn), group.run(drawn)
            assert [rank for rank, *_ in first + second] == [0, 1, 0, 1]
            server = {psutil.Process(waiting).ppid() for _, waiting, _ in first}
            assert len(server) == 1
            forks = psutil.Process(server.pop())
            assert "tests.kernels" in forks.cmdline()
            assert len(forks.children()) == 3, "torchrun and two ranks"
            assert first[0][2] != first[1][2]
        assert gone(forks.children)
        assert gone(lambda: processes_of(group.folder))


# The last ones end the group.


@pytest.mark.slow
def test_a_waiting_process_that_is_killed_is_named_and_nothing_stays_behind(group):
    folder = group.folder
    # torchrun, which sees it too, may have ended rank 0 by then.
    with pytest.raises(ranks.RankError, match=r"ranks? (0 and )?1 died: its process was ended"):
        group.run(kills_the_waiting, timeout=PATIENCE)
    assert gone(lambda: processes_of(folder))
    assert not folder.exists()
    assert group.run(distributed.get_rank) == [0, 1], "a run starts them again"
    group.stop()
    assert ranks.start(2) is group, "and so does start()"
    assert group.is_alive


@pytest.mark.slow
def test_nothing_stays_behind_when_the_notebook_is_killed(tmp_path):
    code = (
        "from hookscope_course import ranks\nimport time\n"
        "group = ranks.start(1)\nprint(group.folder, flush=True)\ngroup.run(time.sleep, 1000)"
    )
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    for _ in range(2):  # seen once in about ten whole runs, and not understood: the child does not come
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=settings
        ) as notebook:
            folder = notebook.stdout.readline().strip()
            deadline = time.monotonic() + PATIENCE
            while len(processes_of(folder)) < 3 and time.monotonic() < deadline:
                time.sleep(0.2)
            there = len(processes_of(folder))
            notebook.kill()
        if there >= 3:
            break
        warnings.warn(f"{there} processes after {PATIENCE} s, and no child; once more", stacklevel=1)
    assert there >= 3
    assert gone(lambda: processes_of(folder))
