"""lessons/build.py: what it refuses, what it runs again, and that it makes the same bytes twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lessons.build import __main__ as build
from lessons.build import making, reading

HEADER = """---
title: A small chapter
promise: You will see that it builds.
minutes: 5
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
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty course with the project's claims and exercise machinery."""
    lessons = tmp_path / "lessons"
    (tmp_path / "notebooks").mkdir()
    (lessons / "checks").mkdir(parents=True)
    for name in ("__init__.py", "exercise.py"):
        (lessons / "checks" / name).write_text("")
    monkeypatch.setattr(reading, "ROOT", tmp_path)
    monkeypatch.setattr(reading, "LESSONS", lessons)
    monkeypatch.setattr(reading, "CHECKS", lessons / "checks")
    monkeypatch.setattr(reading, "NOTEBOOKS", tmp_path / "notebooks")
    reading.claims.cache_clear()
    (lessons / "claims.toml").write_text(
        '[[document]]\nid = "D0"\ntitle = "a page"\n\n'
        '[[claim]]\nid = "D0.2"\ndocument = "D0"\ntext = "Hooks need a call."\nverdict = "outdated"\nsince = "1.2"\n'
    )
    yield tmp_path
    reading.claims.cache_clear()


def lesson(course: Path, text: str, name: str = "00_small.md") -> Path:
    path = course / "lessons" / name
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


def test_only_what_changed_is_built_again(course: Path, capsys, monkeypatch) -> None:
    lesson(course, HEADER + "```{code-cell}\nprint(1)\n```\n")
    lesson(course, HEADER + "```{code-cell}\nprint(2)\n```\n", "01_other.md")
    assert run() == 0
    assert "2 built" in capsys.readouterr().out
    lesson(course, HEADER + "```{code-cell}\nprint(3)\n```\n", "01_other.md")
    assert run("--check") == 1
    said = capsys.readouterr().out
    assert "01_other.ipynb differs from its lesson at cell 1" in said
    assert "00_small" not in said
    assert run() == 0
    assert "1 built, 1 already up to date" in capsys.readouterr().out

    monkeypatch.setattr(making, "package_fingerprint", lambda: b"the package changed")
    assert run("--check") == 1
    assert "the package or its checks have changed" in capsys.readouterr().out


def test_a_changed_checks_module_builds_its_chapter_again(course: Path, capsys) -> None:
    checks = course / "lessons" / "checks" / "small.py"
    checks.write_text("q1 = Exercise('00.1', solution='''answer = 6\nprint(answer)\n''')\n")
    lesson(course, HEADER.replace("---\n", "---\nchecks: small\n", 1) + "```{code-cell}\n# solution: q1\n```\n")
    assert run() == 0
    cell = saved(course)["cells"][1]
    assert "".join(cell["source"]) == "# solution\nanswer = 6\nprint(answer)"
    assert cell["metadata"]["jupyter"] == {"outputs_hidden": True, "source_hidden": True}
    checks.write_text(checks.read_text() + "\n# a new rule for a wrong answer\n")
    assert run("--check") == 1


def test_a_chapter_is_built_again_when_a_file_that_it_reads_changes(course: Path, capsys) -> None:
    read = course / "lessons" / "records.json"
    lesson(course, HEADER.replace("---\n", "---\nreads: [records.json]\n", 1) + "```{code-cell}\nprint(1)\n```\n")
    assert run() == 1
    assert "lessons/00_small.md:1: the header reads 'records.json': no such file" in "".join(capsys.readouterr())
    read.write_text("{}")
    assert run() == 0
    assert run("--check") == 0
    read.write_text('{"2.16": 1}')
    assert run("--check") == 1


def test_checks_that_one_chapter_reads_are_no_business_of_another(course: Path, capsys) -> None:
    checks = course / "lessons" / "checks" / "small_lab.py"
    checks.write_text("")
    reads = "---\nreads: [checks/small_lab.py]\n"
    lesson(course, HEADER.replace("---\n", reads, 1) + "```{code-cell}\nprint(1)\n```\n")
    lesson(course, HEADER + "```{code-cell}\nprint(2)\n```\n", "01_other.md")
    assert run() == 0
    checks.write_text("# a new rule\n")
    capsys.readouterr()
    assert run("--check") == 1
    said = capsys.readouterr().out
    assert "00_small" in said
    assert "01_other" not in said


def test_claims_and_the_head_of_the_page_come_from_their_one_source(course: Path) -> None:
    lesson(course, HEADER + "Words.\n\n{{claim D0.2}}\n\n+++\n\n{{verdict D0.2}} Because.\n")
    lesson(course, HEADER.replace("builds_on: []", "builds_on: [0]"), "01_other.md")
    assert run() == 0
    first = "\n".join("".join(cell["source"]) for cell in saved(course)["cells"])
    assert "# 00 · A small chapter" in first
    assert "[01](01_other.ipynb) →" in first
    assert "**D0.2** · *The document says:* Hooks need a call." in first
    assert "**Verdict on D0.2: outdated since torch 1.2.** Because." in first
    assert [cell for cell in saved(course)["cells"] if "".join(cell["source"]) == "Words."], "a claim starts a cell"
    second = "".join(saved(course, "01_other.ipynb")["cells"][0]["source"])
    assert "builds on [00](00_small.ipynb)" in second
    assert "D0 (a page)" in second


