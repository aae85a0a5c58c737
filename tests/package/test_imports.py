"""Importing a room imports nothing heavy; what is heavy comes when it is used."""

from __future__ import annotations

import json

import pytest

from tests.shared import ROOT
from tests.shared.fresh_interpreters import run_afresh

EXTRAS = {"anywidget", "ipywidgets", "traitlets", "IPython", "matplotlib", "pandas", "safetensors", "torchvision"}
STEPS = {
    "pictures": "import hookscope.pictures.picture, hookscope.pictures.feature_maps",
    "samples": "import hookscope.samples",
    "untrained": "hookscope.samples.digit_cnn(trained=False)",
    "grid": "import torch\n"
    "options = {'names': list('abcd'), 'axes': ('row', 'column')}\n"
    "hookscope.pictures.feature_maps.feature_grid(torch.rand(1, 4, 8, 8), **options).to_html()\n"
    "hookscope.pictures.image_grid(torch.rand(1, 3, 8, 8), over=torch.rand(2, 2)).png",
    "figure": "from matplotlib.figure import Figure; hookscope.pictures.picture.from_figure(Figure(), 'Nothing.')",
}
ASKED = {
    "hookscope": "interp.sweeps",
    "hookscope.widgets": "interp.widgets.token",
    "hookscope.samples": "samples.textures",
}
"""Modules, and one that comes with the last of their public names."""


def ask_for_all(module: str) -> str:
    return (
        f"import {module} as module\n"
        "for name in module.__all__:\n    getattr(module, name)\n"
        "assert [name for name in dir(module) if name[:2] != '__'] == sorted(module.__all__), dir(module)\n"
        "assert {'__all__', '__doc__'} <= {*dir(module)}"
    )


CODES = {
    "core": "import hookscope",
    "checks": f"import sys; sys.path.insert(0, {str(ROOT / 'lessons' / '07_tensor_hooks')!r}); import checks_07",
    "star": "from hookscope import *",
    **{module: ask_for_all(module) for module in ASKED},
}
LIST = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))\n"


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """All modules that were there after each code, and after each of the steps, which are taken in one interpreter."""
    steps, *others = run_afresh([LIST.join([*STEPS.values(), ""]), *(code + LIST for code in CODES.values())])
    there = dict(zip([*STEPS, *CODES], [*steps.splitlines(), *others], strict=True))
    return {name: set(json.loads(modules)) for name, modules in there.items()}


def test_pictures_and_samples_import_nothing_heavy(imported: dict[str, set[str]]) -> None:
    assert not imported["samples"] & (EXTRAS | {"PIL"})
    assert not imported["grid"] & (EXTRAS | {"matplotlib.pyplot"})
    assert "matplotlib" in imported["figure"]
    assert "matplotlib.pyplot" not in imported["figure"]
    assert not imported["star"] & EXTRAS


def test_importing_hookscope_loads_the_core_alone(imported: dict[str, set[str]]) -> None:
    assert len([name for name in imported["core"] if name.partition(".")[0] == "hookscope"]) <= 60
    assert "hookscope" in imported["checks"]
    for code in ("core", "checks"):
        assert not [name for name in imported[code] if name.startswith("hookscope.interp")]


@pytest.mark.parametrize(("module", "last"), ASKED.items())
def test_dir_has_the_public_names_alone_and_they_come_when_asked_for(
    module: str, last: str, imported: dict[str, set[str]]
) -> None:
    assert f"hookscope.{last}" in imported[module]
