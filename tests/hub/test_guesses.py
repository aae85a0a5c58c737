"""A class's guesses: told only by those who said yes, counted without names, seen by the teacher alone."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import requests
import torch
from jupyter_client.manager import KernelManager

from hookscope_course.kernels import over_files
from hookscope_course.learner.edition import learners
from hookscope_course.practice.share import LETTERS, worded
from tests.shared import ROOT

pytest.importorskip("jupyterhub", reason="the hub is not set up: make hub, or make dev")
from hub.guesses import Lesson, Question, questions_of, tidy
from hub.guesses_page import SHOWN, page
from tests.hub.client import Learner, until
from tests.hub.running import RunningHub
from tests.shared.patience import PATIENCE

CHAPTER = "02_call_order"
CELL = next(iter(questions_of(ROOT / "notebooks")[CHAPTER]))


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("nobody asked")


WORDED = [
    (3, "3"), (3.0, "3"), (0.1 + 0.2, "0.3"), (True, "True"), ("C,  E\n B", "C, E B"), (["C", "E"], "C, E"),
    (torch.tensor([1.0, 2.0]), "1, 2"), (np.arange(10**6), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"),
    (10**5000, "a very large number"), (float("nan"), "nan"), (float("-inf"), "-inf"), (-1e300, "-1e+300"),
    ({3, 1}, "1, 3"), (torch.nn.Linear, "Linear"), (Hostile(), "Hostile"), ([[1, 2], [3, [4]]], "(1, 2), (3, …)"),
    ("x" * 10**6, "x" * (LETTERS - 1) + "…"), (None, "None"),
]  # fmt: skip


@pytest.mark.parametrize(("guess", "text"), WORDED, ids=lambda value: str(type(value).__name__))
def test_a_guess_is_told_as_a_short_text(guess: Any, text: str) -> None:
    assert worded(guess) == text


def lesson() -> Lesson:
    return Lesson({"02": {"a": Question("a", "1 · Order", "Which?"), "b": Question("b", "2", "What?")}, "03": {}})


def test_who_changes_a_guess_counts_once_and_nobody_can_be_found_in_the_memory() -> None:
    ours = lesson()
    # Long names: the random bytes of a seal spell a short one now and then.
    names = [f"{who} of the first row" for who in ("anna", "ben", "cleo", "dora")]
    for who, guess in zip(names, ("E", " e ", "C", "3"), strict=True):
        ours.take("02", "a", who, guess)
    ours.take("02", "a", names[2], "E")
    assert ours.counts("02") == {"a": [("E", 3), ("3", 1)], "b": []}
    assert ours.guessed() == {"02": 4, "03": 0}
    assert not [who for who in names if who in repr(vars(ours))]
    before = {key: {*seals} for key, seals in ours._guesses.items()}
    ours.begin()
    assert ours.counts("02") == {"a": [], "b": []}
    ours.take("02", "a", names[0], "E")
    assert not before["02", "a"] & {*ours._guesses["02", "a"]}, "the same learner has the same seal in the next lesson"


def test_a_guess_for_what_is_no_question_is_refused_so_that_the_memory_cannot_grow() -> None:
    ours = lesson()
    for chapter, cell in ("02", "z"), ("99", "a"), ("", ""):
        with pytest.raises(LookupError, match="no such question"):
            ours.take(chapter, cell, "anna", "E")
    for number in range(1000):
        ours.take("02", "a", "anna", f"{number}" * 1000)
    assert ours.guessed() == {"02": 1, "03": 0}
    assert len(ours.counts("02")["a"][0][0]) == LETTERS


def test_what_is_kept_is_one_line_without_invisible_letters() -> None:
    assert tidy("a\u202eb\x00\n\tc\u200b  d") == "a b c d"


def test_the_page_shows_counts_as_bars_and_a_strange_guess_as_text() -> None:
    ours = lesson()
    for number in range(6):
        ours.take("02", "a", f"one{number}", "E")
    for number in range(3):
        ours.take("02", "a", f"two{number}", '<script>alert("x")</script>')
    for number in range(SHOWN + 3):
        ours.take("02", "b", f"each{number}", f"{number:02}")
    made = page("02", ours.questions["02"], ours.counts("02"), ours.guessed(), '"><b>')
    assert "<script" not in made
    assert '"><b>' not in made
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in made
    assert re.findall(r'<td class="n">(\d+)</td><td><div class="bar" style="width: (\d+)%">', made)[:2] == [
        ("6", "100"), ("3", "50"),
    ]  # fmt: skip
    assert "<caption>9 guesses</caption>" in made
    assert '3 other guesses</th><td class="n">3</td>' in made


def test_the_service_knows_every_question_of_a_learners_copy() -> None:
    known = questions_of(ROOT / "notebooks")
    for file in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        cells = learners(json.loads(file.read_text()))["cells"]
        asked = [cell["id"] for cell in cells if re.search(r"^guess = Guess\(____", "".join(cell["source"]), re.M)]
        assert asked == [*known.get(file.stem, {})], file.name
    assert all(question.text and question.heading for of in known.values() for question in of.values())
    assert sum(map(len, known.values())) > 40


# -- in a real kernel ------------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A place that takes guesses, and what came: the token and the guess."""
    came: list[tuple[str, dict[str, str]]] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    class AtASocket(ThreadingHTTPServer):
        address_family = socket.AF_UNIX

        def server_bind(self) -> None:
            self.socket.bind(self.server_address)
            self.server_name, self.server_port = "localhost", 80

        def get_request(self) -> tuple[socket.socket, Any]:
            return self.socket.accept()[0], ("a kernel", 0)

    place = f"{tempfile.mkdtemp()}/guesses.sock"
    server = AtASocket(place, Takes)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield place, came
    finally:
        server.shutdown()
        server.server_close()


