"""The screen of code in the README runs, and what the README says of it is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from hookscope import LayerNotFoundError, capture
from hookscope.widgets import TokenPicker
from tests.shared import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_one_screen_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"## hookscope in one screen\n\n```python\n(.*?)```", README, re.DOTALL)
    assert found
    monkeypatch.chdir(tmp_path)  # it collects into a folder
    names: dict[str, Any] = {}
    shown = []
    for line in ast.parse(found[1]).body:
        if isinstance(line, ast.Expr):  # a cell would show it
            shown.append(eval(compile(ast.Expression(line.value), "README.md", "eval"), names))
        else:
            exec(compile(ast.Module([line], []), "README.md", "exec"), names)
    (picker,) = (each for each in shown if isinstance(each, TokenPicker))
    assert picker.predictions(), "the logit lens, of which the README speaks"
    with pytest.raises(LayerNotFoundError) as error:
        capture(names["net"], "block4")
    assert f"`{error.value}`" in README
