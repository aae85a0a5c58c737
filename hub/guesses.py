"""What a class guessed, counted: a small service of the hub, off unless the teacher starts it with GUESSES=on.

    GUESSES=on TEACHER=maria python -m hub

A learner who has said yes (`Guess.share()`) sends a guess with a token that opens this service and nothing else. Kept
are short texts for the questions that the chapters have, each under a seal in place of a name: a keyed digest, so that
somebody who changes a guess counts once. The key is made for a lesson, never leaves the memory, and is forgotten with
all guesses at "New lesson" and when the service stops. Teachers see counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado import web
from tornado.escape import to_unicode
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket

from hub.guesses_page import Question, page
from hub.sockets import bound

__all__ = ["Lesson", "Question", "add_to", "questions_of"]

ROOT = Path(__file__).resolve().parents[1]
NAME = "guesses"
PREFIX = f"/services/{NAME}/"
ACCESS, SEES = f"access:services!service={NAME}", f"custom:{NAME}:see"
LETTERS, BODY = 60, 4096
TOKEN_LASTS = 24 * 3600
log = logging.getLogger(NAME)


def add_to(c: Any, spawner: Any, *, teacher: str, socket: Path, command: list[str]) -> None:
    """Switch the service on in a hub's configuration: `spawner` is a part of `c`, `command` runs `serve`."""
    service = {"name": NAME, "command": command, "cwd": str(ROOT), "oauth_redirect_uri": f"{PREFIX}oauth_callback"}
    c.JupyterHub.services.append(service | {"oauth_no_confirm": True, "oauth_client_allowed_scopes": [SEES]})
    c.JupyterHub.custom_scopes = {SEES: {"description": "See how many learners made each guess."}}
    c.JupyterHub.load_roles += [
        {"name": "user", "scopes": ["self", ACCESS]},
        {"name": "sees-guesses", "scopes": [ACCESS, SEES], "users": [teacher]},
    ]

    def token(spawner: Any) -> str:
        """Make a token for one learner's kernels. That of their server would open far more, so it is not used."""
        made: str = spawner.user.new_api_token(note=NAME, expires_in=TOKEN_LASTS, scopes=[ACCESS])
        return made

    # Not through the proxy, whose certificate a kernel may have no way to check.
    spawner.environment.update({"HOOKSCOPE_GUESSES": str(socket), "HOOKSCOPE_GUESSES_TOKEN": token})


def questions_of(notebooks: Path) -> dict[str, dict[str, Question]]:
    """Read which questions the chapters have, from the built notebooks; a learner's copy has the same cells.

    Args:
        notebooks: their folder.

    Returns:
        The questions by chapter (02_call_order) and by the id of the cell, in their order.

    Raises:
        FileNotFoundError: there is no question in the folder.

    """
    found: dict[str, dict[str, Question]] = {}
    for file in sorted(notebooks.glob("[0-9]*.ipynb")):
        heading, text = "", ""
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                heading = (re.findall(r"^#+ (.+)$", source, re.MULTILINE) or [heading])[-1]
                text = source.rpartition("**Predict.**")[2].strip()
            elif re.search(r"^guess = Guess\(", source, re.MULTILINE):
                found.setdefault(file.stem, {})[cell["id"]] = Question(cell["id"], heading, text)
    if not found:
        raise FileNotFoundError(
            f"there are no questions in {notebooks}. `make build` creates the notebooks that have them"
        )
    return found


class Lesson:
    """The guesses of one lesson, in memory.

    Args:
        questions: what `questions_of` returned; a guess for anything else is refused, so this cannot grow.

    Example:
        >>> lesson = Lesson({"02": {"a": Question("a", "1 · Order", "Which is first?")}})
        >>> for who, guess in ("anna", "E"), ("ben", "e "), ("cleo", "C"), ("cleo", "E"):
        ...     lesson.take("02", "a", who, guess)
        >>> lesson.counts("02")["a"]
        [('E', 3)]

    """

    def __init__(self, questions: dict[str, dict[str, Question]]) -> None:
        self.questions = questions
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._key = secrets.token_bytes(32)
        self._guesses: dict[tuple[str, str], dict[bytes, str]] = {}

    def take(self, chapter: str, cell: str, who: str, guess: str) -> None:
        """Count a guess, in place of the earlier one of the same learner.

        Raises:
            LookupError: there is no such question.

        """
        if cell not in self.questions.get(chapter, {}):
            raise LookupError("there is no such question")
        seal = hmac.digest(self._key, f"{chapter}/{cell}/{who}".encode(), hashlib.sha256)
        self._guesses.setdefault((chapter, cell), {})[seal] = tidy(guess)

    def counts(self, chapter: str) -> dict[str, list[tuple[str, int]]]:
        """How many guessed what, by cell, most first. Capitals make no difference; shown is what was written first."""
        counted = {}
        for cell in self.questions.get(chapter, {}):
            said = self._guesses.get((chapter, cell), {}).values()
            spelt = {guess.casefold(): guess for guess in reversed(said)}
            tally = Counter(guess.casefold() for guess in said)
            counted[cell] = sorted(((spelt[key], n) for key, n in tally.items()), key=lambda row: (-row[1], row[0]))
        return counted

    def guessed(self) -> dict[str, int]:
        """How many guesses there are, by chapter."""
        found = dict.fromkeys(self.questions, 0)
        for (chapter, _), said in self._guesses.items():
            found[chapter] += len(said)
        return found


