"""A class's notebooks are gathered as their learners read them; what is no plain file of theirs is named, not taken."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub import collecting
from hub.collecting import collect
from hub.people import People
from hub.settings import HubError, Settings
from tests.hub.running import why_not
from tests.shared import ROOT

# Slow: it makes users of this machine, which nobody expects of `make test`.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]
NAME = "02_call_order"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    mark = secrets.token_hex(3)
    made = Settings(group=f"hx{mark}", homes=Path("/var/tmp") / f"hub-{mark}", state=tmp_path / "state")
    people = People(made)
    try:
        yield made
    finally:
        for name in people.names():
            people.remove(name, with_home=True, now=True)
        subprocess.run(["groupdel", made.group], check=False, capture_output=True)
        shutil.rmtree(made.homes, ignore_errors=True)


def test_plain_files_of_the_learner_are_taken_and_everything_else_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = People(settings)
    kinds = ("right", "link", "folder", "fifo", "hard", "large", "none", "place")
    names = {what: f"{settings.group}{number}" for number, what in enumerate(kinds)}
    files = {}
    for what, name in names.items():
        people.add(name)
        files[what] = settings.homes / name / "course" / f"{NAME}.ipynb"
        files[what].parent.mkdir()
    files["right"].write_text("work of the first")
    files["link"].symlink_to(files["right"])
    files["folder"].parent.rmdir()
    files["folder"].parent.symlink_to(ROOT / "notebooks")  # the instructor's edition, which all can read
    os.mkfifo(files["fifo"])
    files["hard"].write_text("mine")
    os.link(files["hard"], settings.homes / names["hard"] / "second")
    files["large"].write_bytes(bytes(4096))
    files["place"].mkdir()
    for name in names.values():
        user = pwd.getpwnam(name)
        for folder, _, inside in os.walk(user.pw_dir):
            for each in (folder, *(f"{folder}/{one}" for one in inside)):
                os.lchown(each, user.pw_uid, user.pw_gid)
    monkeypatch.setattr(collecting, "LARGEST", 1000)
    course = tmp_path / "assignments"
    (course / "source" / NAME).mkdir(parents=True)
    course.chmod(0o700)
    os.chown(course, 4711, 4711)
    said = dict(line.split(": ", 1) for line in collect(settings, "02", course))
    assert said[names["right"]] == "collected"
    wanted = {"link": "is a link", "folder": "belongs to another user", "fifo": "is not a regular file",
              "hard": "has a second name", "large": "has 4,096 bytes, more than 1,000", "none": "No such file",
              "place": "is not a regular file"}  # fmt: skip
    for what, words in wanted.items():
        assert words in said[names[what]], what
        assert str(files[what]) in said[names[what]]
    taken = [path for path in (course / "submitted").rglob("*") if path.is_file()]
    assert taken == [course / "submitted" / names["right"] / NAME / f"{NAME}.ipynb"]
    assert taken[0].read_text() == "work of the first"
    made = [course / "submitted", *(course / "submitted").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700, 0o600}
    assert {path.stat().st_uid for path in made} == {4711}, "who has the folder can grade"


def test_a_folder_that_others_may_enter_is_said_with_the_way_to_close_it(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "source" / NAME).mkdir(parents=True)
    tmp_path.chmod(0o755)
    assert f"chmod 700 {tmp_path}" in next(collect(settings, "02", tmp_path))
    tmp_path.chmod(0o700)
    assert list(collect(settings, "02", tmp_path)) == []


def test_a_chapter_or_a_folder_that_is_not_there_is_said_first(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="Chapter '77' does not exist"):
        list(collect(settings, "77", tmp_path))
    with pytest.raises(HubError, match="has no assignment 02_call_order; `make nbgrader CHAPTERS=02"):
        list(collect(settings, "02", tmp_path))