class Cells:
    """A kernel that runs cells with their ids, as JupyterLab does."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, code: str, cell: str = CELL) -> str:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.client.shell_channel.send(message)
        said = ""
        while True:
            came = self.client.get_iopub_msg(timeout=PATIENCE)
            if came["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            assert came["msg_type"] != "error", came["content"]
            said += came["content"].get("text", "") + came["content"].get("data", {}).get("text/plain", "")
            if came["content"].get("execution_state") == "idle":
                return said


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "HOME": str(home), "JPY_SESSION_NAME": f"/course/{CHAPTER}.ipynb"}
    manager = KernelManager(kernel_name="python3", config=over_files())
    manager.start_kernel(env=environment, cwd=str(home))
    client = manager.client()
    client.start_channels()
    cells = Cells(client)
    try:
        client.wait_for_ready(timeout=PATIENCE)
        cells.run("import os; from hookscope_course import Guess, ____")
        yield cells
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def begin_afresh(cells: Cells, address: str) -> None:
    cells.run(
        "from pathlib import Path; from hookscope_course.practice import share\n"
        "share._last.clear(); share._told.clear(); share._kept().unlink(missing_ok=True)\n"
        f"os.environ.update(HOOKSCOPE_GUESSES={address!r}, HOOKSCOPE_GUESSES_TOKEN='t0')"
    )


def until_there_are(came: list[Any], count: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(came) < count and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)  # for one too many
    assert len(came) == count


def test_nothing_is_told_before_a_yes_nor_after_a_no(cells: Cells) -> None:
    with listening() as (address, came):
        begin_afresh(cells, address)
        said = cells.run("guess = Guess('C, E')\nguess")
        assert "run `Guess.share()` in a separate cell; to decline, run `Guess.share(False)`" in said
        cells.run("Guess(____)", "other")
        until_there_are(came, 0)
        said = cells.run("Guess.share()", "own")
        assert "counted from now on, without your name" in said
        until_there_are(came, 1)
        assert came[0] == ("token t0", {"chapter": CHAPTER, "cell": CELL, "guess": "C, E"})
        said = cells.run("guess = Guess('C, E')\nguess")  # the same once more, and a changed one
        assert "share" not in said
        cells.run("guess = Guess(['C', 'B'])")
        until_there_are(came, 2)
        assert came[1][1]["guess"] == "C, B"
        assert "not counted from now on" in cells.run("Guess.share(False)", "own")
        said = cells.run("guess = Guess('D')\nguess")
        assert said == "Your guess: D. Now run the cells below."
        until_there_are(came, 2)


def test_a_service_that_is_gone_or_says_nothing_neither_stops_nor_delays_a_cell(cells: Cells) -> None:
    folder = tempfile.mkdtemp()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{folder}/mute")
        mute.listen()
        for place in (f"{folder}/mute", f"{folder}/nobody"):
            begin_afresh(cells, place)
            # A cell that waited for an answer would end after this time, and not before `run` gives up.
            cells.run("from hookscope_course.practice import share; share.SECONDS = 600.0; Guess.share()", "own")
            for guess in ("3", "Hostile()", "10**5000", "'x' * 10**7", "[[]] * 10**6"):
                cells.run("class Hostile:\n    def __repr__(self): return 'mine'", "other")
                assert cells.run(f"guess = Guess({guess})") == "", f"{guess} with {place}"
    begin_afresh(cells, "not an address")
    cells.run("Guess.share(); guess = Guess(3)")


def test_without_a_hub_that_counts_nothing_is_asked_and_nothing_told(cells: Cells) -> None:
    with listening() as (address, came):
        begin_afresh(cells, address)
        cells.run("Guess.share(); del os.environ['HOOKSCOPE_GUESSES']", "own")
        assert cells.run("guess = Guess(3)\nguess") == "Your guess: 3. Now run the cells below."
        assert "guesses are not counted here" in cells.run("Guess.share()", "own")
        until_there_are(came, 0)


# -- with a real hub -------------------------------------------------------------------------------------------------


HUB = {"learners": 31, "teacher": True, "GUESSES": "on"}


def address(hub: RunningHub) -> str:
    return f"{hub.url}/services/guesses/guess"


def signed_in(hub: RunningHub, place: int) -> Learner:
    made = hub.person(place)
    made.sign_in()
    return made


def own_token(person: Learner) -> str:
    """A learner's token that opens the service and nothing else."""
    return person.own_token(scopes=["access:services!service=guesses"], expires_in=600)


