"""The smallest figure of docs/authoring.md, made of its three blocks and its line, as a contributor would copy them."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from hookscope_course import figures
from hookscope_course.figures import registry
from tests.shared import ROOT
from tools.page_blocks import block

PAGE = ROOT / "docs" / "authoring.md"
_FOLDER = tempfile.TemporaryDirectory()  # until the process ends


@cache
def add_smallest_figure() -> ModuleType:
    """Put it beside the figures of the course; return its `promises.py`."""
    folder = Path(_FOLDER.name) / "counter"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, file in {"py": "figure.py", "js": "figure.js", "promises": "promises.py"}.items():
        (folder / file).write_text(block(PAGE, f"widget-{name}").rstrip("`").partition("\n")[2], encoding="utf-8")
    figures.__path__.append(_FOLDER.name)
    name, module, chapter = re.search(
        r'`"(\w+)": Figure\("([\w.]+)", \((\d+),\)\),`', PAGE.read_text(encoding="utf-8")
    ).groups()
    registry.FIGURES[name] = registry.Figure(module, (int(chapter),))
    return registry.load_promises(name)
