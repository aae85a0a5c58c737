"""Importing a room imports nothing heavy; what is heavy comes when it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.shared import ROOT

STEPS = {
    "pictures": "import hookscope.pictures.picture, hookscope.pictures.feature_maps",
    "samples": "import hookscope.samples",
    "untrained": "hookscope.samples.digit_cnn(trained=False)",
    "grid": "import torch; hookscope.pictures.feature_maps.feature_grid(torch.rand(1, 4, 8, 8)).to_html()",
    "figure": "from matplotlib.figure import Figure; hookscope.pictures.picture.from_figure(Figure(), 'Nothing.')",
}
"""What one fresh interpreter does, step by step: they share it, as importing torch takes seconds."""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """All modules that were there after each step."""
    code = "import json, sys\nthere = {}\n"
    for step, does in STEPS.items():
        code += f"{does}\nthere[{step!r}] = sorted(sys.modules)\n"
    run = subprocess.run([sys.executable, "-c", f"{code}print(json.dumps(there))"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return {step: set(modules) for step, modules in json.loads(run.stdout.splitlines()[-1]).items()}


def test_importing_pictures_imports_nothing_heavy(imported: dict[str, set[str]]) -> None:
    heavy = {"matplotlib", "torchvision", "ipywidgets"}
    assert not imported["pictures"] & (heavy | {"PIL", "safetensors"})
    assert not imported["grid"] & heavy
    assert "matplotlib" in imported["figure"]
    assert "matplotlib.pyplot" not in imported["figure"]


def test_importing_samples_imports_nothing_heavy(imported: dict[str, set[str]]) -> None:
    assert not imported["samples"] & {"torchvision", "safetensors", "matplotlib", "PIL"}
    assert "safetensors" not in imported["untrained"]


def modules_of_ours(code: str) -> list[str]:
    """List the modules of hookscope that a fresh interpreter has after some lines."""
    code += "\nimport sys\nprint(*[name for name in sys.modules if name.partition('.')[0] == 'hookscope'])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_hookscope_loads_the_core_alone() -> None:
    loaded = modules_of_ours("import hookscope")
    assert len(loaded) <= 60
    assert not [name for name in loaded if name.startswith("hookscope.interp")]


def test_importing_the_checks_of_a_chapter_loads_no_interp() -> None:
    folder = ROOT / "lessons" / "07_tensor_hooks"
    loaded = modules_of_ours(f"import sys; sys.path.insert(0, {str(folder)!r}); import checks_07")
    assert loaded
    assert not [name for name in loaded if name.startswith("hookscope.interp")]


@pytest.mark.parametrize(
    ("module", "last"),
    [
        ("hookscope", "interp.sweeps"),
        ("hookscope.widgets", "interp.widgets.token"),
        ("hookscope.samples", "samples.textures"),
    ],
)
def test_dir_has_the_public_names_alone_and_they_come_when_asked_for(module: str, last: str) -> None:
    code = (
        f"import {module} as module\n"
        "for name in module.__all__:\n    getattr(module, name)\n"
        "assert [name for name in dir(module) if name[:2] != '__'] == sorted(module.__all__), dir(module)\n"
        "assert {'__all__', '__doc__'} <= {*dir(module)}"
    )
    assert f"hookscope.{last}" in modules_of_ours(code)
