"""Imports keep their direction, a broken rule is noticed, and docs/architecture.md is up to date."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookscope_course import Exercise
from hookscope_course.practice.exercise_parser import parse_exercises
from tests.repository.test_repository import links, tracked_files
from tests.shared import ROOT
from tests.shared.exercises import prove
from tools import architecture, page_blocks

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a checkout; its own files come before the installed ones."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-logo", "--no-cache"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "helpers")])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python files of this checkout, and pyproject.toml, in another folder."""
    folder = tmp_path_factory.mktemp("copied")
    for path in tracked_files():
        if path.suffix == ".py" or path.name == "pyproject.toml":
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return folder


def test_imports_keep_their_direction() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = {
    "a lower part imports a higher one": (
        "helpers/hookscope/layers/find.py",
        "from hookscope.captures import call",
        "parts",
    ),
    "a part imports a widget": ("helpers/hookscope/graphs/graph.py", "import hookscope.widgets", "parts"),
    "by a detour": ("helpers/hookscope/pytree.py", "import hookscope", "parts"),
    "a part without a place": ("helpers/hookscope/attics.py", "", "parts"),
    "only for the type checker": (
        "helpers/hookscope/pictures/palette.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hookscope.pictures.heatmap import Heatmap",
        "circles",
    ),
    "hookscope imports the course": ("helpers/hookscope/pytree.py", "import hookscope_course", "packages"),
    "the course imports lessons": ("helpers/hookscope_course/__init__.py", "import lessons", "packages"),
    "lessons import tests": ("lessons/__init__.py", "import tests.shared", "packages"),
}


