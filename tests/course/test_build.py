"""The builder: what it refuses, what it runs again, and that it makes the same bytes twice."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from hookscope.pictures.map_drawing import encode_rgb
from hookscope.pictures.picture import Picture
from lessons.build import __main__ as build
from lessons.build import chapter_notebook, execution, index_page, lesson_source
from tests.shared import PATIENCE
from tests.shared.exercises import SAMPLE, TEXT

HEADER = """---
title: A small chapter
promise: You will see that it builds.
finds_out: whether it builds
builds_on: []
documents: [D0]
---
"""
BODY = """
## A section

```{code-cell}
import io, ipywidgets, warnings
from IPython.display import Image as Show
from PIL import Image
print(2 * 3)
print(4)
```

Some words.

```{code-cell}
file = io.BytesIO()
Image.new("RGB", (8, 8), "white").save(file, "png")
Show(file.getvalue())
```

```{code-cell}
ipywidgets.IntSlider(description="k")
```

```{code-cell}
print(2 * 3)
```

```{code-cell}
print(2 * 3)
```
"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty course with a claim."""
    lessons = tmp_path / "lessons"
    (tmp_path / "notebooks").mkdir()
    (lessons / "90_claims").mkdir(parents=True)
    monkeypatch.setattr(lesson_source, "ROOT", tmp_path)
    monkeypatch.setattr(lesson_source, "LESSONS", lessons)
    monkeypatch.setattr(lesson_source, "NOTEBOOKS", tmp_path / "notebooks")
    lesson_source.claims.cache_clear()
    (lessons / "90_claims" / "claims.toml").write_text(
        '[[document]]\nid = "D0"\ntitle = "a page"\n\n'
        '[[claim]]\nid = "D0.2"\ndocument = "D0"\ntext = "Hooks need a call."\nverdict = "outdated"\nsince = "1.2"\n'
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "course.md").write_text("Mine.\n")
    yield tmp_path
    lesson_source.claims.cache_clear()


def lesson(course: Path, text: str, name: str = "00_small") -> Path:
    path = course / "lessons" / name / "lesson.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def run(*arguments: str) -> int:
    return build.main(list(arguments))


def saved(course: Path, name: str = "00_small.ipynb") -> dict:
    return json.loads((course / "notebooks" / name).read_text())


