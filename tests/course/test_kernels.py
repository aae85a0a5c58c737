"""A preloaded kernel is a kernel like any other, only sooner there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from hookscope_course.kernel_settings import open_over_files
from tests.kernels import launch, preloaded
from tests.shared import PATIENCE


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user comes to; not among pytest's own, which the next pytest closes as it starts."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o777)
        yield folder


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with open_folder() as folder, preloaded(folder):
        yield folder


class Kernel:
    """A kernel in use."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self.manager, self.client, self.error = manager, client, ""

    def run(self, code: str) -> str:
        """Run a cell and return what it printed; its error is in `error`."""
        printed, self.error = [], ""

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            elif message["msg_type"] == "error":
                self.error = content["ename"]

        self.client.execute_interactive(code, timeout=PATIENCE, output_hook=hear)
        return "".join(printed).strip()


@contextmanager
def running(place: Path, folder: Path | None = None, **environment: str) -> Iterator[Kernel]:
    before = os.environ.copy()
    os.environ.update({"JUPYTER_PATH": str(place), **environment})
    try:
        manager = KernelManager(kernel_name="python3", config=open_over_files())
        manager.start_kernel(cwd=str(folder or place))
    finally:
        os.environ.clear()
        os.environ.update(before)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def until(is_so: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Say whether a process runs; one that has ended and is not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_it_has_torch_and_is_where_and_what_it_was_asked_to_be(place: Path, tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        with running(place, tmp_path, MINE="yes") as kernel:
            assert kernel.run("import sys; print('torch' in sys.modules, 'hookscope' in sys.modules)") == "True True"
            assert kernel.run("import os; print(os.getcwd(), os.environ['MINE'])") == f"{tmp_path} yes"
            kernel.run("open('made', 'w').close()")
            assert kernel.run("print(sys.path[-1] == '' or '' in sys.path, __name__)") == "True __main__"
            assert (
                kernel.run("import torch; print((torch.ones(300, 300) @ torch.ones(300, 300))[0, 0].item())") == "300.0"
            )
    finally:
        os.umask(umask)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_two_kernels_do_not_draw_the_same(place: Path) -> None:
    drawn = set()
    for _ in range(2):
        with running(place) as kernel:
            drawn |= set(kernel.run("import numpy as np, torch, random\nprint(np.random.rand())").split())
            drawn |= set(kernel.run("print(torch.rand(1).item(), random.random())").split())
    assert len(drawn) == 6


STATE = """
import json, locale, logging, os, random, signal, sys, warnings
import matplotlib.pyplot as plt, numpy as np, torch
filters = [str(each[:3]) for each in warnings.filters]
print(json.dumps({
    "backend": plt.get_backend(), "interactive": plt.isinteractive(), "size": plt.rcParams["figure.figsize"],
    "environment": dict(os.environ), "arguments": sys.argv[0], "path": sys.path[1:],
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "logging": [logging.getLogger().level, len(logging.getLogger().handlers)], "umask": os.umask(0o22),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    "locale": locale.setlocale(locale.LC_ALL), "name": __name__,
    "torch": [torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled()],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval()], "flags": str(sys.flags), "filters": filters,
    "draws": [np.random.rand(), torch.rand(1).item(), random.random()],
}))
"""
DRAWS = "plt.plot([1, 2]); plt.show()\nplt.plot([1, 2])"


def _state(place: Path, folder: Path) -> tuple[dict[str, Any], list[list[str]]]:
    with running(place, folder, PYTHONHASHSEED="0") as kernel:
        state = json.loads(kernel.run(STATE))
        shown: list[list[str]] = []
        kernel.client.execute_interactive(
            DRAWS, timeout=PATIENCE, output_hook=lambda m: shown.append(sorted(m["content"].get("data", ())))
        )
        return state, [data for data in shown if data]


def test_it_is_in_the_state_of_an_ordinary_kernel_and_draws_as_it_does(place: Path, tmp_path: Path) -> None:
    (theirs, they_show), (ours, we_show) = _state(tmp_path, tmp_path), _state(place, tmp_path)
    assert we_show == they_show
    assert we_show.count(["image/png", "text/plain"]) == 2
    assert ours["backend"] == "module://matplotlib_inline.backend_inline"
    # More is imported, and each draws its own numbers.
    assert set(theirs.pop("filters")) <= set(ours.pop("filters"))
    assert not set(theirs.pop("draws")) & set(ours.pop("draws"))
    for name in ("HOOKSCOPE_RANKS", "JUPYTER_PATH", "JPY_PARENT_PID"):
        ours["environment"].pop(name, None)
        theirs["environment"].pop(name, None)
    assert ours == theirs


FORKS = """
child = os.fork()
if not child:
    print('from a fork', flush=True)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.5)
"""


def test_it_listens_at_no_port_and_yet_hears_what_it_forks(place: Path) -> None:
    with running(place) as kernel:
        process = kernel.run("import os, time; print(os.getpid())")
        open_files = {str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink()}
        lines = [
            line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()
        ]
        assert not [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in open_files]
        assert kernel.run(FORKS) == "from a fork"


def test_it_takes_its_files_away_when_it_is_asked_to_end(place: Path) -> None:
    with running(place) as kernel:
        file = Path(kernel.manager.connection_file)
        assert file.with_name(f"{file.stem}-ipc-0").is_socket()
        kernel.manager.shutdown_kernel()
        assert not list(file.parent.glob(f"{file.stem}*"))


def test_it_is_interrupted_and_started_again(place: Path) -> None:
    with running(place) as kernel:
        kernel.run("import os, subprocess; helper = subprocess.Popen(['sleep', '100'])")
        first, helper = kernel.run("print(os.getpid(), helper.pid)").split()
        soon = threading.Timer(0.5, kernel.manager.interrupt_kernel)
        soon.start()
        kernel.run("import time; time.sleep(100)")
        assert kernel.error == "KeyboardInterrupt"
        assert kernel.run("print(helper.wait())") == str(-signal.SIGINT)
        helper = kernel.run("helper = subprocess.Popen(['sleep', '100']); print(helper.pid)")
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=PATIENCE)
        until(lambda: not runs(int(first)) and not runs(int(helper)))
        assert kernel.run("import os; print(os.getpid())") != first
        assert "helper" not in kernel.run("print(sorted(globals()))")


def test_what_ends_by_itself_says_how(place: Path) -> None:
    with running(place) as kernel:
        kernel.client.execute("import os; os._exit(3)")
        until(lambda: not kernel.manager.is_alive())
        assert kernel.manager.provisioner.process.returncode == 3


def test_it_ends_with_who_stands_for_it(place: Path) -> None:
    with running(place) as kernel:
        pid = int(kernel.run("import os; print(os.getpid())"))
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        until(lambda: not runs(pid))


@pytest.mark.slow
def test_it_outlives_its_server_and_the_next_one_imports_torch_itself(tmp_path: Path) -> None:
    with preloaded(tmp_path), running(tmp_path) as kernel:
        pid, server = kernel.run("import os; print(os.getpid(), os.getppid())").split()
        os.kill(int(server), signal.SIGKILL)
        assert kernel.run("print('goes on', os.getpid())") == f"goes on {pid}"
        with running(tmp_path) as other:
            assert other.run("import sys; print('torch' in sys.modules)") == "False"
        kernel.client.execute("os._exit(0)")
        until(lambda: not kernel.manager.is_alive())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"{",
        b'{"arguments": [3], "environment": {}, "folder": "", "umask": 0}',
        b"[" * 100_000,
        b'{"arguments": [], "environment": [], "folder": "/", "umask": 0}',
        b'{"arguments": [], "environment": {}, "folder": "/", "umask": Infinity}',
    ],
    ids=["nothing", "a list", "half", "numbers", "deep", "a list as environment", "Infinity"],
)
def test_nonsense_is_refused_and_said_and_the_next_one_is_served(place: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(30)
        asking.connect(str(place / "kernels.sock"))
        socket.send_fds(asking, [message or b"{}"], [0, 1, 2] if message else [0])
        assert "refused" in json.loads(asking.recv(1000))
    with running(place) as kernel:
        assert kernel.run("print(1)") == "1"


def test_who_says_nothing_holds_up_nobody(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(place / "kernels.sock"))
        with running(place) as kernel:
            assert kernel.run("print(1)") == "1"


def test_the_launcher_needs_nothing_but_the_standard_library() -> None:
    words = [sys.executable, "-I", "-S", "-X", "importtime", launch.__file__, "/nowhere", "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    assert "No preloaded kernel ([Errno 2] No such file or directory); this one imports torch itself" in said
    before = said.partition("No preloaded kernel")[0]
    assert "site-packages" not in before
    assert len(before.splitlines()) < 120, "Jupyter waits for it"
