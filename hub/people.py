"""The learners' accounts: users of the machine in a group of ours, each with a home and a passphrase of its own."""

from __future__ import annotations

import grp
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from hub.limits import processes_of
from hub.settings import HubError, Settings

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is taken for another when it is copied from paper
_NO_SHELL = "/usr/sbin/nologin"


class People:
    """The accounts of one hub.

    Args:
        settings: which say the group and where homes are.

    """

    def __init__(self, settings: Settings) -> None:
        self.group, self.homes = settings.group, settings.homes

    def names(self) -> list[str]:
        """List the learners."""
        with suppress(KeyError):
            return sorted(grp.getgrnam(self.group).gr_mem)
        return []

    def add(self, name: str) -> str:
        """Make an account; returns its passphrase, which is written down nowhere.

        Raises:
            HubError: the name cannot be, or is somebody else's.

        """
        self._check_new(name)
        with suppress(FileNotFoundError):  # of a system that has no such program: the next line says so
            subprocess.run(["groupadd", "--force", "--system", self.group], check=True, capture_output=True)
        home = self.homes / name
        kept = home.exists()
        if kept and home.lstat().st_uid != 0:
            raise HubError(f"{home} is there already, and belongs to somebody; move it away.")
        words = ["--user-group", "--groups", self.group, "--home-dir", str(home), "--shell", _NO_SHELL]
        self.homes.mkdir(parents=True, exist_ok=True)
        _run("useradd", *words, "--no-create-home" if kept else "--create-home", name)
        try:
            user = pwd.getpwnam(name)
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
                f"{name} is at work ({len(running)} processes). `python -m hub remove --now {name}` ends them."
            )
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        home = Path(user.pw_dir)
        # The number of the user may be given to the next one, and the home is not to go with it.
        if home.parent == self.homes and home.exists():
            if with_home:
                shutil.rmtree(home)
            else:
                _give(home, 0, 0)
        _run("userdel", "--force", name)
        return home

    def find(self, name: str) -> pwd.struct_passwd:
        """Return what the system knows about a learner.

        Raises:
            HubError: it is none of ours.

        """
        if name not in self.names():
            raise HubError(f"There is no learner {name!r}; `python -m hub list` names them.")
        return pwd.getpwnam(name)

    def _check_new(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name):
            raise HubError(
                f"{name!r} cannot be a name: small letters a to z, digits, - and _, a letter first, at most 31."
            )
        if name in self.names():
            raise HubError(f"{name} is a learner already; `python -m hub passphrase {name}` makes a new passphrase.")
        with suppress(KeyError):
            pwd.getpwnam(name)
            raise HubError(f"{name} is a user of this machine, and no learner; take another name, as in {name}2.")
        with suppress(KeyError):
            grp.getgrnam(name)
            raise HubError(f"{name} is a group of this machine; take another name, as in {name}2.")


def slip(name: str, passphrase: str, address: str) -> str:
    """What is printed for a learner, to be cut out."""
    return f"\n  {address}\n  name        {name}\n  passphrase  {passphrase}\n{'- ' * 24}"


def _give(home: Path, user: int, group: int) -> None:
    os.lchown(home, user, group)
    for folder, folders, files in os.walk(home):  # which follows no links
        for name in (*folders, *files):
            os.lchown(Path(folder) / name, user, group)


def _run(*words: str, given: str = "") -> None:
    """Run one of the system's programs for accounts."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise HubError(
            f"This machine has no `{words[0]}`; on Debian and Ubuntu, `apt install passwd` brings it."
        ) from None
    if done.returncode:
        raise HubError(f"{words[0]} refused: {done.stderr.strip() or done.returncode}")
