"""What a class is shown and given: each question alone, and no answer before it; no solution in any byte."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyterlab_server.config import get_federated_extensions

from hookscope.error_pages import SITE
from hookscope_course.__main__ import main
from hookscope_course.classroom import projector, slides
from hookscope_course.classroom.slide_order import order_slides, split_into_slides
from hookscope_course.learner.copies import list_chapters
from hookscope_course.paths import NOTEBOOKS
from hookscope_course.practice import read_exercises
from lessons.build import lesson_source
from tests.shared.small_disk import mount_small_disk

CHAPTERS = [path for path in list_chapters(NOTEBOOKS) if path.stem[:2] < "90"]

GUESSES = r"^guess = Guess\(____"

each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def built(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return made


def secrets(path: Path) -> list[str]:
    """Lines that only the solutions of a chapter have."""
    texts = read_exercises(lesson_source.LESSONS / path.stem / "exercises.md")
    rest = "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells if not cell.source.startswith("# solution")
    )
    lines = {line.strip() for text in texts if not text.in_lab for line in text.solution.splitlines()}
    return [line for line in lines if len(line) > 8 and line not in rest]


@each_chapter
def test_each_step_is_a_slide_and_a_question_stands_alone(path: Path) -> None:
    made = nbformat.from_dict(order_slides(built(path)))
    nbformat.validate(made)
    assert len({cell.id for cell in made.cells}) == len(made.cells)
    steps = []
    for place, cell in enumerate(made.cells):
        starts = cell.metadata.get("slideshow", {}).get("slide_type") == "slide"
        assert cell.metadata.get("slideshow", {"slide_type": "slide"})["slide_type"] == "slide"
        found = re.findall(r"^\*\*(Predict|Run|See|Why)\.\*\*", cell.source, re.MULTILINE)
        if found:
            assert starts
            assert found == [cell.source[2:].partition(".")[0]], "two steps on one slide"
            steps += found
        if found == ["Predict"]:
            # A question may show a little code first; the next step begins a slide of its own, which is seen above.
            asked = next(at for at, cell in enumerate(made.cells[place:]) if re.search(GUESSES, cell.source))
            assert not any("**Run.**" in cell.source for cell in made.cells[place : place + asked])
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
    asked = [step for step in steps if step in ("Predict", "Why")]
    assert asked == ["Predict", "Why"] * (len(asked) // 2) != []


@each_chapter
def test_every_line_of_the_sections_is_there_once_and_no_exercise(path: Path) -> None:
    source = "\n".join(cell["source"] for cell in order_slides(built(path))["cells"])
    exercises = False
    for cell in nbformat.read(path, as_version=4).cells:
        kinds = set(cell.metadata.get("tags", []))
        for heading in re.findall(r"^## (.+)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else ():
            exercises = heading == "Exercises"
        if cell.cell_type == "code" and not kinds and (not exercises or cell.source.startswith("q1")):
            # A cell that brings the exercises may do more, and the cells below need that.
            assert re.sub(r"^q1, .* = exercises\(\d+\)\n*", "", cell.source) in source
    assert ".check(" not in source
    assert "### Exercise" not in source
    assert not re.search(r"^\*Fast track\*$|\*\*Fast track\.\*\*", source, re.MULTILINE)
    assert not [line for line in secrets(path) if line in source]


@each_chapter
def test_no_cell_needs_what_an_exercise_defines(path: Path) -> None:
    cells = [cell["source"] for cell in order_slides(built(path))["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(line for cell in cells for line in cell.splitlines() if not line.lstrip().startswith(("%", "!")))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--stdin-filename", "x.py", "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@each_chapter
def test_what_a_cell_puts_out_ends_a_slide_and_text_about_it_comes_after(path: Path) -> None:
    for slide in split_into_slides(built(path)["cells"]):
        kinds = [cell["cell_type"] for cell in slide]
        assert kinds == sorted(kinds, reverse=True), "text below a cell that has not been run"
        assert not any(cell.get("outputs") for cell in slide[:-1])


@each_chapter
def test_no_link_leads_to_a_page_that_is_not_in_the_folder_of_a_class(path: Path) -> None:
    text = "\n".join(cell["source"] for cell in order_slides(built(path))["cells"] if cell["cell_type"] == "markdown")
    assert all(re.match(r"\w+:", target) for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"`[^`]*`", "", text)))
    assert not re.search(r"^← |→$|Run it on", text, re.MULTILINE)


def test_words_of_a_link_and_links_to_the_world_stay() -> None:
    source = "← [01](01_x.ipynb) · [03](03_x.ipynb) →\n\nSee [04](04_x.ipynb#a) and [torch](https://pytorch.org)."
    cells = [{"cell_type": "markdown", "metadata": {}, "source": source}]
    assert [cell["source"] for slide in split_into_slides(cells) for cell in slide] == [
        "See 04 and [torch](https://pytorch.org)."
    ]


def test_a_slide_holds_what_fits_on_a_screen() -> None:
    for path in CHAPTERS:
        for slide in split_into_slides(built(path)["cells"]):
            lines = sum(len("".join(cell["source"]).splitlines()) for cell in slide)
            assert lines <= 32, "".join(slide[0]["source"])[:60]


def test_slides_are_whole_without_a_network(tmp_path: Path) -> None:
    page = slides.write_slides("05", tmp_path)
    text = page.read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]{0,200})', text)
    assert loaded
    for name in loaded:
        assert name.startswith("data:") or (tmp_path / name).is_file(), name
    sections = re.findall(r"<section[^>]*>(.*?)</section>", text, re.DOTALL)
    numbers = re.findall(r'<section data-number="(\d+) / (\d+)">', text)
    slides_in_class = len([*split_into_slides(built(CHAPTERS[5])["cells"])])
    assert [*dict.fromkeys(int(number) for number, _ in numbers)] == [*range(1, slides_in_class + 1)]
    assert {int(total) for _, total in numbers} == {slides_in_class}
    assert len(numbers) == len(sections)
    predict = next(at for at, section in enumerate(sections) if "<strong>Predict.</strong>" in section)
    assert "The answer:" not in "".join(sections[: predict + 1])
    assert any("The answer:" in section for section in sections[predict + 1 : predict + 12])
    pictures = re.findall(r"<img [^>]*>", text)
    assert len(pictures) > 5
    assert all(re.search(r'alt="[^"]{10,}', picture) for picture in pictures)
    shown = nbformat.read(CHAPTERS[5], as_version=4)
    widgets = [c for c in shown.cells for o in c.get("outputs", []) if "widget-view" in " ".join(o.get("data", {}))]
    assert widgets, "else this shows nothing about widgets"
    assert "widget-view" not in text
    assert "The answer:" in text
    assert "No guess" not in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_small_disk(tmp_path / "disk", "64k") as disk:
        yield disk


@pytest.mark.parametrize("name", ["monday", "monday.zip"])
def test_a_hand_out_holds_the_learners_edition_and_no_solution(tmp_path: Path, name: str, capsys: Any) -> None:
    to = tmp_path / "new" / name
    assert main(["handout", "02", "4", "--to", str(to)]) == 0
    assert "2 chapters, without solutions" in capsys.readouterr().out
    if to.suffix:
        with zipfile.ZipFile(to) as packed:
            pages = {Path(one).name: packed.read(one) for one in packed.namelist()}
    else:
        pages = {one.name: one.read_bytes() for one in to.iterdir()}
    assert sorted(pages) == ["02_call_order.ipynb", "04_pre_hooks.ipynb", "README.md"]
    first = pages["README.md"].decode()
    assert "- `02_call_order.ipynb`: 02 · Call order\n" in first
    assert f"{SITE}/install.html" in first
    for path in (CHAPTERS[2], CHAPTERS[4]):
        found = secrets(path)
        assert found
        for line in found:
            assert json.dumps(line, ensure_ascii=False)[1:-1].encode() not in pages[path.name]


def test_a_hand_out_is_never_laid_over_another(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "monday").mkdir()
    assert main(["handout", "02", "--to", str(tmp_path / "monday")]) == 1
    assert "monday already exists. Choose another name" in capsys.readouterr().err
    assert not list((tmp_path / "monday").iterdir())


def test_a_hand_out_is_a_folder_or_a_zip(tmp_path: Path, capsys: Any) -> None:
    assert main(["handout", "02", "--to", str(tmp_path / "monday.txt")]) == 1
    assert "monday.txt must end in .zip, or be a new folder. Type --to monday.zip" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_half_a_hand_out(small_disk: Path, capsys: Any) -> None:
    assert main(["handout", "02", "03", "04", "05", "11", "--to", str(small_disk / "monday")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("command", [["handout", "42", "--to", "x"], ["slides", "42"], ["class", "42"]])
def test_no_such_chapter(command: list[str], capsys: Any) -> None:
    assert main(command) == 1
    assert "there is no chapter '42'. The chapters are 00, 01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"), [("rest", "'rest'; did you mean 'reset'?"), ("zzz", "'zzz'. The commands are lab, course")]
)
def test_no_such_command(typed: str, said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([typed, "03"])
    assert f"there is no command {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["slides"], "name the chapters, as in: hookscope slides 02 04"),
        (["handout", "--to", "x.zip"], "name the chapters, as in: make handout CHAPTERS='02 04' DEST=FILE.zip"),
        (["lab", "42"], "there is no chapter '42'"),
        (["reset", "03", "--to", "nowhere"], "If your copy is in another folder, name it: --to FOLDER"),
        (["lab", "--prot=8910"], "JupyterLab has no option --prot; did you mean --port?"),
        (["class", "02", "--no-browsr"], "JupyterLab has no option --no-browsr; did you mean --no-browser?"),
        (["course", "--to", "."], "has other files in it. Choose an empty folder or a new one with --to FOLDER"),
    ],
)
def test_a_command_says_how_it_is_meant_before_it_writes_anything(
    command: list[str], said: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(command) == 1
    assert said in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [tmp_path / "thesis.tex"]


def test_lab_opens_a_chapter_and_passes_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr("hookscope_course.__main__.become_lab", lambda *arguments: started.append(arguments))
    to = tmp_path / "course"
    assert main(["lab", "3", "--to", str(to), "--port", "8910"]) == 0
    assert main(["lab", "--to", str(to)]) == 0
    assert started == [(to, "/lab/tree/03_forward_hooks.ipynb", "--port", "8910"), (to, "/lab/tree/index.ipynb")]


def test_a_teachers_own_settings_are_left_alone(tmp_path: Path) -> None:
    made = projector.write_settings(tmp_path)
    names = {f"{file.parent.relative_to(made)}:{file.stem}" for file in made.rglob("*.jupyterlab-settings")}
    assert names == set(projector.SETTINGS)


def test_the_extension_with_the_keys_is_where_jupyterlab_looks_for_it() -> None:
    (found,) = get_federated_extensions([str(projector.KEYS)]).values()
    assert (Path(found["ext_path"]) / found["jupyterlab"]["_build"]["load"]).is_file()