def tidy(guess: str) -> str:
    """What is kept of a guess: one line of at most 60 letters, none of them invisible."""
    seen = "".join(letter if letter.isprintable() else " " for letter in guess[: 8 * LETTERS])
    line = " ".join(seen.split())
    return line if len(line) <= LETTERS else line[: LETTERS - 1] + "…"


class Page(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]  # it has no types
    """The teacher's page."""

    @property
    def lesson(self) -> Lesson:
        """The lesson that all share."""
        lesson: Lesson = self.settings["lesson"]
        return lesson

    def set_default_headers(self) -> None:
        """Nothing of the page is kept by a browser, loaded from elsewhere or run."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
        )

    def teacher(self) -> None:
        """Refuse everybody else."""
        user: dict[str, Any] = self.current_user
        if SEES not in user.get("scopes", ()):
            log.warning("refused: %s asked for the counts", user.get("name"))
            raise web.HTTPError(403, reason="These counts are for the teacher")

    @web.authenticated
    def get(self) -> None:
        """Show the counts of a chapter."""
        self.teacher()
        chosen = self.get_query_argument("chapter", "")
        if chosen not in self.lesson.questions:
            chosen = max(self.lesson.guessed().items(), key=lambda each: each[1])[0]
        counts, token = self.lesson.counts(chosen), to_unicode(self.xsrf_token)
        self.finish(page(chosen, self.lesson.questions[chosen], counts, self.lesson.guessed(), token))

    @web.authenticated
    def post(self) -> None:
        """Begin a new lesson."""
        self.teacher()
        self.lesson.begin()
        log.info("a new lesson: all guesses were deleted")
        self.redirect(self.request.uri)

    def write_error(self, status_code: int, **said: Any) -> None:
        """Say in one line what was refused."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}: {self._reason}.\n")


class Take(Page):
    """Where kernels send guesses. A token must come along; a browser's cookie does not count here."""

    def check_xsrf_cookie(self) -> None:
        """No cookie is read, so no page of somebody else's can use one."""

    async def post(self) -> None:
        """Count a guess."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        user = None
        if scheme.lower() in ("token", "bearer") and re.fullmatch(r"[\w.-]{1,200}", token):
            user = await self.hub_auth.user_for_token(token, sync=False)
        if not user or not self.hub_auth.check_scopes({ACCESS, "access:services"}, user):
            log.warning("refused: a guess from %s with an unknown token", self.request.remote_ip)
            raise web.HTTPError(403, reason="Unknown token")
        try:
            said = json.loads(self.request.body)
            chapter, cell, guess = (said[name] for name in ("chapter", "cell", "guess"))
            if not all(isinstance(word, str) for word in (chapter, cell, guess)):
                raise TypeError("all three are text")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise web.HTTPError(400, reason="A guess must be JSON with the strings chapter, cell and guess") from None
        try:
            self.lesson.take(chapter, cell, user["name"], guess)
        except LookupError:
            raise web.HTTPError(404, reason="There is no such question") from None
        self.set_status(204)


async def serve(socket: Path, hub: str) -> None:
    """Listen at a socket until the hub, which has this address, stops this process."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s guesses: %(message)s")
    # JupyterHub sets these only for a service that listens at a port.
    os.environ |= {
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX, "JUPYTERHUB_API_URL": f"{hub}/hub/api",
        "JUPYTERHUB_CLIENT_ID": f"service-{NAME}", "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{PREFIX}oauth_callback",
    }  # fmt: skip
    HubOAuth.instance(cache_max_age=1)  # seconds for which a token counts that was revoked; 0 would mean for ever
    lesson = Lesson(questions_of(ROOT / "notebooks"))
    handlers = [(PREFIX, Page), (f"{PREFIX}guess", Take), (f"{PREFIX}oauth_callback", HubOAuthCallbackHandler)]
    made = web.Application(handlers, cookie_secret=secrets.token_bytes(32), lesson=lesson, xsrf_cookies=True)
    served = HTTPServer(made, max_body_size=BODY, max_buffer_size=4 * BODY, xheaders=True)  # the proxy says who asks
    bound(served)
    served.add_socket(bind_unix_socket(str(socket), mode=0o666))  # who tells a guess shows a token
    await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("The hub starts this service: GUESSES=on python -m hub")
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
