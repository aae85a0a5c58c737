"""Tell the class what was guessed: only where a hub asks for it, and only when the learner has said yes.

The hub's service (`hub/guesses.py`) gets the chapter, the cell's id, and the guess as a short text; no name, and no
other line of the notebook. The service is asked in a thread, for two seconds at most. If it is not there, nothing
happens.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Lock, Thread
from typing import Any

__all__ = ["ADDRESS", "TOKEN", "asks", "offer", "place", "say", "worded"]

ADDRESS, TOKEN = "HOOKSCOPE_GUESSES", "HOOKSCOPE_GUESSES_TOKEN"
"""The Unix socket where guesses go, and what opens that door and no other: the hub tells both to a learner's server."""
PATH = "/services/guesses/guess"
PLACES, LETTERS = 12, 60
"""So many places of a list and so many letters are told."""
ASKS = (
    "Your class counts guesses. To have yours counted, without your name, run `Guess.share()` in a separate cell; "
    "to decline, run `Guess.share(False)`"
)
SECONDS = 2.0


def asks() -> str:
    """The question that stands under a guess until the learner has answered it; empty where nobody counts."""
    return ASKS if ADDRESS in os.environ and _answer() is None else ""


def say(yes: bool) -> str:
    """Keep the learner's answer for all notebooks; yes also tells the last guess. Returns what is true from now on."""
    if ADDRESS not in os.environ:
        return "guesses are not counted here, and nothing was sent"
    try:
        _kept().parent.mkdir(parents=True, exist_ok=True)
        _kept().write_text("yes" if yes else "no", encoding="utf-8")
    except OSError as error:
        return f"your answer could not be saved ({error.strerror}), and nothing was sent"
    if not yes:
        _last.clear()
        return "your guesses are not counted from now on; `Guess.share()` changes that"
    _tell_last()
    return "your guesses are counted from now on, without your name; `Guess.share(False)` stops this"


def offer(guess: Any, cell: tuple[str, str] | None = None) -> None:
    """Tell a guess that was made in a notebook's cell, or keep it until the learner has said yes. Never raises.

    Args:
        guess: what was guessed.
        cell: where, as `place` returned it; by default the cell that runs. A click comes when no cell runs.

    """
    if ADDRESS not in os.environ or _answer() is False:
        return
    with suppress(Exception):  # whatever a guess is, a lesson goes on
        here = cell or place()
        if here is not None:
            _last.clear()
            _last[here] = worded(guess)
            if _answer():
                _tell_last()


def worded(guess: Any) -> str:
    """A guess as a short text, the same for guesses that mean the same; nothing of it is run but its `tolist`.

    Example:
        >>> worded([3.0, True, " a  b "])
        '3, True, a b'

    """
    if hasattr(guess, "tolist") and getattr(guess, "size", None) is not None:  # a tensor or an array
        few = guess.flatten()[: PLACES + 1] if getattr(guess, "ndim", 0) else guess
        guess = few.tolist()
    if isinstance(guess, set | frozenset | dict):
        guess = sorted(worded(each) for each in _few(guess))
    if isinstance(guess, list | tuple):
        places = [_one(each) for each in _few(guess)]
        return _short(", ".join(places[:PLACES]) + (", …" if len(places) > PLACES else ""))
    return _short(_one(guess))


def _few(many: Any) -> list[Any]:
    return [each for each, _ in zip(many, range(PLACES + 1), strict=False)]


def _one(value: Any) -> str:
    match value:
        case bool() | None:
            return str(value)
        case int():
            return str(value) if abs(value) < 10**LETTERS else "a very large number"
        case float():
            return (
                str(int(value))
                if math.isfinite(value) and value == int(value) and abs(value) < 1e16
                else f"{value:.6g}"
            )
        case str():
            return " ".join(value[: 4 * LETTERS].split())
        case type():
            return value.__name__
        case list() | tuple():
            return f"({', '.join(_one(each) if not isinstance(each, list | tuple) else '…' for each in _few(value))})"
    return type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


# -- the learner's answer --------------------------------------------------------------------------------------------


def _kept() -> Path:
    return Path.home() / ".config" / "hookscope" / "guesses"


def _answer() -> bool | None:
    with suppress(OSError, UnicodeDecodeError, RuntimeError):
        return {"yes": True, "no": False}.get(_kept().read_text(encoding="utf-8").strip())
    return None


# -- on the way ------------------------------------------------------------------------------------------------------

_last: dict[tuple[str, str], str] = {}
_told: dict[tuple[str, str], str] = {}
_one_at_a_time = Lock()


def place() -> tuple[str, str] | None:
    """The chapter and the cell that runs; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "get_parent"):
        return None
    cell = shell.get_parent().get("metadata", {}).get("cellId")
    chapter = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
    return (chapter, cell) if cell and chapter else None


def _tell_last() -> None:
    for place in _last:
        Thread(target=_tell, args=[place], daemon=True).start()


def _tell(place: tuple[str, str]) -> None:
    """Send the latest guess at a place, once. Threads take turns, so that the latest is also the last."""
    with _one_at_a_time:
        guess = _last.get(place)
        if guess is None or _told.get(place) == guess:
            return
        chapter, cell = place
        body = json.dumps({"chapter": chapter, "cell": cell, "guess": guess}).encode()
        with suppress(Exception):  # the service may be gone, slow or confused
            headers = {"Authorization": f"token {os.environ.get(TOKEN, '')}", "Content-Type": "application/json"}
            asking = HTTPConnection("localhost", timeout=SECONDS)
            asking.sock = socket.socket(socket.AF_UNIX)
            asking.sock.settimeout(SECONDS)
            with closing(asking):
                asking.sock.connect(os.environ[ADDRESS])
                asking.request("POST", PATH, body, headers)
                if asking.getresponse().status < 300:
                    _told[place] = guess
