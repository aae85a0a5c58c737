"""Importing a room imports nothing heavy; what is heavy comes when it is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STEPS = {
    "pictures": "import hookscope.pictures.picture, hookscope.pictures.grid",
    "samples": "import hookscope.samples",
    "untrained": "hookscope.samples.digit_cnn(trained=False)",
    "grid": "import torch; hookscope.pictures.grid.feature_grid(torch.rand(1, 4, 8, 8)).to_html()",
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
    heavy = {"matplotlib", "torchvision", "ipywidgets", "sklearn"}
    assert not imported["pictures"] & (heavy | {"PIL", "safetensors"})
    assert not imported["grid"] & heavy
    assert "matplotlib" in imported["figure"]
    assert "matplotlib.pyplot" not in imported["figure"]


def test_importing_samples_imports_nothing_heavy(imported: dict[str, set[str]]) -> None:
    assert not imported["samples"] & {"sklearn", "torchvision", "safetensors", "matplotlib", "PIL"}
    assert "safetensors" not in imported["untrained"]
