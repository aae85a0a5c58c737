"""Without the packages that only some functions need, the rest works, and what is missing is named with a way to it."""

from __future__ import annotations

import re

import pytest

import hookscope
from hookscope.extras import optional_import
from tests.shared import ROOT
from tests.shared.fresh_interpreters import run_afresh

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


ALL_THERE = """
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


TRY_ALL = f"""
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


def test_without_extras_all_is_there_and_what_is_missing_is_named_with_a_way_that_works() -> None:
    shown, tried = run_afresh([REFUSE + ALL_THERE, REFUSE + TRY_ALL])
    assert "channel" in shown
    said = dict(line.split(" | ") for line in tried.splitlines())
    assert said.keys() == MISSING.keys()
    for line, package in MISSING.items():
        also = "" if package == "pandas" else ", or all packages: "  # no extra brings it
        assert f" needs {package}: pip install {package}{also}" in said[line], said[line]
        assert ("all packages" in said[line]) == bool(also)


def test_nobody_is_sent_to_a_name_on_an_index_that_is_not_ours() -> None:
    files = [*(ROOT / "helpers").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    name = r"pip install ['\"]?hookscope(?!-[^ ]*\.whl)"  # a file that one has is meant by its name
    assert not [file.name for file in files if re.search(name, file.read_text("utf-8"))]


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
