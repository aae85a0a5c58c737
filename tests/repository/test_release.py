"""What a release script lets through: only a version that every file names, on a tree without changes."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import hookscope
from tests.shared import ROOT
from tools import licences, release
from tools.matrix import environments

TODAY = date(2026, 12, 1)
GOOD = {
    "version": "0.2.0",
    "code": 'import torch\n__version__ = "0.2.0"\n',
    "citation": "title: x\nversion: 0.2.0\nlicense: y\n",
    "changes": "# Changelog\n\n## 0.2.0, 2026-12-01\n\n- New.\n",
    "tags": ["v0.1.0"],
}


def test_what_fits_is_let_through() -> None:
    assert release.wrong_version(**GOOD, today=TODAY) == ""
    assert doctest.testmod(release).failed == 0


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"version": "0.2"}, "'0.2' is no version"),
        ({"tags": ["v0.2.0"]}, "v0.2.0 is there already"),
        ({"code": '__version__ = "0.1.0"'}, "__version__ is 0.1.0; set it to 0.2.0"),
        ({"code": ""}, "__version__ is nowhere"),
        ({"citation": "version: 0.2.01"}, "CITATION.cff names another version"),
        ({"changes": "## 0.2.0, 2026-11-30"}, 'the heading "## 0.2.0, 2026-12-01"'),
    ],
)
def test_what_does_not_fit_is_said(other: dict[str, object], told: str) -> None:
    assert told in release.wrong_version(**(GOOD | other), today=TODAY)


def test_nothing_is_tagged_before_everything_is_right(tmp_path: Path) -> None:
    """The real script, in a clone whose changelog is wrong. With a right one, it would run all tests, and this one."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", "--no-tags", f"file://{ROOT}", str(clone)], check=True)
    for name in ("tools/release.py", "CITATION.cff", "helpers/hookscope/__init__.py"):
        (clone / name).write_bytes((ROOT / name).read_bytes())
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n", "utf-8")
    command = [sys.executable, "-m", "tools.release", hookscope.__version__]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f'CHANGELOG.md needs the heading "## {hookscope.__version__}, ' in done.stderr
    tags = subprocess.run(["git", "tag"], cwd=clone, capture_output=True, text=True, check=True)
    assert tags.stdout == ""


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == hookscope.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_changelog_begins_with_this_version_and_is_short() -> None:
    """A version that is being written has no date yet."""
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert re.match(rf"({re.escape(hookscope.__version__)}, \d{{4}}-\d\d-\d\d|Unreleased)\n", releases[0])
    for release_notes in releases:
        assert len(release_notes.splitlines()) <= 40, release_notes.partition("\n")[0]


def test_the_guide_installs_this_versions_wheel() -> None:
    named = re.findall(r"hookscope-(\S+)-py3-none-any\.whl", (ROOT / "docs" / "install.md").read_text("utf-8"))
    assert {*named} == {hookscope.__version__}


def test_the_licences_are_those_of_what_is_pinned() -> None:
    """After `make lock` and `make dev`: python -m tools.licences."""
    listed = dict(re.findall(r"^\| ([\w.-]+) \| (\S+) \| .+ \|$", licences.PAGE.read_text(), re.MULTILINE))
    listed.pop("package")
    listed.pop("---", None)
    assert listed == licences.pinned()
    assert "| torch | " in licences.PAGE.read_text()
    said = {row["package"]: row["licence"] for row in licences.rows()}
    assert said["numpy"] != "not said"


def workflow(name: str) -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text("utf-8"))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_systems_are_tried_on_every_promised_torch_and_python() -> None:
    jobs = workflow("systems")["jobs"]
    tried = jobs["torch"]["strategy"]["matrix"]
    assert set(tried["torch"]) == {torch for torch, _ in environments.PAIRS}
    assert set(tried["python"]) == {python for _, python in environments.PAIRS}
    assert set(jobs["tests"]["strategy"]["matrix"]["python"]) == set(tried["python"])