@pytest.mark.parametrize(("file", "line", "contract"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_noticed_and_named(copied: Path, file: str, line: str, contract: str) -> None:
    path = copied / file
    before = path.read_text(encoding="utf-8") if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n", encoding="utf-8")
    try:
        done = lint_imports(copied)
    finally:
        path.write_text(before, encoding="utf-8") if before is not None else path.unlink()
    said = " ".join(done.stdout.split())
    name = re.search(rf'id = "{contract}"\nname = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert name
    assert done.returncode == 1, said
    assert f"{name[1]} BROKEN" in said
    module = (path.parent if path.stem == "__init__" else path).stem
    assert module in said.split("Broken contracts")[1]


def test_the_picture_is_up_to_date() -> None:
    drawn = f"{architecture.picture()}\n\n{architecture.listing()}"
    assert page_blocks.block(architecture.PAGE, "architecture") == drawn, "run: make architecture"


def test_the_picture_has_every_part_and_follows_the_imports() -> None:
    drawn = architecture.picture()
    folders = {path.parent.name for path in (ROOT / "helpers/hookscope").glob("*/__init__.py")}
    assert len(folders) >= 10
    for part in folders:
        assert f'hookscope.{part}["<b>{part}</b><br/>' in drawn
    assert "hookscope.graphs --> hookscope.censuses" in drawn
    assert "hookscope.graphs --> hookscope.pictures" not in drawn, "it follows from censuses --> pictures"
    assert "notebooks --> " in drawn
    assert "hookscope --> torch" in drawn


def test_a_part_without_a_sentence_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "ROOT", tmp_path)
    (tmp_path / "part.py").write_text("import torch\n")
    with pytest.raises(ValueError, match=r"part\.py has no docstring"):
        architecture.sentence(tmp_path / "part.py")


def test_a_block_is_put_in_its_place_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one -->\n<!-- /one -->\nb\n")
    page_blocks.put(page, "one", r"new \1")
    assert page.read_text() == "a\n<!-- one -->\n\nnew \\1\n\n<!-- /one -->\nb\n"
    assert page_blocks.block(page, "one") == r"new \1"
    before = page.stat().st_mtime_ns
    page_blocks.put(page, "one", r"new \1")
    assert page.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"page\.md has 0 places for two"):
        page_blocks.put(page, "two", "")
    assert page_blocks.table([{"a": 1, "b": "x"}, {"a": 2}]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | – |"


DOCS = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_every_path_named_for_contributors_exists(page: Path) -> None:
    """Links are looked at in test_repository.py; these are the others."""
    text = re.sub(r"<!-- (\S+) -->.*?<!-- /\1 -->|^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.M)
    paths = set(re.findall(r"`((?:helpers|lessons|tests|benchmarks|tools)/[\w./-]+|\w+\.(?:toml|yml|lock))`", text))
    elsewhere = {path.name for path in tracked_files()}
    assert not [path for path in paths - {"lessons/NN_name"} if not (ROOT / path).exists() and path not in elsewhere]


def test_contributing_can_be_read_in_a_few_minutes() -> None:
    assert len(PAGE.splitlines()) <= 150


def test_the_questions_lead_to_places_where_the_answer_stands() -> None:
    table = PAGE.split("## Where do I change …")[1].split("\n## ")[0]
    for file, word in {
        "checks_07.py": "Wrong(",
        "exercises.md": "### Wrong answers",
        "test_lessons.py": "def test_parts_come_in_order",
        "palette.py": "NAN: (",
        "inplace.py": "class Overwrites",
        "call.py": "raise OverwrittenError(",
        "palette.toml": "backward = [",
        "test_hooks_off.py": "def test_an_error_in_the_model_leaves_nothing_behind",
    }.items():
        target = next(target for target in links(table) if target.endswith(f"/{file}"))
        assert word in (ROOT / target).read_text(encoding="utf-8"), target


def example(name: str) -> list[str]:
    """The fences of an example in docs/authoring.md."""
    page = ROOT / "docs" / "authoring.md"
    return re.findall(r"^(````?)\w+\n(.*?)^\1$", page_blocks.block(page, name), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["exercise", "check-by-hand"])
def test_the_exercise_to_copy_is_one(name: str) -> None:
    (_, text), _ = example("exercise")
    *_, (_, check) = example(name)
    (read,) = parse_exercises(f"# Exercises\n\n{text}", Path("lessons/09_small/exercises.md"))
    names: dict[str, Any] = {}
    exec(check, names)
    prove(Exercise(read, names[f"check_{read.name}"]))


def test_the_package_to_copy_says_what_it_is_for(tmp_path: Path) -> None:
    ((_, code),) = example("package")
    (tmp_path / "__init__.py").write_text(code, encoding="utf-8")
    assert architecture.sentence(tmp_path / "__init__.py").endswith(".")


SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in tracked_files()
    if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("helpers", "lessons", "tools")
}


def test_no_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = {}
    for file, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


WORDS_OF_OTHERS = {
    "Address already in use": "the operating system says it",
    "Boolean value of Tensor": "torch says it",
    "by peer": "gloo says it",
    "does not require grad": "torch says it",
    "has no len()": "Python says it",
    "inplace operation": "torch says it",
    "leaf variables": "torch says it",
    "modified inplace": "torch says it",
    "must be Tensor": "torch says it",
    "second time": "torch says it",
    "Right answers": "a heading that authors write in exercises.md",
    "communication hook": "a name in the figure's own table",
    "forward pre": "a kind of hook, after the name of torch's store",
    "not attempted": "a value of the type CheckOutcome",
}


def find_words(condition: ast.expr) -> Iterator[str]:
    """Yield the texts of several words, or with a colon at the end, that a condition looks for or compares with."""
    for node in ast.walk(condition):
        searched: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Eq | ast.NotEq):
            searched = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
            searched = node.args
        for one in searched:
            for each in one.elts if isinstance(one, ast.Tuple | ast.List | ast.Set) else [one]:
                words = each.value if isinstance(each, ast.Constant) else None
                if isinstance(words, str) and re.search(r"[A-Za-z]{2,},? [A-Za-z]{2,}|[A-Za-z]{2,}:$", words):
                    yield words


def test_no_condition_depends_on_the_words_of_a_sentence() -> None:
    found: dict[str, str] = {}
    for file, tree in SOURCES.items():
        if file.startswith("tools/") or "/facts_" in file:
            continue
        for node in ast.walk(tree):
            conditions: list[ast.expr] = []
            if isinstance(node, ast.If | ast.While | ast.IfExp):
                conditions = [node.test]
            elif isinstance(node, ast.comprehension):
                conditions = node.ifs
            elif isinstance(node, ast.match_case) and node.guard:
                conditions = [node.guard]
            found |= {words: f"{file}:{each.lineno}" for each in conditions for words in find_words(each)}
    assert not {words: place for words, place in found.items() if words not in WORDS_OF_OTHERS}
    assert found.keys() == WORDS_OF_OTHERS.keys(), "a row of the list is not needed any more"
