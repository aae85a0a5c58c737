"""The teacher sees who is there, and no more than that; in a network everything is encrypted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import requests

from tests.hub.client import Learner, learner
from tests.hub.running import RunningHub, running_hub, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("hub")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=class -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with running_hub(folder, learners=2, teacher=True, TLS_KEY=str(key), TLS_CERT=str(certificate)) as running:
        yield running


@pytest.fixture(scope="module")
def teacher(hub: RunningHub) -> Learner:
    return signed_in(hub, 0)


def signed_in(hub: RunningHub, place: int) -> Learner:
    name, passphrase = hub.learners[place]
    made = Learner(hub, name)
    assert made.sign_in(passphrase).url.endswith("/hub/home")
    return made


def api(person: Learner, method: str, path: str) -> requests.Response:
    """Ask the hub as its own pages do."""
    xsrf = next(each.value for each in person.web.cookies if each.name == "_xsrf" and each.path == "/hub/")
    headers = {"X-XSRFToken": xsrf, "Referer": f"{person.hub.url}/hub/admin", "Sec-Fetch-Mode": "cors"}
    return person.web.request(method, f"{person.hub.url}/hub/api/{path}", headers=headers, timeout=60)


def test_it_is_encrypted_with_the_certificate_and_cells_run(hub: RunningHub) -> None:
    ben = learner(hub, 1)
    assert hub.url.startswith("https://")
    assert all(each.secure for each in ben.web.cookies if each.name.startswith("jupyterhub"))
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{hub.url}/hub/login", timeout=60)  # without knowing the certificate
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{hub.url.replace('https', 'http')}/hub/login", timeout=60)
    with ben.connected(ben.kernel()) as cells:
        assert cells.run("print(6 * 7)") == "42"


def test_the_teacher_sees_learners_and_stops_and_starts_their_servers(hub: RunningHub, teacher: Learner) -> None:
    ben = learner(hub, 1)
    assert teacher.web.get(f"{hub.url}/hub/admin", timeout=60).status_code == 200
    there = {user["name"]: user["server"] for user in api(teacher, "GET", "users").json()}
    assert there[ben.name] == f"/user/{ben.name}/"
    assert api(teacher, "DELETE", f"users/{ben.name}/server").status_code in (202, 204)
    ben.open()


def test_the_teacher_enters_nobodys_server_and_makes_nobodys_token(hub: RunningHub, teacher: Learner) -> None:
    ben = learner(hub, 1)
    assert teacher.web.get(f"{hub.url}/user/{ben.name}/lab", timeout=60).status_code == 403
    assert teacher.web.get(f"{hub.url}/user/{ben.name}/api/contents", timeout=60).status_code == 403
    assert api(teacher, "POST", f"users/{ben.name}/tokens").status_code in (403, 404)
    assert api(teacher, "POST", "shutdown").status_code == 403
    assert api(teacher, "POST", "users/somebody").status_code == 403
    assert api(ben, "GET", "users").status_code == 403 or api(ben, "GET", "users").json() == []


def test_who_is_removed_is_out(hub: RunningHub) -> None:
    ben = signed_in(hub, 1)
    assert ben.web.get(f"{hub.url}/hub/home", timeout=60).url.endswith("/hub/home")
    assert hub.command("remove", "--now", ben.name).returncode == 0
    assert "/hub/login" in Learner(hub, ben.name).sign_in(hub.learners[1][1]).url
    spawned = ben.web.get(f"{hub.url}/hub/spawn", timeout=60)
    assert spawned.status_code != 200 or "/hub/login" in spawned.url
