"""The screen of code in the README runs, and what the README says of it is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hookscope import LayerNotFoundError, capture
from tests.shared import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_one_screen_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"## hookscope in one screen\n\n```python\n(.*?)```", README, re.DOTALL)
    assert found
    monkeypatch.chdir(tmp_path)  # it collects into a folder
    names: dict[str, Any] = {}
    exec(compile(found[1], "README.md", "exec"), names)
    picker = names["hookscope"].widgets.TokenPicker(names["model"], names["text"])
    assert picker.predictions(), "the logit lens, of which the README speaks"
    with pytest.raises(LayerNotFoundError) as error:
        capture(names["net"], "block4")
    assert f"`{error.value}`" in README
