"""Which exercises are done: kept in the copy, shown, and never a reason for a check to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hookscope_course.__main__ import main
from hookscope_course.learner import progress
from hookscope_course.learner.copies import STATE_FOLDER, Copy
from hookscope_course.learner.progress import Progress, read_solved, record_solved
from hookscope_course.paths import NOTEBOOKS
from tests.shared import PATIENCE
from tests.shared.exercises import NO_RETURN, RIGHT, make_sample, run_cell


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "course"
    Copy(folder).update()
    return folder


@pytest.fixture
def copy(made: Path) -> Path:
    (made / STATE_FOLDER / "progress.json").unlink(missing_ok=True)
    return made


def test_a_right_answer_is_kept_once_and_a_wrong_one_is_not(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "NOTEBOOK_FOLDER", copy)
    for code, done in ((NO_RETURN, []), (RIGHT, ["09.1"]), (NO_RETURN, ["09.1"])):
        run_cell(code, {"__name__": "__main__", "q9": make_sample()})
        assert list(read_solved(copy)) == done
    when = read_solved(copy)["09.1"]
    (copy / STATE_FOLDER / "progress.json").write_text(json.dumps({"09.1": "long ago"}))
    run_cell(RIGHT, {"__name__": "__main__", "q9": make_sample()})
    assert read_solved(copy) == {"09.1": "long ago"} != {"09.1": when}


def test_what_is_done_and_what_is_next(copy: Path) -> None:
    shown = Progress(copy)
    total = sum(len(page.exercises) for page in shown.pages)
    assert total > 40
    assert repr(shown).startswith(f"0 of {total} exercises solved. Next: 00 · Start here.\n○○")
    for number in shown.pages[0].exercises:
        record_solved(number, copy)
    record_solved(shown.pages[2].exercises[1], copy)
    record_solved("99.9", copy)  # of an older course
    shown = Progress(copy)
    assert shown.heading == f"3 of {total} exercises solved. Next: {shown.pages[2].title}.", (
        "the last begun, not the first"
    )
    for number in shown.pages[2].exercises:
        record_solved(number, copy)
    assert Progress(copy).next == shown.pages[3].title
    page = shown._repr_html_()
    assert '<a href="00_start_here.ipynb">00 · Start here</a></th><td style="text-align: right">' in page
    assert ">2 of 2</td>" in page
    for number in shown.pages[-1].exercises:
        record_solved(number, copy)
    assert Progress(copy).next == shown.pages[1].title, "behind the last one, it begins again"
    for page in shown.pages:
        for number in page.exercises:
            record_solved(number, copy)
    assert Progress(copy).heading == f"{total} of {total} exercises solved. You have solved all of them."


def test_it_has_links_minutes_and_says_what_its_signs_mean(copy: Path) -> None:
    shown = Progress(copy)
    page = shown._repr_html_()
    assert page.count("<a href=") == len(shown.pages)
    for link in re.findall(r'<a href="(.+?)">', page):
        assert (copy / link).exists()
    for each, line in zip(shown.pages, repr(shown).splitlines()[1:], strict=False):
        head = json.loads((copy / each.file).read_text())["cells"][0]["source"]
        reading, exercises = map(int, re.findall(r"\*\*(\d+) minutes\*\*", "".join(head)))
        assert each.minutes == reading + exercises
        assert re.fullmatch(rf"○+ +{each.minutes} minutes  {re.escape(each.title)}", line)
        assert f'</a></th><td style="text-align: right">{each.minutes}</td>' in page
    legend = "● is an exercise that you have solved, ○ one that you have not. If you reset a chapter, it keeps its ●."
    assert repr(shown).splitlines()[-1] == legend
    assert page.endswith(f"</table><p>{legend}</p></details>")


def test_the_command_prints_the_same_and_a_chapter_that_was_reset_keeps_its_signs(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in Progress(copy).pages[0].exercises:
        record_solved(number, copy)
    Copy(copy).reset("00")
    assert main(["progress", "--to", str(copy)]) == 0
    said = capsys.readouterr().out
    assert said == f"{Progress(copy)!r}\n"
    assert "●●" in said.splitlines()[1]


def test_elsewhere_nothing_is_kept(tmp_path: Path) -> None:
    assert record_solved("02.1", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert repr(Progress(tmp_path)) == (
        "This is not your copy of the course, so no progress is saved here. `make lab` opens your copy."
    )
    assert not list(NOTEBOOKS.glob(f"{STATE_FOLDER}*"))


@pytest.mark.parametrize("spoiled", ["", "[]", "{", "\0", "[" * 100_000])
def test_a_spoiled_file_is_begun_again(copy: Path, spoiled: str) -> None:
    (copy / STATE_FOLDER / "progress.json").write_text(spoiled)
    assert read_solved(copy) == {}
    record_solved("02.1", copy)
    assert list(read_solved(copy)) == ["02.1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_no_fifo_is_waited_for(copy: Path) -> None:
    (copy / STATE_FOLDER / "progress.json").unlink(missing_ok=True)
    os.mkfifo(copy / STATE_FOLDER / "progress.json")
    assert read_solved(copy) == {}


def test_what_cannot_be_kept_is_said_below_the_right_answer(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "NOTEBOOK_FOLDER", copy)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress, "replace_text", full)
    feedback = run_cell(RIGHT, {"__name__": "__main__", "q9": make_sample()})
    assert feedback.outcome == "right"
    assert feedback.message.endswith("Your progress could not be saved: No space left on device.")


def test_several_kernels_lose_nothing(copy: Path) -> None:
    numbers = [f"{chapter:02}.1" for chapter in range(4)]
    code = "import sys; from pathlib import Path; from hookscope_course.learner.progress import record_solved; "
    code += "record_solved(sys.argv[1], Path(sys.argv[2]))"
    at_work = [subprocess.Popen([sys.executable, "-c", code, number, copy]) for number in numbers]
    for process in at_work:
        assert process.wait(PATIENCE) == 0
    assert sorted(read_solved(copy)) == numbers


def test_it_counts_the_kernels_of_the_server_that_shows_this_copy(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/base/api/kernels?token=a%26b"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([{"id": "1"}, {"id": "2"}, {"id": "3"}]).encode())

        def log_message(self, *_: object) -> None:
            pass

    runtime = copy / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
    (runtime / "jpserver-1.json").write_text('{"root_dir": "/elsewhere"}')
    (runtime / "jpserver-2.json").write_text("spoiled")
    assert "kernels" not in Progress(copy).heading
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.handle_request, daemon=True).start()
        known = {"root_dir": str(copy), "port": server.server_port, "base_url": "/base/", "token": "a&b"}
        (runtime / "jpserver-3.json").write_text(json.dumps(known))
        assert "3 kernels are running" in Progress(copy).heading
