"""The learners' accounts: users of the machine in a group of ours, each with a home and a passphrase of its own."""

from __future__ import annotations

import grp
import os
import pwd
import re
import secrets
import socket
import subprocess
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

from hub.ending import end_all, erase, processes_of
from hub.limits import Share
from hub.running import alive
from hub.settings import HubError, Settings

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is taken for another when it is copied from paper
_ANSWERS = 60  # seconds; the hub stops the learner's server first
_NO_SHELL = "/usr/sbin/nologin"


class People:
    """The accounts of one hub.

    Args:
        settings: which say the group and where homes are.

    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.group, self.homes = settings, settings.group, settings.homes

    def names(self) -> list[str]:
        """List the learners."""
        return self.settings.learners

    def add(self, name: str) -> str:
        """Make an account; returns its passphrase, which is written down nowhere.

        Raises:
            HubError: the name cannot be, or is somebody else's.

        """
        self._check_new(name)
        forget(self.settings, name)  # if the account before was removed by other means
        with suppress(FileNotFoundError):  # of a system that has no such program: the next line says so
            subprocess.run(["groupadd", "--force", "--system", self.group], check=True, capture_output=True)
        home = self.homes / name
        kept = home.exists()
        if kept and home.lstat().st_uid != 0:
            raise HubError(f"{home} already exists and belongs to another user. Move it away first.")
        words = ["--user-group", "--groups", self.group, "--home-dir", str(home), "--shell", _NO_SHELL]
        self.homes.mkdir(parents=True, exist_ok=True)
        if lowest := self._never_given():
            words += ["--key", f"UID_MIN={lowest}", "--key", f"GID_MIN={lowest}"]
        _run("useradd", *words, "--no-create-home" if kept else "--create-home", name)
        try:
            user = pwd.getpwnam(name)
            self._note_given(user.pw_uid)
            home.chmod(0o700)
            if kept:  # by `remove`; what is in it is this learner's again
                _give(home, user.pw_uid, user.pw_gid)
            return self.renew(name)
        except BaseException:
            _run("userdel", name)
            raise

    def renew(self, name: str) -> str:
        """Give a learner a new passphrase; the old one is void.

        Raises:
            HubError: there is no such learner.

        """
        self.find(name)
        letters = [secrets.choice(_LETTERS) for _ in range(16)]
        passphrase = "-".join("".join(letters[place : place + 4]) for place in range(0, 16, 4))
        _run("chpasswd", given=f"{name}:{passphrase}\n")
        return passphrase

    def remove(self, name: str, with_home: bool = False, now: bool = False) -> Path:
        """Remove an account; the home is kept, and then belongs to root, unless it shall go, too.

        Args:
            name: of the learner.
            with_home: delete all that the learner has written.
            now: end what the learner runs.

        Returns:
            The home.

        Raises:
            HubError: there is no such learner, or they are at work.

        """
        user = self.find(name)
        running = list(processes_of(user.pw_uid))
        if running and not now:
            raise HubError(
                f"{name} has {len(running)} running processes. `python -m hub remove --now {name}` ends them."
            )
        _run("usermod", "--lock", "--expiredate", "1", name)  # no new sign-in during the removal
        forget(self.settings, name)
        if left := end_all(user.pw_uid):
            raise HubError(
                f"{name} can no longer sign in, but these processes could not be ended: "
                f"{', '.join(map(str, left))}. Restart the machine, then remove {name} again."
            )
        home = Path(user.pw_dir)
        # Close the home first: the learner may have opened it to others.
        if home.parent == self.homes and home.exists():
            home.chmod(0o700)
            if not with_home:
                _give(home, 0, 0)
            elif said := erase(home):
                raise HubError(f"{name} can no longer sign in, but {home} could not be deleted: {said}")
        erase(self.settings.run / name)
        Share(f"{self.settings.run.name}/{name}").remove()
        self._note_given(user.pw_uid)
        _run("userdel", "--force", name)
        for folder in ("/tmp", "/var/tmp"):
            if Path(folder) in self.homes.parents:  # where homes that are kept might lie
                continue
            words = ["find", folder, "-xdev", "-mindepth", "1", "-depth", "-user", str(user.pw_uid), "-delete"]
            subprocess.run(words, check=False, capture_output=True)
        return home

    def find(self, name: str) -> pwd.struct_passwd:
        """Return what the system knows about a learner.

        Raises:
            HubError: it is none of ours.

        """
        if name not in self.names():
            raise HubError(f"There is no learner {name!r}. `python -m hub list` lists them all.")
        return pwd.getpwnam(name)

    def _never_given(self) -> int:
        """Return the lowest number that no learner ever had; 0 before the first: what is left of one is nobody's."""
        with suppress(OSError, ValueError):
            return int(self.settings.given.read_text()) + 1
        return 0

    def _note_given(self, number: int) -> None:
        self.settings.state.mkdir(parents=True, exist_ok=True)
        self.settings.state.chmod(0o700)
        if number >= self._never_given():
            self.settings.given.write_text(str(number))
            self.settings.given.chmod(0o600)

    def _check_new(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name):
            raise HubError(
                f"{name!r} is not a valid name. Use up to 31 of a to z, digits, - and _, and begin with a letter."
            )
        if name in self.names():
            raise HubError(f"{name} is already a learner. `python -m hub passphrase {name}` creates a new passphrase.")
        with suppress(KeyError):
            pwd.getpwnam(name)
            raise HubError(f"{name} is already a user of this machine. Choose another name, for example {name}2.")
        with suppress(KeyError):
            grp.getgrnam(name)
            raise HubError(f"{name} is already a group of this machine. Choose another name, for example {name}2.")


