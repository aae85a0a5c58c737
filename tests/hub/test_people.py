"""Accounts are the machine's own: made with a passphrase each, kept apart from everybody else's."""

from __future__ import annotations

import ctypes
import ctypes.util
import grp
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.people import People
from hub.settings import HubError, Settings
from tests.hub.running import why_not
from tests.shared import ROOT

# Slow: it makes users of this machine, which nobody expects of `make test`.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    mark = secrets.token_hex(3)
    homes = Path("/var/tmp") / f"hub-{mark}"
    made = People(Settings(group=f"hx{mark}", homes=homes, state=tmp_path))
    yield made
    for name in made.names():
        made.remove(name, with_home=True, now=True)
    subprocess.run(["groupdel", made.group], check=False, capture_output=True)
    shutil.rmtree(homes, ignore_errors=True)


def opens(name: str, passphrase: str) -> bool:
    library = ctypes.CDLL(ctypes.util.find_library("crypt") or "libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    return library.crypt(passphrase.encode(), stored(name).encode()) == stored(name).encode()


def stored(name: str) -> str:
    lines = Path("/etc/shadow").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split(":")[1]


def test_each_gets_a_passphrase_of_their_own_and_a_closed_home(people: People) -> None:
    names = [f"{people.group}{letter}" for letter in "ab"]
    said = [people.add(name) for name in names]
    assert people.names() == names
    assert all(re.fullmatch(r"([a-z2-9]{4}-){3}[a-z2-9]{4}", each) for each in said)
    assert opens(names[0], said[0])
    assert opens(names[1], said[1])
    assert not opens(names[0], said[1])
    home = people.homes / names[0]
    assert home.stat().st_mode & 0o777 == 0o700
    assert home.stat().st_uid == pwd.getpwnam(names[0]).pw_uid
    new = people.renew(names[0])
    assert opens(names[0], new)
    assert not opens(names[0], said[0])


@pytest.mark.parametrize("name", ["", "Anna", "anna ben", "../anna", "-r", "a" * 32, "anna:x", "änna", "a\nb"])
def test_a_name_that_cannot_be_is_refused(people: People, name: str) -> None:
    with pytest.raises(HubError, match="is not a valid name"):
        people.add(name)
    assert people.names() == []


@pytest.mark.parametrize("name", ["root", "nobody", "daemon"])
def test_a_user_of_the_machine_is_no_learner(people: People, name: str) -> None:
    with pytest.raises(HubError, match="is already a user of this machine"):
        people.add(name)
    with pytest.raises(HubError, match="There is no learner"):
        people.find(name)  # and no more than that: were it broken, this test would change the machine's own accounts
    assert name not in people.names()


def test_a_user_who_is_none_of_ours_is_left_alone(people: People) -> None:
    other = f"{people.group}z"
    subprocess.run(["useradd", "--no-create-home", other], check=True)
    try:
        before = stored(other)
        for act in (people.renew, people.remove):
            with pytest.raises(HubError, match="There is no learner"):
                act(other)
        assert stored(other) == before
    finally:
        subprocess.run(["userdel", other], check=False)


def test_a_group_or_a_folder_of_that_name_is_refused(people: People) -> None:
    taken = next(group.gr_name for group in grp.getgrall() if re.fullmatch("[a-z]+", group.gr_name) and group.gr_gid > 0
                 and group.gr_name not in {user.pw_name for user in pwd.getpwall()})  # fmt: skip
    with pytest.raises(HubError, match="is already a group of this machine"):
        people.add(taken)
    name = f"{people.group}a"
    (people.homes / name).mkdir(parents=True)
    shutil.chown(people.homes / name, 65534)
    with pytest.raises(HubError, match="belongs to another user"):
        people.add(name)


def test_a_home_that_is_kept_goes_to_nobody_else_and_comes_back(people: People) -> None:
    first, second = f"{people.group}a", f"{people.group}b"
    people.add(first)
    home = people.homes / first
    (home / "work.txt").write_text("of the first")
    shutil.chown(home / "work.txt", first)
    (home / "elsewhere").symlink_to("/etc/hostname")
    before = Path("/etc/hostname").stat().st_uid
    number = pwd.getpwnam(first).pw_uid
    home.chmod(0o777)  # as a learner may have done
    os.link(home / "work.txt", people.homes / "another name")
    left = [Path(tempfile.mkdtemp(dir=folder)) for folder in ("/tmp", "/dev/shm")]
    for folder in left:
        (folder / "file").touch()
        shutil.chown(folder / "file", first)
        shutil.chown(folder, first)
    people.remove(first)
    assert not any(folder.exists() for folder in left), "what was left in places for all"
    people.add(second)
    assert pwd.getpwnam(second).pw_uid > number, "the number is given to nobody again"
    assert home.stat().st_mode & 0o777 == 0o700
    assert home.stat().st_uid == 0
    assert (home / "work.txt").stat().st_uid == number, "a file with two names is not given to root"
    (people.homes / "another name").unlink()
    people.add(first)
    assert (home / "work.txt").read_text() == "of the first"
    assert (home / "work.txt").stat().st_uid == pwd.getpwnam(first).pw_uid
    assert Path("/etc/hostname").stat().st_uid == before
    people.remove(first, with_home=True)
    assert not home.exists()


DIGS = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(2000):
    os.mkdir("folder")
    os.chdir("folder")
open("file", "w").close()
"""


def test_a_home_of_any_depth_is_kept_given_back_and_deleted(people: People) -> None:
    name = f"{people.group}a"
    people.add(name)
    home = people.homes / name
    words = [sys.executable, "-I", "-S", "-c", DIGS, str(home)]
    subprocess.run(words, user=name, group=name, extra_groups=[], check=True)

    def owners() -> set[str]:
        said = subprocess.run(["find", home, "-printf", "%U\n"], capture_output=True, text=True, check=True).stdout
        assert len(said.split()) > 2000
        return {*said.split()}

    people.remove(name)
    assert owners() == {"0"}
    people.add(name)
    assert owners() == {str(pwd.getpwnam(name).pw_uid)}
    people.remove(name, with_home=True)
    assert not home.exists()


def test_who_is_at_work_is_not_removed_by_accident(people: People) -> None:
    name = f"{people.group}a"
    people.add(name)
    with subprocess.Popen(["sleep", "60"], user=name) as works:
        with pytest.raises(HubError, match="remove --now"):
            people.remove(name)
        assert works.poll() is None
        people.remove(name, now=True)
        assert works.wait(10) == -9
    with pytest.raises(KeyError):
        pwd.getpwnam(name)


def test_the_command_prints_slips_and_keeps_homes_unless_told(people: People) -> None:
    name = f"{people.group}a"
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/bin",
        "HUB_GROUP": people.group,
        "HUB_HOMES": str(people.homes),
        "PORT": "8765",
        "HUB_STATE": str(people.settings.state),
    }

    def command(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "hub", *words)
        return subprocess.run(
            words, cwd=ROOT, env=environment, input=given, capture_output=True, text=True, check=False
        )

    assert "There are no learners yet" in command("list").stdout
    added = command("add", name, "daemon")
    assert added.returncode == 1
    assert "daemon is already a user of this machine" in added.stderr
    assert "http://127.0.0.1:8765" in added.stdout
    found = re.search(r"passphrase  (\S+)", added.stdout)
    assert found
    assert opens(name, found[1])
    assert command("list").stdout == f"{name}\n"
    assert "which was kept" in command("remove", name).stdout
    assert (people.homes / name).is_dir()
    assert command("add", name).returncode == 0
    assert "was removed.\n" in command("remove", name, given=f"{name}\n").stdout
    assert not (people.homes / name).exists()
