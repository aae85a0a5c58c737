"""Two learners on the server that deploy/docker/ describes: what they can reach, and where their limits are.

It needs Docker 28 and the images that deploy/docker/README.md builds. It starts them under other names of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PAGE = ROOT / "deploy" / "docker" / "README.md"
LEARNERS = ("test1", "test2")
TEACHER = "testteacher"
SETTINGS = {"TEACHER": TEACHER, "MEMORY": "1G", "SUBNETS": "10.214.0.0/16", "COMPOSE_PROJECT_NAME": "hookscope-test"}
UP = ("up", "-d", "--no-build", "--pull", "never")
NO_PORTS = "services: {hub: {ports: !reset []}}"  # those of this machine may be taken
LISTEN = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("listens", flush=True)
while True:
    server.accept()[0].close()
"""
CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(address)
    except OSError:
        pass
"""
FORK = """
import os, signal, time
children = []
try:
    while len(children) < 2000:
        child = os.fork()
        if child == 0:
            time.sleep(600)
        children.append(child)
except OSError as error:
    print(len(children), error.strerror)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
TOUCH = """
import pathlib, sys
for place in sys.argv[1:]:
    try:
        (pathlib.Path(place) / "x").touch()
        print(place)
    except OSError:
        pass
"""
FILL = """
import os, sys
try:
    with open(sys.argv[1], "wb") as file:
        for count in range(600):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, count)
os.remove(sys.argv[1])
"""


def docker(*words: str, given: str | None = None, fails: bool = False) -> str:
    """Run a docker command and return what it printed."""
    environment = {**os.environ, **SETTINGS}
    done = subprocess.run(["docker", *words], input=given, capture_output=True, text=True, env=environment, timeout=600)
    assert fails or done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def python(container: str, code: str, *words: str, fails: bool = False) -> str:
    return docker("exec", "-i", container, "python3", "-", *words, given=code, fails=fails)


def home(name: str) -> str:
    return f"jupyter-{name}"


def address_of(container: str, network: str = "") -> str:
    networks = json.loads(docker("inspect", container))[0]["NetworkSettings"]["Networks"]
    return next(each["IPAddress"] for name, each in networks.items() if network in name)


def listen(container: str, port: int) -> None:
    docker("exec", "-d", container, "python3", "-c", LISTEN, str(port))


