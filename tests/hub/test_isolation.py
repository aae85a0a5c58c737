"""What a learner can and cannot reach on a real hub, with real users; what the hub refuses stands in its log."""

from __future__ import annotations

import http.client
import os
import re
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from hub.spawner import COURSE
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub

pytestmark = pytest.mark.slow  # a real hub, with users of this machine


def raw(hub: RunningHub, path: str, cookie: str) -> http.client.HTTPResponse:
    """Ask for a path as it stands, which a usual client would tidy up."""
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=60)
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    return answer


def as_user(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a learner could in a cell."""
    return subprocess.run(
        words, user=name, group=name, extra_groups=[], cwd="/", capture_output=True, text=True, check=False
    )


def test_a_lesson_has_the_course_and_a_kernel_in_limits_that_draws(hub: RunningHub, anna: Learner) -> None:
    assert anna.open().url == f"{anna.base}/lab/tree/index.ipynb"
    files = [each["name"] for each in anna.ask("GET", "api/contents").json()["content"]]
    assert "02_call_order.ipynb" in files
    with anna.connected(anna.kernel()) as cells:
        assert cells.run("import os; print(os.getuid(), os.getcwd())") == (
            f"{hub.home(anna.name).stat().st_uid} {hub.home(anna.name) / COURSE}"
        )
        plots = "with capture_output() as said: plt.plot([1, 2]); plt.show()\nprint([*said.outputs[0].data])"
        drawn = cells.run(f"import matplotlib.pyplot as plt\nfrom IPython.utils.capture import capture_output\n{plots}")
        assert "image/png" in drawn
        groups = cells.run("print(open('/proc/self/cgroup').read())")
        assert f":memory:/hookscope/{hub.settings.run.name}/{anna.name}" in groups or "0::/hookscope/" in groups
        assert cells.run("!echo a shell") == "a shell"


def test_a_learners_processes_know_no_secret_but_their_own_token(hub: RunningHub, anna: Learner) -> None:
    with anna.connected(anna.kernel()) as cells:
        known = cells.run("import os\nfor name in sorted(os.environ): print(name)").split()
        assert {"JUPYTERHUB_API_TOKEN", "JUPYTER_RUNTIME_DIR", "HOME"} <= {*known}
        values = cells.run("for value in os.environ.values(): print(value)")
        proxies = Path(f"/proc/{hub.settings.proxy_pid.read_text()}/environ").read_text()
        secrets = [hub.settings.cookies.read_text(), *re.findall(r"CONFIGPROXY_AUTH_TOKEN=(\w+)", proxies)]
        assert len(secrets) == 2
        assert not [secret for secret in secrets if secret.strip() in values]
        assert "PermissionError" in cells.run(f"print(open('{hub.settings.database}').read())")


def test_a_learner_reads_nothing_of_anothers(hub: RunningHub, anna: Learner, ben: Learner) -> None:
    kernel = ben.kernel()
    run, home = hub.settings.run, hub.home(ben.name)
    connection = run / ben.name / f"kernel-{kernel}.json"
    assert connection.is_file()
    secret = [home / COURSE / "02_call_order.ipynb", home / COURSE / ".hookscope" / "copy.json", connection]
    for path in secret:
        assert path.is_file()
        assert as_user(ben.name, "cat", str(path)).returncode == 0
        assert "Permission denied" in as_user(anna.name, "cat", str(path)).stderr
    for folder in (home, run / ben.name, run, hub.settings.state):
        assert "Permission denied" in as_user(anna.name, "ls", str(folder)).stderr
    pid = next(iter(hub_processes(hub, ben.name)))
    assert "ermission denied" in as_user(anna.name, "cat", f"/proc/{pid}/environ").stderr
    assert "not permitted" in as_user(anna.name, "kill", "-9", str(pid)).stderr


def hub_processes(hub: RunningHub, name: str) -> list[int]:
    done = subprocess.run(["pgrep", "-u", name], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def test_a_learner_listens_at_no_port(hub: RunningHub, anna: Learner) -> None:
    """What a kernel prints goes out unsigned and to everybody who listens; so nobody else may reach its sockets."""
    kernel = anna.kernel()
    with anna.connected(kernel) as cells:
        assert cells.run("print(1)") == "1"
    user = hub.home(anna.name).stat().st_uid
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    # Each kernel opens one port for what it forks itself, and heeds nobody who does not know its secret.
    kernels = len(anna.ask("GET", "api/kernels").json())
    assert sum(line[3] == "0A" and int(line[7]) == user for line in lines) <= kernels


def test_a_learner_gets_nothing_from_anothers_server(hub: RunningHub, anna: Learner, ben: Learner) -> None:
    mine = anna.sees(f"/user/{ben.name}/api/contents")
    assert mine.status_code in (403, 404)
    page = anna.sees(f"/user/{ben.name}/lab")
    assert page.status_code == 403
    refused = rf"403 GET .*{ben.name}.*\({anna.name}@"
    until(lambda: re.search(refused, hub.log), "the line in the log", 30)
    place = hub.settings.run / ben.name / "server.sock"
    assert place.is_socket()
    connects = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place)!r})"
    assert "Permission denied" in as_user(anna.name, sys.executable, "-I", "-S", "-c", connects).stderr
    assert as_user(ben.name, sys.executable, "-I", "-S", "-c", connects).returncode == 0


@pytest.mark.parametrize(
    "trick", ["{0}/../{1}", "{0}/%2e%2e/{1}", "{0}%2f..%2f{1}", "{0}/..%2f{1}", "{0}//../{1}", "./{1}"]
)
def test_tricks_with_paths_lead_nowhere(hub: RunningHub, anna: Learner, ben: Learner, trick: str) -> None:
    cookies = "; ".join(f"{each.name}={each.value}" for each in anna.web.cookies)
    answer = raw(hub, f"/user/{trick.format(anna.name, ben.name)}/api/contents", cookies)
    assert answer.status in (302, 400, 403, 404), answer.status
    assert b"02_call_order" not in answer.body  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path", ["../../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "..%2f..%2f..%2fetc%2fpasswd"]
)
def test_tricks_with_files_lead_to_nothing_outside_of_the_course(hub: RunningHub, anna: Learner, path: str) -> None:
    cookies = "; ".join(f"{each.name}={each.value}" for each in anna.web.cookies)
    for door in ("api/contents", "files"):
        answer = raw(hub, f"/user/{anna.name}/{door}/{path}", cookies)
        assert answer.status in (302, 400, 403, 404, 405), answer.status
        assert b"root:" not in answer.body  # type: ignore[attr-defined]


def test_a_wrong_passphrase_and_who_is_no_learner_are_refused_and_logged(hub: RunningHub) -> None:
    name, passphrase = hub.learners[0]
    refused = hub.person(0).fill_in(passphrase[:-1] + ("x" if passphrase[-1] != "x" else "y"))
    assert "Invalid username or password" in refused.text
    assert re.search(f"Authentication failed .*{name}", hub.log)
    for other in ("root", "nobody", f"{name}; true", "../" + name, ""):
        assert "Invalid username or password" in Learner(hub.url, other, "").fill_in().text


def test_who_has_an_account_and_is_not_of_the_class_is_refused(hub: RunningHub) -> None:
    name, passphrase = f"{hub.learners[0][0]}x", "a-passphrase-of-a-test"
    subprocess.run(["useradd", "--no-create-home", name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{name}:{passphrase}", text=True, check=True)
        refused = Learner(hub.url, name, passphrase).fill_in()
        assert refused.status_code == 403
        assert re.search(f"not allowed.*{name}|{name}.*not allowed", hub.log)
    finally:
        subprocess.run(["userdel", name], check=True)


def test_a_learner_cannot_stop_the_hub_nor_see_the_others(hub: RunningHub, anna: Learner, ben: Learner) -> None:
    token = anna.own_token()
    headers = {"Authorization": f"token {token}"}
    api = f"{hub.url}/hub/api"
    assert requests.get(f"{api}/user", headers=headers, timeout=60).json()["name"] == anna.name
    for method, path in (
        ("POST", "shutdown"), ("GET", "users"), ("GET", f"users/{ben.name}"), ("DELETE", f"users/{ben.name}/server"),
        ("POST", f"users/{ben.name}/tokens"), ("POST", "users/x"), ("GET", "proxy"), ("GET", "services"),
    ):  # fmt: skip
        answer = requests.request(method, f"{api}/{path}", headers=headers, timeout=60)
        assert answer.status_code in (403, 404) or answer.json() in ({}, []), (path, answer.text)
    assert re.search(rf"403 POST /hub/api/shutdown \({anna.name}@", hub.log)
    for file in (hub.settings.pid, hub.settings.proxy_pid):
        assert "not permitted" in as_user(anna.name, "kill", file.read_text()).stderr
    assert requests.get(f"{hub.url}/hub/admin", cookies=anna.web.cookies, timeout=60).status_code == 403
    assert hub.process.poll() is None


def test_forged_and_expired_tokens_are_refused_and_logged(hub: RunningHub, anna: Learner) -> None:
    token = anna.own_token(expires_in=3600)
    api = f"{hub.url}/hub/api/users/{anna.name}"
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")

    def status(word: str) -> int:
        return requests.get(api, headers={"Authorization": f"token {word}"}, timeout=60).status_code

    assert (status(token), status(forged), status("")) == (200, 403, 403)
    assert re.search(rf"403 GET /hub/api/users/{anna.name} \(@", hub.log)
    with sqlite3.connect(hub.settings.database, timeout=30) as database:
        past = (datetime.now() - timedelta(days=1)).isoformat(" ")
        changed = database.execute("UPDATE api_tokens SET expires_at = ? WHERE expires_at > ?", (past, past))
        assert changed.rowcount >= 1
    database.close()
    assert status(token) == 403


def test_what_is_too_large_is_refused_and_logged(hub: RunningHub, anna: Learner) -> None:
    assert requests.post(f"{hub.url}/hub/login", data=b"x" * (2 << 20), timeout=60).status_code >= 400
    assert "Content-Length too long" in hub.log
    text = {"type": "file", "format": "text", "content": "x" * (65 << 20)}
    assert anna.ask("PUT", "api/contents/large.txt", json=text).status_code >= 400
    assert not (hub.home(anna.name) / COURSE / "large.txt").exists()
    small = {**text, "content": "small"}
    assert anna.ask("PUT", "api/contents/small.txt", json=small).status_code == 201
    assert requests.get(f"{hub.url}/hub/health", timeout=60).status_code == 200


def test_another_pages_request_is_refused(hub: RunningHub, anna: Learner) -> None:
    """A page somewhere else may make her browser send her cookies; it does not know what her own page knows."""
    answer = anna.ask("POST", "api/kernels", headers={"X-XSRFToken": "guessed"})
    assert answer.status_code == 403


def test_what_the_hub_keeps_is_for_root_alone(hub: RunningHub) -> None:
    assert hub.settings.state.stat().st_mode & 0o777 == 0o700
    for path in (hub.settings.cookies, hub.settings.database, hub.settings.log):
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.stat().st_uid == os.getuid() == 0
    passphrases = [passphrase.encode() for _, passphrase in hub.learners]
    kept = [path for path in hub.settings.state.rglob("*") if path.is_file()]
    assert len(kept) >= 3
    assert not [path for path in [*kept, hub.said] for word in passphrases if word in path.read_bytes()]
