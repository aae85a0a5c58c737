"""Every file of the package has a sentence of its own, and keeps the names that begin with an underscore to itself."""

from __future__ import annotations

import ast
from collections import Counter

from tests.shared import ROOT

FILES = {
    file.relative_to(ROOT).as_posix(): ast.parse(file.read_text("utf-8"))
    for file in sorted((ROOT / "helpers/hookscope").rglob("*.py"))
}


def test_no_two_files_have_the_same_sentence() -> None:
    first = Counter((ast.get_docstring(tree) or "").splitlines()[0] for tree in FILES.values())
    assert [line for line, count in first.items() if count > 1] == []


def test_no_file_imports_what_another_keeps_to_itself() -> None:
    imported = [
        (file, alias.name)
        for file, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hookscope")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert imported == []