@pytest.fixture(scope="module")
def hub(compose: list[str]) -> Iterator[str]:
    """The hub of a class, with a teacher who has let two learners in."""
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker engine answers on this machine")
    images = docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    if not {"hookscope:1", "hookscope-hub:1", "nginx:stable"} <= {*images}:
        pytest.skip("no Docker images of the course: deploy/docker/README.md builds them")
    if "hub" in docker("ps", "-a", "--format", "{{.Names}}").split():
        pytest.skip("no Docker container can be named hub: a class runs on this machine")
    try:
        docker(*compose, *UP)
        python("hub", (HERE / "visitor.py").read_text(), "enter", TEACHER, *LEARNERS)
        yield "hub"
    finally:
        everyone = (TEACHER, *LEARNERS)
        docker("rm", "-f", *map(home, everyone), fails=True)
        docker(*compose, "down", "--volumes", fails=True)
        docker("volume", "rm", "-f", *(f"learner-{name}" for name in everyone), fails=True)
        docker("network", "rm", *(f"learner-{number}" for number in range(1, 4)), fails=True)


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a compose command for a copy of deploy/docker/, with a certificate."""
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copytree(PAGE.parent, folder, dirs_exist_ok=True)
    (folder / "tls").mkdir()
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", "tls/key.pem", "-out", "tls/cert.pem", "-subj", "/CN=test"]
    subprocess.run(["openssl", "req", "-x509", *new], cwd=folder, check=True, capture_output=True)
    (folder / "test.yaml").write_text(NO_PORTS)
    return ["compose", "-f", str(folder / "compose.yaml"), "-f", str(folder / "test.yaml")]


@pytest.fixture(scope="module")
def learners(hub: str) -> tuple[str, str]:
    return home(LEARNERS[0]), home(LEARNERS[1])


def test_a_kernel_answers_through_nginx_and_has_no_debugger(hub: str, learners: tuple[str, str]) -> None:
    said = python(hub, (HERE / "visitor.py").read_text(), "kernel", LEARNERS[0], "print(6 * 7)")
    assert said == "42\n"
    running = docker("exec", learners[0], "sh", "-c", "cat /proc/*/cmdline 2> /dev/null | tr '\\0' ' '")
    assert "ipykernel_launcher" in running
    assert "debugpy" not in running


def test_a_learner_reaches_no_port_of_another(hub: str, learners: tuple[str, str]) -> None:
    one, other = learners
    listen(one, 9999)
    open_ports = [f"{address_of(one)}:{port}" for port in (9999, 8888)]
    assert python(hub, CONNECT, *open_ports).split() == open_ports, "the hub reaches them, so they are open"
    assert python(other, CONNECT, *open_ports, f"{one}:8888", f"{one}:9999") == ""


def test_a_learner_reaches_nothing_of_the_machine_or_outside(hub: str, learners: tuple[str, str]) -> None:
    machine = docker("run", "-d", "--network", "host", "hookscope-hub:1", "python3", "-c", LISTEN, "9998").strip()
    try:
        found = python(machine, "import subprocess; print(*open('/proc/net/fib_trie').read().split())")
        own = {*re.findall(r"\d+\.\d+\.\d+\.\d+(?= /32 host LOCAL)", found)}
        doors = sorted(f"{each}:9998" for each in {*own, address_of(learners[0]).rpartition(".")[0] + ".1"})
        gateway = json.loads(docker("network", "inspect", "bridge"))[0]["IPAM"]["Config"][0]["Gateway"]
        assert f"{gateway}:9998" in doors
        reached = docker("run", "--rm", "hookscope-hub:1", "python3", "-c", CONNECT, f"{gateway}:9998")
        assert reached.split() == [f"{gateway}:9998"], "another container reaches it, so it is open"
        assert python(learners[0], CONNECT, *(each for each in doors if not each.startswith("127."))) == ""
        routes = python(learners[0], "print(open('/proc/net/route').read())").splitlines()[1:]
        assert not any(line.split()[1] == "00000000" for line in routes if line), "there is a way out"
    finally:
        docker("rm", "-f", machine)


def test_a_learner_reaches_the_hub_and_nginx_but_not_the_proxy(hub: str, learners: tuple[str, str]) -> None:
    doors = ["hub:443", "hub:8081", "hub:8000", "hub:8001"]
    assert python(learners[0], CONNECT, *doors).split() == ["hub:443", "hub:8081"]
    assert python(hub, CONNECT, "127.0.0.1:8000", "127.0.0.1:8001").split() == ["127.0.0.1:8000", "127.0.0.1:8001"]
    assert python(hub, "print(open('/proc/sys/net/ipv4/ip_forward').read().strip())") == "0\n"


def test_a_learner_has_no_rights_and_writes_only_at_home(learners: tuple[str, str]) -> None:
    status = python(learners[0], "print(open('/proc/self/status').read())")
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert python(learners[0], TOUCH, "/home/jovyan", "/", "/opt", "/var/tmp").split() == ["/home/jovyan"]


@pytest.mark.parametrize(("place", "most"), [("/tmp", 512), ("/dev/shm", 256)])
def test_folders_in_memory_are_bounded(learners: tuple[str, str], place: str, most: int) -> None:
    assert python(learners[1], FILL, f"{place}/big").strip() == f"No space left on device {most}"


def test_memory_and_processes_are_bounded_and_the_other_learner_goes_on(learners: tuple[str, str]) -> None:
    one, other = learners
    killed = subprocess.run(["docker", "exec", one, "python3", "-c", "bytearray(2 << 30)"], capture_output=True)
    assert killed.returncode == 137
    count, _, why = python(one, FORK).strip().partition(" ")
    assert (int(count) < 512, why) == (True, "Resource temporarily unavailable")
    assert python(other, "print('alive')") == "alive\n"


def test_the_page_collects_notebooks_and_nothing_else(learners: tuple[str, str], tmp_path: Path) -> None:
    (command,) = re.findall(r"## Collect\n.*?```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    name = "course/02_call_order.ipynb"
    made = {
        LEARNERS[0]: f"import os; os.makedirs('course', exist_ok=True); open('{name}', 'w').write('a notebook')",
        LEARNERS[1]: f"import os; os.makedirs('course', exist_ok=True); os.symlink('/etc/passwd', '{name}')",
        TEACHER: f"import os; os.makedirs('course', exist_ok=True); os.mkfifo('{name}')",
    }
    for learner, code in made.items():
        python(home(learner), f"import os; os.chdir('/home/jovyan'); {code}")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, capture_output=True, timeout=600)
    found = {path.parts[-3]: path for path in tmp_path.rglob("*.ipynb")}
    assert all(path.is_file() and not path.is_symlink() for path in found.values())
    assert found[LEARNERS[0]].read_text() == "a notebook"
    theirs = docker("run", "--rm", "hookscope:1", "cat", "/etc/passwd")
    assert found[LEARNERS[1]].read_text() == theirs, "of the container, not of this machine"
    assert found[TEACHER].read_text() == ""
    python(home(LEARNERS[0]), f"import os; os.chdir('/home/jovyan'); os.truncate('{name}', 1 << 33)")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, capture_output=True, timeout=600)
    assert found[LEARNERS[0]].stat().st_size <= 20 << 20


def test_a_new_hub_finds_its_learners_again(hub: str, learners: tuple[str, str], compose: list[str]) -> None:
    docker("exec", learners[0], "sh", "-c", "echo saved > work.txt")
    docker(*compose, *UP, "--force-recreate")
    python(hub, (HERE / "visitor.py").read_text(), "start", LEARNERS[0])
    assert docker("exec", learners[0], "cat", "work.txt") == "saved\n"