def test_two_builds_are_equal_byte_for_byte_and_the_second_runs_nothing(course: Path, capsys) -> None:
    lesson(course, HEADER + BODY)
    target = course / "notebooks" / "00_small.ipynb"
    assert run() == 0
    first = target.read_bytes()
    stamp = target.stat().st_mtime_ns
    assert "1 built" in capsys.readouterr().out

    assert run() == 0
    assert target.stat().st_mtime_ns == stamp
    assert "0 built, 1 already up to date" in capsys.readouterr().out

    assert run("--all") == 0
    assert target.stat().st_mtime_ns != stamp
    assert target.read_bytes() == first

    notebook = saved(course)
    assert [c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code"] == [1, 2, 3, 4, 5]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert "widgets" not in notebook["metadata"]
    assert set(notebook["metadata"]["language_info"]) == {"name", "pygments_lexer"}
    assert "widget-1" in json.dumps(notebook)
    assert str(course) not in target.read_text()


@pytest.mark.parametrize("weights", ["photo", "sentence"])
def test_without_the_weights_of_a_real_network_no_page_is_built(
    course: Path, capsys, monkeypatch, weights: str
) -> None:
    lesson(course, HEADER + BODY)
    monkeypatch.setattr(f"lessons.build.__main__.has_{weights}_weights", lambda: False)
    assert run() == 2
    assert "weights of the photo network or of the sentence encoder are missing" in capsys.readouterr().err
    assert not list(course.rglob("*.ipynb"))


def test_only_what_changed_is_built_again(course: Path, capsys, monkeypatch) -> None:
    lesson(course, HEADER + "One.\n")
    lesson(course, HEADER + "Two.\n", "01_other")
    assert run() == 0
    assert "2 built" in capsys.readouterr().out
    lesson(course, HEADER + "Three.\n", "01_other")
    assert run("--check") == 1
    said = capsys.readouterr().out
    assert "01_other.ipynb differs from its lesson at cell 2" in said
    assert "00_small" not in said
    assert run() == 0
    assert "1 built, 1 already up to date" in capsys.readouterr().out

    monkeypatch.setattr(chapter_notebook, "folder_fingerprint", lambda folder: b"the package changed")
    assert run("--check") == 1
    assert "the package or its checks have changed" in capsys.readouterr().out


def test_a_picture_is_stored_once_as_an_output_of_its_own() -> None:
    shown = Picture(encode_rgb(np.zeros((2, 2, 3), dtype=np.uint8)), "A black square.")._repr_mimebundle_()
    alone = base64.encodebytes(shown["image/png"]).decode()  # as IPython saves it, with line ends
    outputs = [new_output("display_data", shown | {"image/png": alone})]
    outputs += [new_output("display_data", {"image/png": alone, "text/html": html}) for html in ("<p>Words.</p>", "")]
    notebook = new_notebook(cells=[new_code_cell("", outputs=outputs)])
    execution.store_pictures_small(notebook)
    image, page, with_words, without = (output.data for output in notebook.cells[0].outputs)
    assert set(image) == {"image/png"}
    assert notebook.cells[0].outputs[0].metadata["image/png"]["alt"] == "A black square."
    assert set(page) == {"text/plain", "text/html"}
    assert "<img" not in page["text/html"]
    assert with_words["image/png"] == without["image/png"] == image["image/png"]


def test_an_exercise_becomes_its_question_starter_hint_and_folded_solution(course: Path) -> None:
    lesson(course, HEADER + "\n## Exercises\n\n+++\n\nTry.\n\n{{exercise q9}}\n\nWell done.\n")
    text, path = course / "lessons" / "00_small" / "exercises.md", course / "lessons" / "00_small" / "lesson.md"
    text.write_text(SAMPLE)
    notebook = chapter_notebook.parse(path).notebook
    cells = notebook.cells
    words, question, starter, hint, solution, last = cells[-6:]
    assert (words.source, last.source) == ("Try.", "Well done.")
    assert question.cell_type == "markdown"
    assert question.source == f"### Exercise 00.1 · easy · 3 minutes\n\n{TEXT.question}"
    assert (starter.source, hint.source) == (TEXT.starter.strip(), "# q9.hint()")
    assert solution.source == f"# solution\n{TEXT.solution.strip()}"
    assert solution.metadata["jupyter"] == {"outputs_hidden": True, "source_hidden": True}
    tags = [cell.metadata["tags"] for cell in (question, starter, hint, solution)]
    assert tags == [["question"], ["exercise"], ["hint"], ["solution"]], "how a learner's copy tells them apart"
    text.write_text(SAMPLE.replace(TEXT.why.strip(), "Because."))
    assert chapter_notebook.parse(path).notebook.cells == cells, "no cell says why"
    assert chapter_notebook.parse(path).notebook.metadata != notebook.metadata, "and still a right answer shows it"


def test_a_cell_that_holds_for_some_releases_says_so(course: Path) -> None:
    one = "\n```{{code-cell}}\n:holds_for: torch{}\n\nprint(1)\n```\n"
    told = one.format(">=2.14\n:before: prints 2")
    lesson(course, HEADER + one.format(">=2.15") + one.format("==2.15.0") + "\n{{exercise q9}}\n" + told)
    text = SAMPLE.replace("3 minutes", "3 minutes · torch>=2.9")
    (course / "lessons" / "00_small" / "exercises.md").write_text(text)
    *cells, last, words = chapter_notebook.parse(course / "lessons" / "00_small" / "lesson.md").notebook.cells[2:]
    assert (last.metadata, words.source) == ({"holds_for": "torch>=2.14"}, "*Before torch 2.14, this cell prints 2.*")
    cells = cells[:6]
    assert [cell.metadata.get("holds_for") for cell in cells] == [
        "torch>=2.15",
        None,
        "torch==2.15.0",
        None,
        "torch>=2.9",
        None,
    ]
    assert cells[-1].source == "# q9.hint()"
    assert cells[1].source == "*Before torch 2.15, this cell shows something else.*"


def test_a_bug_of_a_lab_becomes_its_question_and_a_cell_one_level_deeper(course: Path) -> None:
    lesson(course, HEADER + "\n### Lab\n\n{{exercise q9}}\n")
    bug = f"### Lab bug\n\n```python\n{TEXT.wrong[0][0]}```\n\n> arrived\n\n### Hints"
    text = re.sub(r"### Starter.*?### Hints", lambda _: bug, SAMPLE, flags=re.DOTALL)
    (course / "lessons" / "00_small" / "exercises.md").write_text(text)
    cells = chapter_notebook.parse(course / "lessons" / "00_small" / "lesson.md").notebook.cells
    assert [cell.source for cell in cells[-2:]] == [
        f"#### Exercise 00.1 · easy · 3 minutes\n\n{TEXT.question}",
        TEXT.wrong[0][0].strip(),
    ]


def test_a_changed_check_or_data_file_builds_its_chapter_again_and_no_other(course: Path, capsys) -> None:
    lesson(course, HEADER + "One.\n")
    lesson(course, HEADER + "Two.\n", "01_other")
    assert run() == 0
    for name in ("checks_00.py", "rows.toml"):
        (course / "lessons" / "00_small" / name).write_text("# a new rule for a wrong answer\n")
        capsys.readouterr()
        assert run("--check") == 1
        said = capsys.readouterr().out
        assert "00_small" in said
        assert "01_other" not in said
        (course / "lessons" / "00_small" / name).unlink()
        assert run("--check") == 0


def test_a_chapter_follows_the_rooms_of_the_course_that_it_reads(course: Path, monkeypatch, capsys) -> None:
    reads = HEADER.replace("---\n", "---\nreads: [records]\n", 1)
    monkeypatch.setattr(chapter_notebook, "COURSE", course / "runtime")
    (course / "runtime" / "practice").mkdir(parents=True)
    path = lesson(course, reads)
    with pytest.raises(
        lesson_source.LessonError, match=r"lesson.md:1: the header reads 'records', which hookscope_course has"
    ):
        chapter_notebook.parse(path)
    room = course / "runtime" / "records"
    room.mkdir()
    before = chapter_notebook.parse(path).notebook.metadata["hookscope"]
    (room / "records.json").write_text("{}")
    chapter_notebook.folder_fingerprint.cache_clear()
    assert chapter_notebook.parse(path).notebook.metadata["hookscope"] != before


def test_a_page_lists_the_chapters_and_the_pages(course: Path, capsys) -> None:
    """To add a chapter is to add a folder."""
    marks = "{0}\n<!-- chapters, made by make build -->\n<!-- /chapters -->\n<!-- reference, made by make build -->\n"
    listed = course / "docs" / "course.md"
    listed.write_text(marks.format("Mine.") + "<!-- /reference -->\nThe end.\n")
    lesson(course, HEADER)
    page = "---\ntitle: Wants\npromise: You find it.\nfinds_out: what you want\nkind: reference\n---\n"
    lesson(course, page, "91_chooser")
    assert run() == 0
    assert run("--check") == 0
    text = listed.read_text()
    assert "\n| [00](../notebooks/00_small.ipynb) | A small chapter | whether it builds | 0 + 0 |\n" in text
    assert "\n- [Wants](../notebooks/91_chooser.ipynb): what you want\n" in text
    assert text.startswith("Mine.\n")
    assert text.endswith("<!-- /reference -->\nThe end.\n")
    listed.write_text(text.replace("A small chapter", "An old title"))
    capsys.readouterr()
    assert run("--check") == 1
    assert "docs/course.md lists other chapters than there are" in capsys.readouterr().out


def test_claims_and_the_head_of_the_page_come_from_their_one_source(course: Path) -> None:
    lesson(course, HEADER + "Words.\n\n{{claim D0.2}}\n\n+++\n\n{{verdict D0.2}} Because.\n")
    lesson(course, HEADER.replace("builds_on: []", "builds_on: [0]"), "01_other")
    assert run() == 0
    first = "\n".join("".join(cell["source"]) for cell in saved(course)["cells"])
    assert "# 00 · A small chapter" in first
    assert "[01](01_other.ipynb) →" in first
    assert "**D0.2** · *The document says:* Hooks need a call." in first
    assert "**Verdict on D0.2: outdated since torch 1.2.** Because." in first
    assert [cell for cell in saved(course)["cells"] if "".join(cell["source"]) == "Words."], "a claim starts a cell"
    second = "".join(saved(course, "01_other.ipynb")["cells"][1]["source"])
    assert "builds on [00](00_small.ipynb)" in second


def test_a_reference_page_is_no_chapter(course: Path) -> None:
    """It has no number and no neighbours; a chapter goes on to a chapter; its tables come from their data files."""
    lesson(course, HEADER + "\n## 1 · Where it `hooks(x)`\n\n```{code-cell}\nprint(1)\n```\n")
    row = 'want = "See it"\nalso = "look at it"\nhooks = ["torch.Tensor.register_hook"]\nsince = "1.0"\n'
    row += 'group = "watch"\nanswer = "Look."\nlines = "look(x)"\n'
    row += "chapter = 0\nsection = 1\n"
    page = "---\ntitle: Wants\npromise: You find it.\nfinds_out: it\nkind: reference\n---\n"
    lesson(course, page + "{{chooser}}\n\n+++\n\nDone.\n", "91_chooser")
    rows = f"[[want]]\n{row}snippet = \"print('seen')\"\nprints = 'seen'\n"
    (course / "lessons" / "91_chooser" / "chooser.toml").write_text(rows)
    lesson(course, page.replace("Wants", "Words"), "92_glossary")
    assert run() == 0
    assert "91" not in "".join(saved(course)["cells"][1]["source"])
    _, head, group, text, code, last = ("".join(cell["source"]) for cell in saved(course, "91_chooser.ipynb")["cells"])
    ways = "Reference · [A small chapter](00_small.ipynb) · [Words](92_glossary.ipynb)"
    assert head == f"# Wants\n\nYou find it.\n\n{ways}"
    assert group == "## See what layers compute"
    section = next(cell for cell in saved(course)["cells"] if "".join(cell["source"]).startswith("## 1 · Where"))
    where = f"00_small.ipynb#cell-id={section['id']}"
    assert (
        text == "### See it\n\nLook.\n\n```python\nlook(x)\n```\n\n"
        f"`torch.Tensor.register_hook` · since torch 1.0 · taught in chapter [00, section 1]({where})\n\n"
        "Also asked as: look at it."
    )
    assert (code, last) == ("# The proof\nprint('seen')", "Done.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# no header\n", "lessons/00_small/lesson.md:1: no header"),
        ("---\ntitle: x\n", "lessons/00_small/lesson.md:1: the header's closing '---' is missing"),
        (HEADER.replace("builds_on: []\n", ""), "lessons/00_small/lesson.md:6: the header lacks 'builds_on'"),
        (HEADER.replace("builds_on: []", "builds_on: 5"), "'builds_on' in the header must be list"),
        (HEADER.replace("title: A", "title: A: B"), "lessons/00_small/lesson.md:2: the header is not YAML"),
        (HEADER.replace("[D0]", "[D9]"), "claims.toml has no document 'D9'"),
        (HEADER.replace("builds_on: []", "builds_on: [7]"), "builds_on names chapter 07"),
        (
            HEADER + "\n```{code-cell}\nprint(1)\n\n```python\nprint(2)\n",  # the second does not close the first
            "lessons/00_small/lesson.md:9: this fence (```) is never closed",
        ),
        (HEADER + "\n```{code-cell}\nx = 1\nprint(1\n```\n", "lessons/00_small/lesson.md:11: '(' was never closed"),
        (HEADER + "\n```{code-cell}\n:tags: [a\n\nx = 1\n```\n", "Invalid YAML"),
        (
            HEADER + "\n```{code-cell}\n:holds_for: newer\n\nx = 1\n```\n",
            "lessons/00_small/lesson.md:10: holds_for is 'newer'; write torch>=2.15 or torch==2.15.0",
        ),
        (
            HEADER + "\n```{code-cell}\n:before: prints 2\n\nx = 1\n```\n",
            "lessons/00_small/lesson.md:10: before is 'prints 2'; say since when it is otherwise",
        ),
        (
            HEADER + "\nWords.\n\n{{claim D0.77}}\n",
            "lessons/00_small/lesson.md:11: claims.toml has no claim 'D0.77'",
        ),
        (HEADER + "\nWords.\n\n{{verse D0.2}}\n", "lessons/00_small/lesson.md:11: there is no placeholder 'verse'"),
        (HEADER.replace("builds_on", "kind: page\nbuilds_on"), "'kind' in the header must be chapter or reference"),
        (HEADER + "\nWords.\n\n{{exercise q1}}\n", "lessons/00_small/lesson.md:11: exercises.md has no exercise 'q1'"),
    ],
)
def test_a_lesson_that_cannot_be_built_is_refused_with_file_and_line(course: Path, capsys, text, message) -> None:
    lesson(course, text)
    assert run() == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("lessons/00_small/lesson.md:")
    assert not list((course / "notebooks").iterdir())