def post(hub: RunningHub, token: str, body: Any) -> requests.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(address(hub), data=data, headers={"Authorization": f"token {token}"}, timeout=60)


@pytest.mark.slow
def test_thirty_guess_at_once_and_the_teacher_sees_how_many_guessed_what(hub: RunningHub) -> None:
    teacher = signed_in(hub, 0)
    with ThreadPoolExecutor(30) as crowd:
        tokens = list(crowd.map(lambda place: own_token(signed_in(hub, place)), range(1, 31)))
        guesses = [{"chapter": CHAPTER, "cell": CELL, "guess": "E, C" if n % 3 else "C, E"} for n in range(30)]
        said = list(crowd.map(lambda both: post(hub, *both).status_code, zip(tokens, guesses, strict=True)))
    assert said == [204] * 30
    shown = teacher.sees(f"/services/guesses/?chapter={CHAPTER}")
    assert shown.status_code == 200
    rows = re.findall(r'<th scope="row">([^<]*)</th><td class="n">(\d+)</td>', shown.text)
    assert rows == [("E, C", "20"), ("C, E", "10")]
    assert not any(name in shown.text for name, _ in hub.learners)
    with_button = {"_xsrf": re.search(r'name="_xsrf" value="([^"]*)"', shown.text)[1]}
    assert teacher.web.post(shown.url, timeout=60).status_code == 403, "a form of another page's would do"
    after = teacher.web.post(shown.url, data=with_button, timeout=60)
    assert after.status_code == 200
    assert '<td class="n">' not in after.text


