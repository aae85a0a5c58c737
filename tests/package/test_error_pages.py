"""Pages in docs/errors: messages name them, and their examples raise the message that they show."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookscope.error_pages import SITE
from lessons.site.pages import map_files_to_pages
from tests.shared import ROOT

PAGES = sorted((ROOT / "docs" / "errors").glob("*.md"))
SOURCES = [*(ROOT / "helpers").rglob("*.py")]


def parse_page(page: Path) -> tuple[str, str, list[str]]:
    """Return the text of a page, the message that it shows, and its Python code."""
    text = page.read_text("utf-8")
    shown = re.search(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert shown, f"{page.name} shows no message"
    return text, " ".join(shown[1].split()), re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def find_named() -> Iterator[str]:
    """Yield the pages that messages of the package name."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(text)) if "append_page(" in (text := _read(source)) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "append_page":
                page = node.args[1]
                assert isinstance(page, ast.Constant), f"{source.name}: name the page as a string"
                yield f"{page.value}.md"


def test_messages_and_pages_name_each_other() -> None:
    assert {page.name for page in PAGES} == {*find_named()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_raises_what_it_shows_and_its_fix_runs(page: Path) -> None:
    text, shown, (example, *fixes) = parse_page(page)
    assert len(text.splitlines()) <= 40
    assert shown.endswith(f"See {SITE}/errors/{page.stem}.html")
    names: dict[str, Any] = {}
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the next line compares type and message
        run(example, page, names)
    assert f"{caught.type.__name__}: {caught.value}" == shown
    for fix in fixes:
        run(fix, page, names)


def test_every_address_in_the_package_is_a_page_of_the_site() -> None:
    pages = {*map_files_to_pages().values()}
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert urls["Documentation"] == SITE
    named = re.findall(rf"{re.escape(SITE)}/([\w/]+)\.html", "\n".join([*urls.values(), *map(_read, SOURCES)]))
    assert len(named) > 20
    assert {*named} <= pages
    assert not [source.name for source in SOURCES if re.search(r"docs/(errors|limits)/\w", _read(source))]


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def run(code: str, page: Path, names: dict[str, Any]) -> None:
    exec(compile(code, str(page), "exec"), names)