def test_a_cell_that_fails_leaves_the_old_notebook_and_the_other_chapters_alone(course: Path, capsys) -> None:
    failing = {
        "print('before')\n1 / 0": "ZeroDivisionError",
        "import warnings; warnings.warn('look out')": "wrote to stderr",
        "import os; print(os.getcwd())": "a path of this machine",
        "import os; os._exit(1)": "DeadKernelError",
    }
    names = {code: f"0{number}_failing" for number, code in enumerate(failing)}
    for name in names.values():
        lesson(course, HEADER + "Words.\n", name)
    assert run() == 0
    before = {name: (course / "notebooks" / f"{name}.ipynb").read_bytes() for name in names.values()}
    for code, name in names.items():
        lesson(course, HEADER + f"```{{code-cell}}\nprint(1)\n```\n\nWords.\n\n```{{code-cell}}\n{code}\n```\n", name)
    lesson(course, HEADER + "```{code-cell}\nprint(2)\n```\n", "09_other")
    capsys.readouterr()
    assert run() == 1
    said = capsys.readouterr()
    for code, message in failing.items():
        report = said.err.split(f"\n{names[code]}, cell 4: ")[1]
        assert message in report.split("_failing, cell 4: ")[0]
    assert "1 built, 0 already up to date, 4 failed" in said.out
    assert {name: (course / "notebooks" / f"{name}.ipynb").read_bytes() for name in names.values()} == before
    assert (course / "notebooks" / "09_other.ipynb").exists()


