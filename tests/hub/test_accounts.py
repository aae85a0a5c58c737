"""Who is removed leaves nothing to a namesake, and nobody keeps others from signing in: on a real hub."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from hub.ending import processes_of
from hub.people import People
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub
from tests.shared.patience import PATIENCE

pytestmark = pytest.mark.slow
HUB = {"learners": 3}


def status(hub: RunningHub, path: str, token: str) -> int:
    return requests.get(f"{hub.url}{path}", headers={"Authorization": f"token {token}"}, timeout=PATIENCE).status_code


@pytest.mark.parametrize("hub_runs", [True, False], ids=["the hub runs", "the hub is stopped"])
def test_a_token_and_a_cookie_of_who_was_removed_open_nothing_of_the_next_of_that_name(
    hub: RunningHub, hub_runs: bool
) -> None:
    place = 1 + hub_runs
    old = hub.learner(place)
    token, user = old.own_token(), hub.home(old.name).stat().st_uid
    cookies = requests.Session()
    cookies.cookies.update(old.web.cookies)
    assert status(hub, f"/hub/api/users/{old.name}", token) == 200
    assert status(hub, f"/user/{old.name}/api/contents", token) == 200
    if not hub_runs:
        hub.process.send_signal(signal.SIGINT)
        hub.process.wait(PATIENCE)
    removed = hub.command("remove", "--now", old.name)
    assert removed.returncode == 0, removed.stderr
    assert not list(processes_of(user))
    added = hub.command("add", old.name)
    assert added.returncode == 0, added.stderr
    if not hub_runs:
        hub.start()
    found = re.search(r"passphrase  (\S+)", added.stdout)
    assert found
    hub.learners[place] = old.name, found[1]
    new = hub.learner(place)
    with new.connected(new.kernel()) as cells:
        assert cells.run("print(6 * 7)") == "42"
    for path in (f"/hub/api/users/{old.name}", "/hub/api/user", f"/user/{old.name}/api/contents"):
        assert status(hub, path, token) == 403, path
    for path in (f"/user/{old.name}/api/contents", "/hub/home", "/hub/spawn"):
        answer = cookies.get(f"{hub.url}{path}", timeout=PATIENCE)
        assert answer.status_code == 403 or "/hub/login" in answer.url, (path, answer.status_code, answer.url)
    assert new.own_token() != token


def test_wrong_passphrases_of_one_keep_no_other_out(hub: RunningHub, anna: Learner) -> None:
    other = hub.person(2)

    def wrong(_: int) -> int:
        return Learner(hub.url, anna.name, "wrong").fill_in().status_code

    with ThreadPoolExecutor(40) as attack:
        tries = [attack.submit(wrong, number) for number in range(40)]
        until(lambda: any(each.done() for each in tries), "the first answers")
        other.sign_in()
        waiting = sum(not each.done() for each in tries)
    assert {each.result() for each in tries} <= {403, 429, 200}
    assert 429 in {each.result() for each in tries}, "all forty were let in at once"
    assert waiting, "the other one had to wait until all of them had been answered"


def test_only_root_can_let_the_hub_forget_somebody(hub: RunningHub, anna: Learner) -> None:
    for path in (hub.settings.accounts_token, hub.settings.given):
        assert path.stat().st_mode & 0o077 == 0
        assert path.stat().st_uid == 0
    assert anna.name in People(hub.settings).names()
    assert anna.ask("DELETE", f"/hub/api/users/{anna.name}").status_code == 403