@pytest.mark.slow
def test_forged_tokens_and_strange_guesses_are_refused_with_a_line_in_the_log(hub: RunningHub) -> None:
    token = own_token(signed_in(hub, 1))
    good = {"chapter": CHAPTER, "cell": CELL, "guess": "E"}
    for forged in ("", "forged", token[:-1], "a b", "é" * 5, "x" * 5000):
        headers = {"Authorization": f"token {forged}".encode()}
        assert requests.post(address(hub), json=good, headers=headers, timeout=60).status_code in (400, 403), forged
    # Answered at once, and so often, these show whether the proxy loses an answer (hub/proxy/keep_alive.cjs).
    answers = {requests.post(address(hub), json=good, timeout=60).status_code for _ in range(200)}
    assert answers == {403}
    line = "refused: a guess from 127.0.0.1 with an unknown token"
    until(lambda: line in hub.said.read_text(), "the line in the log", 30)
    no_texts = ({"chapter": CHAPTER}, good | {"guess": 3}, good | {"guess": ["E"]})
    for body in (b"", b"no JSON", b"[]", b"3", b"[" * 4000, *no_texts):
        assert post(hub, token, body).status_code == 400, body
    for body in (good | {"cell": "zz"}, good | {"chapter": "../02"}, good | {"chapter": "x" * 2000}):
        assert post(hub, token, body).status_code == 404
    with suppress(requests.RequestException):  # it may not even listen to the end
        assert post(hub, token, good | {"guess": "x" * 10**6}).status_code in (400, 413)
    assert post(hub, token, good).status_code == 204, "the service has not survived all this"


@pytest.mark.slow
def test_a_token_that_was_revoked_counts_no_longer(hub: RunningHub) -> None:
    learner = signed_in(hub, 3)
    made = learner.ask("POST", f"/hub/api/users/{learner.name}/tokens", json={"expires_in": 600}).json()
    good = {"chapter": CHAPTER, "cell": CELL, "guess": "E"}
    assert post(hub, made["token"], good).status_code == 204
    assert learner.ask("DELETE", f"/hub/api/users/{learner.name}/tokens/{made['id']}").status_code == 204
    until(lambda: post(hub, made["token"], good).status_code == 403, "that the token is void", 30)


@pytest.mark.slow
def test_a_learner_sees_no_counts_and_the_token_of_kernels_opens_nothing_else(hub: RunningHub) -> None:
    visitor = signed_in(hub, 2)
    seen = visitor.sees("/services/guesses/")
    assert (seen.status_code, seen.text) == (403, "403: These counts are for the teacher.\n")
    visitor.open()
    with visitor.connected(visitor.kernel(f"{CHAPTER}.ipynb")) as cells:
        cells.run("from hookscope_course import Guess, ____; Guess.share()", "own")
        assert cells.run("guess = Guess('E, D')\nguess", CELL) == "Your guess: E, D. Now run the cells below."
        token = cells.run("import os; print(os.environ['HOOKSCOPE_GUESSES_TOKEN'])")
        theirs = {"Authorization": f"token {token}"}
        files = requests.get(f"{hub.url}/user/{visitor.name}/api/contents", headers=theirs, timeout=60)
        assert files.status_code == 403
    visitor.stop()
    teacher = signed_in(hub, 0)
    until(lambda: "E, D" in teacher.sees(f"/services/guesses/?chapter={CHAPTER}").text, "her guess, counted", 30)
    # It says whose it is, as the service must know, and no more.
    known = requests.get(f"{hub.url}/hub/api/users/{visitor.name}", headers=theirs, timeout=60).json()
    assert known["name"] == visitor.name
    assert not any(known.pop(private) for private in ("admin", "user_info"))
    assert {*known} <= {"name", "kind", "groups"}
    start = f"{hub.url}/hub/api/users/{visitor.name}/server"
    assert requests.post(start, headers=theirs, timeout=60).status_code == 403
    assert requests.get(f"{hub.url}/hub/api/users", headers=theirs, timeout=60).status_code == 403
    counts = requests.get(f"{hub.url}/services/guesses/", headers=theirs, timeout=60)
    assert counts.status_code == 403
