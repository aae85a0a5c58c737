"""The files themselves: links that lead somewhere, chapters that agree, nothing of this machine in any of them."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lessons.build import __main__ as build
from lessons.build import lesson_source, placeholders
from tests.shared import ROOT
from tests.shared.parsed_chapters import CHAPTERS
from tests.shared.table_checks import for_each
from tools import skips


def tracked_files() -> list[Path]:
    """Every file git tracks or would track; outside a checkout, every file that is not built."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return [path for name in result.stdout.splitlines() if (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


TEXTS = [path for path in tracked_files() if path.suffix not in {".safetensors", ".png"}]
MARKDOWN = [path for path in TEXTS if path.suffix == ".md" and lesson_source.LESSONS not in path.parents]

# Written in pieces, so that this file does not find itself.
REGISTRY_HOSTS = [
    "python" + "hosted",
    "pypi" + ".org",
    "registry.npm" + "js",
    "deb." + "debian.org",
    "conda." + "anaconda",
]
MACHINE_PATHS = [
    r"/home/\w+/",
    r"/Users/\w+/",
    r"[A-Z]:\\{1,2}Users\\{1,2}\w",
    "/ipykernel" + r"_\d",
    re.escape(f"{ROOT}/"),
]


def test_there_are_files_to_look_at() -> None:
    assert len(TEXTS) > 30


@for_each(TEXTS)
def test_no_registry_host_and_no_path_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for host in REGISTRY_HOSTS:
        assert host not in text, f"names a registry host: {host}"
    for pattern in MACHINE_PATHS:
        found = re.search(pattern, text)
        assert not found, f"holds a path of a machine: {found and found[0]}"


def slug(heading: str) -> str:
    """The anchor a forge gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def text_of(path: Path) -> str:
    """The Markdown of a page or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


@cache
def anchors(path: Path) -> set[str]:
    """What a link may have after the #: a notebook's headings as JupyterLab names them, a page's as a forge does."""
    name = placeholders.make_heading_fragment if path.suffix == ".ipynb" else slug
    headings = {name(heading) for heading in re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)}
    if path.suffix != ".ipynb":
        return headings
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return headings | {f"cell-id={cell['id']}" for cell in cells}


def links(text: str) -> list[str]:
    """Targets of Markdown links and images outside code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


PAGES = [*MARKDOWN, *sorted(lesson_source.NOTEBOOKS.glob("*.ipynb"))]


@for_each(PAGES)
def test_links_resolve(page: Path) -> None:
    """To a file that is there, and to a heading in it. The outside world is not checked: tests run offline."""
    for target in links(text_of(page)):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            assert path.exists(), f"link to {target}: no such file"
            assert not anchor or anchor in anchors(path), f"link to {target}: no such heading"


def test_a_page_lists_every_chapter_with_its_title_and_minutes() -> None:
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[(\d\d)\]\(\.\./notebooks/(\w+)\.ipynb\) \| ([^|]+?) \| [^|]+ \| (\d+ \+ \d+) \|", page, re.MULTILINE
    )
    minutes = {c.name: f"{c.minutes.reading} + {c.minutes.exercises}" for c in CHAPTERS}
    expected = [(c.number, c.name, c.header["title"], minutes[c.name]) for c in CHAPTERS]
    assert rows == expected


def test_a_page_lists_every_reference_page_with_its_title() -> None:
    page = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[([^\]]+)\]\(\.\./notebooks/(\w+)\.ipynb\)", page, re.MULTILINE)
    assert listed == [
        (lesson_source.header_of(path)["title"], lesson_source.name_of(path))
        for path in lesson_source.reference_files()
    ]


def test_lessons_and_notebooks_are_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    status = build.main(["--check"])
    said = capsys.readouterr()
    assert status == 0, said.out + said.err


def test_each_skip_is_listed_with_when_it_may_go(tmp_path: Path) -> None:
    assert skips.main(["--check"]) == 0, "run python -m tools.skips"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_odd.py").write_text("pytest.skip('it is a Tuesday')\n")
    assert [*skips.find_skips(tmp_path)] == [("it is a Tuesday", "tests/test_odd.py")]
    assert skips.when("it is a Tuesday") == ""