def test_an_unknown_chapter_is_named_with_the_ones_there_are(course: Path, capsys) -> None:
    lesson(course, HEADER)
    assert run("07") == 2
    assert "no chapter '07'; there are: 00" in capsys.readouterr().err


def test_check_finds_an_edited_and_a_stray_notebook(course: Path, capsys) -> None:
    lesson(course, HEADER + "One.\n")
    assert run() == 0
    target = course / "notebooks" / "00_small.ipynb"
    (course / "notebooks" / "05_stray.ipynb").write_text(target.read_text())
    target.write_text(target.read_text().replace("One.", "Seven."))
    capsys.readouterr()
    assert run("--check") == 1
    said = capsys.readouterr().out
    assert "00_small.ipynb differs from its lesson" in said
    assert "05_stray.ipynb has no lesson" in said


@pytest.mark.slow
def test_check_of_the_real_course_runs_nothing(capsys) -> None:
    """It must stay quick enough for a pre-commit hook; not starting torch is what makes it so."""
    import subprocess
    import sys

    code = "import sys; from lessons.build.__main__ import main; main(['--check']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout.split()[-1] == "False"


def test_a_chapter_leads_on_in_its_part_and_on_its_routes() -> None:
    assert index_page.find_next_chapters(13) == {18: ["Debug and build"]}
    assert index_page.find_next_chapters(12) == {20: ["Debug and build", "I debug models"]}
    assert index_page.find_next_chapters(21) == {}
    [cell] = chapter_notebook.make_next_cells(lesson_source.LESSONS / "13_at_scale" / "lesson.md")
    assert cell.source.startswith("**Next:** [14 · Inside a transformer](14_inside_a_transformer.ipynb) · ")
    assert cell.source.endswith("*Debug and build*: next is [18 · Models at work](18_models_at_work.ipynb).")
    [cell] = chapter_notebook.make_next_cells(lesson_source.LESSONS / "14_inside_a_transformer" / "lesson.md")
    assert cell.source.count("](") == 1, "the next one in its part is the next one anyway"
    [cell] = chapter_notebook.make_next_cells(lesson_source.LESSONS / "20_watchdog_report" / "lesson.md")
    assert cell.source.startswith("This is the end of the way *I debug models*.\n\n**Next:** [21 · ")
