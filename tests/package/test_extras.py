"""Without the packages that only some functions need, the rest works, and what is missing is named with a way to it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import hookscope
from hookscope.extras import optional_import
from tests.shared import PATIENCE, ROOT

EXTRAS = (
    "anywidget", "ipywidgets", "traitlets", "IPython", "matplotlib", "pandas", "safetensors", "torchvision",
)  # fmt: skip
REFUSE = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def without_extras(code: str) -> str:
    command = [sys.executable, "-c", REFUSE + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_everything_public_is_there_without_extras() -> None:
    code = """
from hookscope import *
import hookscope
assert hasattr(hookscope, "widgets") and hookscope.widgets is widgets
assert all(hasattr(hookscope, name) for name in hookscope.__all__)
assert "capture" in dir(hookscope)
assert set(widgets.__all__) <= set(dir(widgets))
from torch import nn, ones
with capture(nn.ReLU()) as seen:
    pass
print(feature_grid(ones(1, 1, 2, 2)), explain(seen), graph(ones(1, requires_grad=True)))
"""
    assert "channel" in without_extras(code)


MISSING = {
    **{f"hookscope.widgets.{name}": "anywidget" for name in hookscope.widgets.__all__},
    "from hookscope.widgets import LayerPicker": "anywidget",
    "from hookscope.widgets import *": "anywidget",
    "hookscope.gradient_flow(seen)": "matplotlib",
    "recording.picture()": "matplotlib",
    "attention.picture()": "matplotlib",
    "attention[0].picture()": "matplotlib",
    "hookscope.graph(torch.ones(1, requires_grad=True)).picture()": "matplotlib",
    "seen.to_pandas()": "pandas",
    "hookscope.collect(torch.nn.ReLU().eval(), [torch.ones(2, 1)], to='nowhere')": "safetensors",
    "hookscope.samples.digits()": "safetensors",
    "hookscope.samples.digit_cnn()": "safetensors",
    "hookscope.samples.story_lm()": "safetensors",
    "hookscope.samples.photo()": "safetensors",
}


def test_what_is_missing_is_named_with_a_way_that_works() -> None:
    code = f"""
import torch, hookscope
with hookscope.capture(torch.nn.ReLU()) as seen, hookscope.record(torch.nn.ReLU()) as recording:
    seen._model(torch.ones(1))
    recording.watch(torch.ones(1, requires_grad=True) * 2, "y").sum().backward()
attention = hookscope.attention(torch.nn.MultiheadAttention(2, 1), *[torch.ones(1, 1, 2)] * 3)
for line in {list(MISSING)!r}:
    try:
        exec(line)
    except ModuleNotFoundError as error:
        print(line, "|", error)
    else:
        print(line, "| nothing raised")
"""
    said = dict(line.split(" | ") for line in without_extras(code).splitlines())
    assert said.keys() == MISSING.keys()
    for line, package in MISSING.items():
        also = "" if package == "pandas" else ", or all packages: "  # no extra brings it
        assert f" needs {package}: pip install {package}{also}" in said[line], said[line]
        assert ("all packages" in said[line]) == bool(also)


def test_nobody_is_sent_to_a_name_on_an_index_that_is_not_ours() -> None:
    files = [*(ROOT / "helpers").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    name = r"pip install ['\"]?hookscope(?!-[^ ]*\.whl)"  # a file that one has is meant by its name
    assert not [file.name for file in files if re.search(name, file.read_text("utf-8"))]


def test_the_star_imports_nothing_heavy() -> None:
    code = f"from hookscope import *\nimport sys\nprint(*set({EXTRAS!r}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert not done.stdout.strip()


def test_an_error_that_is_not_about_a_missing_package_is_left_alone() -> None:
    with pytest.raises(ImportError, match="half installed") as caught, optional_import("this"):
        raise ImportError("half installed")
    assert not isinstance(caught.value, ModuleNotFoundError)
    with pytest.raises(ModuleNotFoundError, match="without a name"), optional_import("this"):
        raise ModuleNotFoundError("without a name")
    with pytest.raises(AttributeError, match="hookscope has no 'captur'; did you mean 'capture'"):
        _ = hookscope.captur
    with pytest.raises(AttributeError, match=r"module 'hookscope\.widgets' has no attribute 'Nothing'"):
        hookscope.widgets.Nothing  # noqa: B018
