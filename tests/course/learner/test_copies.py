"""A learner's copy never loses work: updates, changes, kills at every step, a full disk, several at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookscope_course.__main__ import main
from hookscope_course.learner import copies
from hookscope_course.learner.copies import Copy, CopyError
from hookscope_course.learner.progress import record_solved
from hookscope_course.paths import NOTEBOOKS
from tests.shared import PATIENCE, ROOT
from tests.shared.small_disk import mount_small_disk


def page(words: str) -> str:
    """A built notebook of one cell, with a result."""
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": [words], "outputs": [{"text": "42"}]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of a course of two pages, not made yet."""
    source = tmp_path / "notebooks"
    source.mkdir()
    for name in ("00_start", "01_next"):
        (source / f"{name}.ipynb").write_text(page("one"))
    return Copy(tmp_path / "un été" / "course", source)


def files(copy: Copy) -> dict[str, str]:
    """What a learner sees in the folder."""
    names = [*copy.folder.glob("*.ipynb"), *copy.folder.glob("earlier/*")]
    return {path.name: path.read_text() for path in sorted(names)}


def words(copy: Copy) -> dict[str, str]:
    """What stands in each notebook."""
    return {name: said(text) for name, text in files(copy).items()}


def said(text: str) -> str:
    try:
        return "".join(json.loads(text)["cells"][0]["source"])
    except (ValueError, KeyError):
        return text


def test_made_once_then_there_is_nothing_to_do(copy: Copy) -> None:
    assert copy.update() == ["Your copy of the course is ready: 2 notebooks."]
    assert words(copy) == {"00_start.ipynb": "one", "01_next.ipynb": "one"}
    assert "42" not in files(copy)["00_start.ipynb"]
    before = {path: path.stat().st_mtime_ns for path in copy.folder.glob("*.ipynb")}
    assert copy.update() == []
    assert before == {path: path.stat().st_mtime_ns for path in copy.folder.glob("*.ipynb")}


def test_what_is_untouched_follows_and_what_was_changed_stays(copy: Copy) -> None:
    copy.update()
    mine = copy.folder / "01_next.ipynb"
    mine.write_text("my work")
    assert copy.update() == [], "the course is as it was"
    for path in copy.source.iterdir():
        path.write_text(page("two"))
    assert copy.update() == [
        "00_start.ipynb has been updated.",
        "01_next.ipynb has your work in it, so it was not changed; the new version is 01_next-new.ipynb.",
    ]
    after = {"00_start.ipynb": "two", "01_next-new.ipynb": "two", "01_next.ipynb": "my work"}
    assert words(copy) == after
    assert copy.update() == [], "said once"
    assert words(copy) == after

    # Another version takes the place of the new one, unless that has been changed, too.
    (copy.source / "01_next.ipynb").write_text(page("three"))
    assert "01_next-new.ipynb." in copy.update()[0]
    assert words(copy)["01_next-new.ipynb"] == "three"
    (copy.folder / "01_next-new.ipynb").write_text("more work")
    (copy.source / "01_next.ipynb").write_text(page("four"))
    assert "01_next-new-2.ipynb." in copy.update()[0]
    assert {"more work", "my work", "four"} < set(words(copy).values())


def test_a_chapter_that_is_gone_or_new_is_laid_down(copy: Copy) -> None:
    copy.update()
    (copy.folder / "00_start.ipynb").unlink()
    (copy.source / "02_more.ipynb").write_text(page("one"))
    assert copy.update() == ["00_start.ipynb was missing, and has been restored.", "02_more.ipynb is new."]
    assert len(files(copy)) == 3


@pytest.mark.parametrize("work", ["", "my work"])
def test_a_chapter_that_moved_keeps_its_work_and_its_number_goes_to_another(copy: Copy, work: str) -> None:
    (copy.source / "10_versions.ipynb").write_text(page("old"))
    copy.update()
    (copy.state_folder / "progress.json").write_text('{"10.1": "then", "11.1": "then"}')
    (copy.state_folder / "guesses.json").write_text('{"10.1": "first"}')
    old = copy.folder / "10_versions.ipynb"
    if work:
        old.write_text(work)
    (copy.source / "10_versions.ipynb").unlink()
    for name in ("10_where_does_it_look", "94_time_machine"):
        (copy.source / f"{name}.ipynb").write_text(page("new"))
    lines = copy.update()
    assert lines[:2] == ["10_where_does_it_look.ipynb is new.", "94_time_machine.ipynb is new."]
    if work:
        assert "so it was not changed; in the course, 94_time_machine.ipynb replaces it" in lines[2]
        assert old.read_text() == work
    else:
        assert lines[2] == "10_versions.ipynb is now 94_time_machine.ipynb; it had none of your work in it."
        assert not old.exists()
    assert json.loads((copy.state_folder / "progress.json").read_text()) == {"10_versions.1": "then", "11.1": "then"}
    assert json.loads((copy.state_folder / "guesses.json").read_text()) == {"10_versions.1": "first"}
    record_solved("10.2", copy.folder)
    assert copy.update() == [], "said once"
    assert "10.2" in json.loads((copy.state_folder / "progress.json").read_text())


