"""The teacher sees who is there, and no more than that; in a network everything is encrypted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import sync_playwright

from tests.hub.client import Learner
from tests.hub.running import RunningHub, why_not
from tests.shared.lab import CHROMIUM, CHROMIUM_FLAGS
from tests.shared.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def encrypted(folder: Path) -> dict[str, Any]:
    """One with a teacher, and a certificate."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=class -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return {"teacher": True, "TLS_KEY": str(key), "TLS_CERT": str(certificate)}


HUB = encrypted


@pytest.fixture(scope="module")
def teacher(hub: RunningHub) -> Learner:
    return signed_in(hub, 0)


def signed_in(hub: RunningHub, place: int) -> Learner:
    made = hub.person(place)
    made.sign_in()
    return made


def test_it_is_encrypted_with_the_certificate_and_cells_run(hub: RunningHub) -> None:
    ben = hub.learner(1)
    assert hub.url.startswith("https://")
    assert all(each.secure for each in ben.web.cookies if each.name.startswith("jupyterhub"))
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{hub.url}/hub/login", timeout=60)  # without knowing the certificate
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{hub.url.replace('https', 'http')}/hub/login", timeout=60)
    with ben.connected(ben.kernel()) as cells:
        assert cells.run("print(6 * 7)") == "42"


def test_the_teacher_sees_learners_and_stops_and_starts_their_servers(hub: RunningHub, teacher: Learner) -> None:
    ben = hub.learner(1)
    assert teacher.sees("/hub/admin").status_code == 200
    there = {user["name"]: user["server"] for user in teacher.ask("GET", "/hub/api/users").json()}
    assert there[ben.name] == f"/user/{ben.name}/"
    assert teacher.ask("DELETE", f"/hub/api/users/{ben.name}/server").status_code in (202, 204)
    ben.open()


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")
def test_the_teachers_page_has_only_buttons_that_work(hub: RunningHub, teacher: Learner) -> None:
    hub.learner(1)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS) as browser,
    ):
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(f"{hub.url}/hub/login?next=/hub/admin")
        page.fill("#username_input", teacher.name)
        page.fill("#password_input", hub.learners[0][1])
        page.click("#login_submit")
        page.set_default_timeout(1000 * PATIENCE)
        page.wait_for_selector(".user-row .stop-button")
        shown = page.locator("#react-admin-hook").get_by_role("button").filter(visible=True).all_inner_texts()
        assert {*shown} == {"Start All", "Stop All", "Stop Server", "Start Server", "Previous", "Next", ""}
        page.get_by_role("button", name="Stop Server").first.click()
        page.wait_for_function("!document.querySelector('.user-row .stop-button')")
        assert "Failed" not in page.inner_text("#react-admin-hook")


def test_the_teacher_enters_nobodys_server_and_makes_nobodys_token(hub: RunningHub, teacher: Learner) -> None:
    ben = hub.learner(1)
    assert teacher.sees(f"/user/{ben.name}/lab").status_code == 403
    assert teacher.sees(f"/user/{ben.name}/api/contents").status_code == 403
    assert teacher.ask("POST", f"/hub/api/users/{ben.name}/tokens").status_code in (403, 404)
    assert teacher.ask("POST", "/hub/api/shutdown").status_code == 403
    assert teacher.ask("POST", "/hub/api/users/somebody").status_code == 403
    assert ben.ask("GET", "/hub/api/users").status_code == 403 or ben.ask("GET", "/hub/api/users").json() == []


def test_who_is_removed_is_out(hub: RunningHub) -> None:
    ben = signed_in(hub, 1)
    assert ben.sees("/hub/home").url.endswith("/hub/home")
    assert hub.command("remove", "--now", ben.name).returncode == 0
    assert "/hub/login" in hub.person(1).fill_in().url
    spawned = ben.sees("/hub/spawn")
    assert spawned.status_code != 200 or "/hub/login" in spawned.url
