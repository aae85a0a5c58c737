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
from lessons.site.__main__ import OUT
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


def test_the_workflow_that_publishes_is_off_and_needs_no_password() -> None:
    publishing = workflow("publish")
    assert publishing[True] == "workflow_dispatch"  # YAML reads "on" as true
    build, publish = publishing["jobs"]["build"], publishing["jobs"]["publish"]
    assert publishing["permissions"] == {"contents": "read"}
    assert "permissions" not in build, "what runs our code and that of others cannot publish"
    assert build["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert "make wheel" in commands(build)
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    *_, last = publish["steps"]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in last
    assert "secrets." not in (ROOT / ".github" / "workflows" / "publish.yml").read_text("utf-8")


@pytest.mark.parametrize(("tag", "status"), [(hookscope.__version__, 0), ("9.9.9", 1)])
def test_what_is_published_has_the_version_of_its_tag(tmp_path: Path, tag: str, status: int) -> None:
    (check,) = (
        step["run"] for step in workflow("publish")["jobs"]["build"]["steps"] if "version" in step.get("name", "")
    )
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"hookscope-{hookscope.__version__}-py3-none-any.whl").touch()
    done = subprocess.run(["bash", "-c", check], cwd=tmp_path, env={"GITHUB_REF_NAME": f"v{tag}"}, check=False)
    assert done.returncode == status


def test_every_night_all_tests_run_and_those_of_the_site_on_what_is_published() -> None:
    nightly = workflow("nightly")
    assert {*nightly[True]} == {"schedule", "workflow_dispatch"}
    assert nightly["permissions"] == {"contents": "read"}
    (job,) = nightly["jobs"].values()
    ran = commands(job)
    assert ran.index("make test-all") < ran.index("make site") < len(ran) - 1
    site_tests = job["steps"][-1]
    assert site_tests["run"].endswith('-m "slow or not slow" tests/browser/test_site.py')
    made = (OUT / "html").relative_to(ROOT).as_posix()
    assert site_tests["env"] == {"HOOKSCOPE_BUILT_SITE": made}