@pytest.mark.parametrize("spoiled", ["", "{}", '{"laid": []}', "no JSON \0"])
def test_without_its_notes_everything_that_differs_is_taken_for_work(copy: Copy, spoiled: str) -> None:
    copy.update()
    (copy.folder / "01_next.ipynb").write_text("my work")
    (copy.state_folder / "copy.json").write_text(spoiled)
    copy.update()
    assert words(copy) == {"00_start.ipynb": "one", "01_next-new.ipynb": "one", "01_next.ipynb": "my work"}


def test_begun_again_with_a_dated_copy_of_what_was_there(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.update()
    assert copy.reset("01") == "01_next.ipynb has been reset; it had none of your work in it."
    for work in ("my work", "more work"):
        (copy.folder / "01_next.ipynb").write_text(work)
        said = copy.reset("1")
        assert said.startswith("01_next.ipynb has been reset. Your work is in earlier/01_next, 20")
        assert "File → Reload Notebook from Disk" in said
    found = words(copy)
    assert found.pop("01_next.ipynb") == found.pop("00_start.ipynb") == "one"
    assert sorted(found.values()) == ["more work", "my work"], "two in one minute are two files"
    with pytest.raises(CopyError, match=r"there is no chapter '7'\. The chapters are 00, 01"):
        copy.reset("7")


STEPS = "read_bytes", "write_bytes", "write_text", "replace", "unlink", "link"


def killed_at(copy: Copy, step: int, then: str) -> bool:
    """Let a process do something to the copy, and die before its n-th step on files; whether it got that far."""
    code = f"""
import os, pathlib
from hookscope_course.learner.copies import Copy
left = {step}
def dying(first):
    def call(*args, **kw):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return first(*args, **kw)
    return call
for name in {STEPS[:-1]}:
    setattr(pathlib.Path, name, dying(getattr(pathlib.Path, name)))
os.link = dying(os.link)
copy = Copy(pathlib.Path({str(copy.folder)!r}), pathlib.Path({str(copy.source)!r}))
copy.{then}
"""
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 9


@pytest.mark.parametrize("then", ["update()", "reset('1')"])
def test_killed_at_any_step_nothing_is_lost_and_the_next_run_ends_as_if_nothing_had_been(copy: Copy, then: str) -> None:
    """An updated course, a chapter that is untouched, and one with work in it: dead before each step in turn."""
    original = copy.folder.with_name("original")
    copy.update()
    (copy.folder / "01_next.ipynb").write_text("my work")
    for path in copy.source.iterdir():
        path.write_text(page("two"))
    shutil.copytree(copy.folder, original)
    step = 0
    while killed_at(copy, step, then):
        assert "my work" in [path.read_text() for path in copy.folder.rglob("*") if path.is_file()], step
        copy.update()
        found = words(copy)
        assert found["00_start.ipynb"] == "two", step
        assert "my work" in found.values(), step
        assert set(found.values()) == {"my work", "two"}, step
        assert sorted(path.name for path in copy.state_folder.iterdir() if path.name.endswith(".old")) == [], step
        shutil.rmtree(copy.folder)
        shutil.copytree(original, copy.folder)
        step += 1
    assert step >= 10, "it was never killed late"


def test_what_is_saved_at_the_very_moment_of_an_update_stays(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab saves after the file was looked at, and before it is replaced."""
    copy.update()
    (copy.source / "00_start.ipynb").write_text(page("two"))
    look, there = copies.hash_content, copy.folder / "00_start.ipynb"
    looks = 0

    def saved_after_the_last_look(content: bytes) -> str:
        nonlocal looks
        looks += b'"one"' in content
        if looks == 2:
            there.write_text("saved just now")
        return look(content)

    monkeypatch.setattr(copies, "hash_content", saved_after_the_last_look)
    copy.update()
    monkeypatch.undo()
    assert looks >= 2
    assert "saved just now" in words(copy).values()
    copy.update()
    assert "saved just now" in words(copy).values()


def _update(folder: Path, source: Path, said: Any) -> None:
    said.put(Copy(folder, source).update())


def test_several_at_once_do_it_once(copy: Copy) -> None:
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    at_work = [context.Process(target=_update, args=(copy.folder, copy.source, said)) for _ in range(3)]
    for process in at_work:
        process.start()
    lines = [said.get(timeout=PATIENCE) for _ in at_work]
    assert sorted(map(len, lines)) == [0, 0, 1]
    assert words(copy) == {"00_start.ipynb": "one", "01_next.ipynb": "one"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB."""
    with mount_small_disk(tmp_path / "disk", "64k") as disk:
        yield disk


def test_a_full_disk_loses_nothing_and_is_said(
    copy: Copy, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Copy(small_disk / "course", copy.source)
    full.update()
    (full.folder / "01_next.ipynb").write_text("my work")
    (small_disk / "filler").write_bytes(bytes(36_000))
    for path in copy.source.iterdir():
        path.write_text(page("two " * 9000))
    for _ in range(2):
        with pytest.raises(CopyError, match=r"No space left on device: .* Your work was not changed"):
            full.update()
        assert words(full) == {"00_start.ipynb": "one", "01_next.ipynb": "my work"}
    (small_disk / "filler").unlink()
    for path in copy.source.iterdir():
        path.write_text(page("three"))
    full.update()
    assert words(full) == {"00_start.ipynb": "three", "01_next-new.ipynb": "three", "01_next.ipynb": "my work"}


def test_a_folder_that_cannot_be_written_is_a_sentence(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    copy.folder.parent.mkdir(parents=True)
    copy.folder.write_text("a file")
    assert main(["course", "--to", str(copy.folder)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Not a directory: ")
    assert "Traceback" not in said


def test_links_are_not_needed(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a stick: whatever a learner has stays there, too."""

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    copy.update()
    (copy.folder / "01_next.ipynb").write_text("my work")
    for path in copy.source.iterdir():
        path.write_text(page("two"))
    copy.update()
    copy.reset("01")
    assert sorted(words(copy).values()) == ["my work", "two", "two", "two"]


def test_the_command_makes_the_real_course_without_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from hookscope_course.__main__ import main
assert main(["course", "--to", {str(tmp_path / "course")!r}]) == 0
assert main(["progress", "--to", {str(tmp_path / "course")!r}]) == 0
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, where, second, *_, last = done.stdout.splitlines()
    assert first == f"Your copy of the course is ready: {len(copies.list_chapters(NOTEBOOKS))} notebooks."
    assert str(tmp_path / "course") in where
    assert second.startswith("0 of ")
    assert last == "False", "it would take seconds"


def test_make_lab_makes_the_copy_and_opens_it() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    for words in (["lab"], ["lab", "COURSE=/tmp/my course"]):
        done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        folder = words[1].removeprefix("COURSE=") if words[1:] else "course"
        assert f'-m hookscope_course lab --to "{folder}"' in done


# -- what others have put there ---------------------------------------------------------------------------------------

posix = pytest.mark.skipif(os.name == "nt", reason="links and FIFOs as Unix has them")


@posix
def test_links_that_somebody_has_planted_are_not_written_through(copy: Copy, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of somebody else")
    copy.state_folder.mkdir(parents=True)
    for planted in ("00_start.ipynb.new", "00_start.ipynb.checked", f"copy.json.{os.getpid()}.new"):
        (copy.state_folder / planted).symlink_to(victim)
    copy.update()
    (copy.folder / "00_start.ipynb").write_text("mine")
    (copy.state_folder / "00_start.ipynb.new").symlink_to(victim)
    copy.reset("00")
    assert victim.read_text() == "of somebody else"
    assert victim.stat().st_nlink == 1
    assert words(copy)["00_start.ipynb"] == "one"


@posix
@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_a_chapter_that_is_no_file_is_named_and_stays(copy: Copy, tmp_path: Path, what: str) -> None:
    victim, there = tmp_path / "victim", copy.folder / "00_start.ipynb"
    victim.write_text("of somebody else")
    copy.folder.mkdir(parents=True)
    {"link": lambda: there.symlink_to(victim), "fifo": lambda: os.mkfifo(there), "folder": there.mkdir}[what]()
    assert "00_start.ipynb is a link or not a file, so it was not changed" in "\n".join(copy.update())
    assert said((copy.folder / "01_next.ipynb").read_text()) == "one"
    with pytest.raises(CopyError, match=r"is a link or not a file\. Move it away"):
        copy.reset("00")
    assert victim.read_text() == "of somebody else"


@posix
def test_a_folder_for_what_is_known_that_is_a_link_is_refused(copy: Copy, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy.folder.mkdir(parents=True)
    copy.state_folder.symlink_to(elsewhere)
    with pytest.raises(CopyError, match="is a link"):
        copy.update()
    assert not list(elsewhere.iterdir())


NONSENSE = {
    "a list": "[]", "a number": "3", "other types": '{"laid": [], "latest": 3}', "deep": "[" * 100_000,
    "a number for a list": '{"laid": {"a": 3}, "latest": {}}', "no JSON": "\x00",
    "a list for a text": '{"laid": {"a": [3]}, "latest": {"a": []}}',
}  # fmt: skip


@pytest.mark.parametrize("what", NONSENSE)
def test_what_is_known_may_be_nonsense_and_nothing_is_lost(copy: Copy, what: str) -> None:
    copy.update()
    (copy.folder / "00_start.ipynb").write_text("mine")
    (copy.state_folder / "copy.json").write_text(NONSENSE[what])
    copy.update()
    assert words(copy)["00_start.ipynb"] == "mine"
    assert words(copy)["01_next.ipynb"] == "one"