def test_a_reference_page_is_no_chapter(course: Path) -> None:
    """It has no number and no neighbours; a chapter goes on to a chapter; its tables come from their data files."""
    lesson(course, HEADER + "\n## 1 · Where it `hooks(x)`\n\n```{code-cell}\nprint(1)\n```\n")
    row = 'want = "See it"\nhooks = ["torch.Tensor.register_hook"]\nsince = "1.0"\nchapter = 0\nsection = 1\n'
    (course / "lessons" / "chooser.toml").write_text(f"[[want]]\n{row}snippet = \"print('seen')\"\nprints = 'seen'\n")
    page = "---\ntitle: Wants\npromise: You find it.\nkind: reference\n---\n"
    lesson(course, page + "{{wants}}\n\n+++\n\n{{chooser}}\n\n+++\n\nDone.\n", "91_chooser.md")
    lesson(course, page.replace("Wants", "Words"), "92_glossary.md")
    assert run() == 0
    assert "91" not in "".join(saved(course)["cells"][0]["source"])
    head, table, text, code, last = ("".join(cell["source"]) for cell in saved(course, "91_chooser.ipynb")["cells"])
    ways = "Reference · [A small chapter](00_small.ipynb) · [Words](92_glossary.ipynb)"
    assert head == f"# Wants\n\nYou find it.\n\n{ways}"
    assert "| [See it](#See-it) | `register_hook` | 1.0 |" in table
    where = "00_small.ipynb#1-·-Where-it-hooks%28x%29"
    assert (
        text
        == f"## See it\n\n`torch.Tensor.register_hook` · since torch 1.0 · taught in chapter [00, section 1]({where})"
    )
    assert (code, last) == ("print('seen')", "Done.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# no header\n", "lessons/00_small.md:1: no header"),
        ("---\ntitle: x\n", "lessons/00_small.md:1: the header's closing '---' is missing"),
        (HEADER.replace("minutes: 5\n", ""), "lessons/00_small.md:6: the header lacks 'minutes'"),
        (HEADER.replace("minutes: 5", "minutes: five"), "'minutes' in the header must be int"),
        (HEADER.replace("title: A", "title: A: B"), "lessons/00_small.md:2: the header is not YAML"),
        (HEADER.replace("[D0]", "[D9]"), "claims.toml has no document 'D9'"),
        (HEADER.replace("builds_on: []", "builds_on: [7]"), "builds_on names chapter 07"),
        (HEADER + "\n```{code-cell}\nprint(1)\n", "lessons/00_small.md:9: this fence (```) is never closed"),
        (HEADER + "\n```{code-cell}\nx = 1\nprint(1\n```\n", "lessons/00_small.md:11: '(' was never closed"),
        (HEADER + "\n```{code-cell}\n:tags: [a\n\nx = 1\n```\n", "Invalid YAML"),
        (
            HEADER + "\nWords.\n\n{{claim D0.77}}\n",
            "lessons/00_small.md:11: claims.toml has no claim 'D0.77'",
        ),
        (HEADER + "\nWords.\n\n{{verse D0.2}}\n", "lessons/00_small.md:11: there is no placeholder 'verse'"),
        (HEADER.replace("minutes", "kind: page\nminutes"), "'kind' in the header must be chapter or reference"),
        (HEADER + "\n```{code-cell}\n# solution: q1\n```\n", "no exercise 'q1' with a solution"),
    ],
)
def test_a_lesson_that_cannot_be_built_is_refused_with_file_and_line(course: Path, capsys, text, message) -> None:
    lesson(course, text)
    assert run() == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("lessons/00_small.md:")
    assert not list((course / "notebooks").iterdir())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('before')\n1 / 0", "ZeroDivisionError"),
        ("import warnings; warnings.warn('look out')", "wrote to stderr"),
        ("import os; print(os.getcwd())", "a path of this machine"),
        ("import os; os._exit(1)", "DeadKernelError"),
    ],
)
def test_a_cell_that_fails_leaves_the_old_notebook_and_the_other_chapters_alone(course, capsys, code, message) -> None:
    lesson(course, HEADER + "```{code-cell}\nprint(1)\n```\n")
    assert run() == 0
    target = course / "notebooks" / "00_small.ipynb"
    before = target.read_bytes()
    lesson(course, HEADER + "```{code-cell}\nprint(1)\n```\n\nWords.\n\n```{code-cell}\n" + code + "\n```\n")
    lesson(course, HEADER + "```{code-cell}\nprint(2)\n```\n", "01_other.md")
    capsys.readouterr()
    assert run() == 1
    said = capsys.readouterr()
    assert "00_small.md, cell 3" in said.err
    assert message in said.err
    assert "1 built, 0 already up to date, 1 failed" in said.out
    assert target.read_bytes() == before
    assert (course / "notebooks" / "01_other.ipynb").exists()


def test_an_unknown_chapter_is_named_with_the_ones_there_are(course: Path, capsys) -> None:
    lesson(course, HEADER)
    assert run("07") == 2
    assert "no chapter '07'; there are: 00" in capsys.readouterr().err


def test_check_finds_an_edited_and_a_stray_notebook(course: Path, capsys) -> None:
    lesson(course, HEADER + "```{code-cell}\nprint(1)\n```\n")
    assert run() == 0
    target = course / "notebooks" / "00_small.ipynb"
    (course / "notebooks" / "05_stray.ipynb").write_text(target.read_text())
    target.write_text(target.read_text().replace("print(1)", "print(7)"))
    capsys.readouterr()
    assert run("--check") == 1
    said = capsys.readouterr().out
    assert "00_small.ipynb differs from its lesson" in said
    assert "05_stray.ipynb has no lesson" in said


def test_check_of_the_real_course_runs_nothing(capsys) -> None:
    """It must stay quick enough for a pre-commit hook; not starting torch is what makes it so."""
    import subprocess
    import sys

    code = "import sys; from lessons import build; build.main(['--check']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split()[-1] == "False"