def slip(name: str, passphrase: str, address: str) -> str:
    """What is printed for a learner, to be cut out."""
    return f"\n  {address}\n  name        {name}\n  passphrase  {passphrase}\n{'- ' * 24}"


def forget(settings: Settings, name: str) -> None:
    """Take a name out of the hub: sessions, tokens and servers end, and who gets the name next inherits nothing.

    Raises:
        HubError: the hub runs and does not do it; says why.

    """
    if alive(settings.pid):
        asking = HTTPConnection("localhost", timeout=_ANSWERS)
        asking.sock = socket.socket(socket.AF_UNIX)
        asking.sock.settimeout(_ANSWERS)
        try:
            with closing(asking):
                asking.sock.connect(str(settings.hub_socket))
                token = {"Authorization": f"token {settings.accounts_token.read_text()}"}
                asking.request("DELETE", f"/hub/api/users/{name}", headers=token)
                answer = asking.getresponse()
                said = answer.read().decode(errors="replace")
        except OSError as error:
            raise HubError(
                f"The hub is running but does not answer ({error}). Stop it with `make hub-stop`, then try again."
            ) from None
        if answer.status not in (204, 404):
            raise HubError(f"The hub could not delete {name} ({answer.status}: {said[:300]}). Try again in a minute.")
    elif settings.database.exists():
        from jupyterhub import orm

        database = orm.new_session_factory(f"sqlite:///{settings.database}")()
        with closing(database):
            if user := orm.User.find(database, name):
                database.delete(user)
                database.commit()


def _give(home: Path, user: int, group: int) -> None:
    # Not a file that has another name: that may be in use elsewhere.
    words = ["(", "-type", "d", "-o", "-links", "1", ")", "-execdir", "chown", "-h", f"{user}:{group}", "{}", "+"]
    _run("find", str(home), "-xdev", *words, PATH=os.defpath)  # find refuses a PATH with a relative folder


def _run(*words: str, given: str = "", **more: str) -> None:
    """Run one of the system's programs for accounts."""
    try:
        done = subprocess.run(
            words, input=given, env={**os.environ, **more}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise HubError(
            f"This machine has no `{words[0]}`. On Debian and Ubuntu, install it with `apt install passwd`."
        ) from None
    if done.returncode:
        raise HubError(f"{words[0]} failed: {done.stderr.strip() or done.returncode}")
