"""Cut the built pages into sections for the search, and find links that lead nowhere."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from hookscope_course.figures.fact_check.figure import read_claims

# A chooser's row is an answer; a claim or a contributor's page seldom is.
_WEIGHTS = {
    "91_chooser": 1.1,
    "90_claims": 0.35,
    "contributing": 0.3,
    "changelog": 0.3,
    "benchmarks": 0.6,
    "limits": 0.7,
}
_NOT_FOR_LEARNERS = ("genindex", "search", "py-modindex", "404", "teaching/", "deploy/")
_VERDICTS = {
    "holds": "True",
    "partly": "Partly true",
    "outdated": "Outdated",
    "wrong": "False",
    "cannot tell": "Unclear",
}
_ASKED = "Also asked as: "
_SINCE = " · since torch "
_TYPED: dict[str, str] = tomllib.loads(Path(__file__).with_name("search_phrases.toml").read_text(encoding="utf-8"))
_CODE = {"cell", "live", "guess", "score", "told"}
_BLOCKS = ("p", "li", "td", "th", "dd", "figcaption", "summary", "caption")
_NO_TEXT = ("section", "script", "style", "button", "h1", "h2", "h3", "h4", "h5", "h6")


def split_pages(folder: Path) -> list[dict[str, Any]]:
    """Every section of every page.

    Returns:
        `{"url", "page", "heading", "asked", "typed", "prose", "code", "weight"}` for each.

    """
    found = []
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(_NOT_FOR_LEARNERS):
            found += list(_split_page(path, name))
        if name == "90_claims.html":
            found += list(_list_claims(name))
    return found


def _list_claims(name: str) -> Iterator[dict[str, Any]]:
    """A section for each claim: its verdict stands before it, and what torch does is its text."""
    for row in read_claims()["claims"].values():
        yield {
            "url": f"{name}#{row['id']}",
            "page": "Claims about hooks, tested",
            "heading": f"{_VERDICTS[row['verdict']]}: “{row['text'].rstrip('.')}”",
            "asked": "",
            "typed": "",
            "prose": row["does"],
            "code": "",
            "weight": _WEIGHTS["90_claims"],
        }


def _split_page(path: Path, name: str) -> Iterator[dict[str, Any]]:
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    for claim in page.select("details[id^=D]") if name == "90_claims.html" else ():
        claim.decompose()  # without its verdict, it would read like an answer
    title = _words(page.h1) if page.h1 else name
    typed = _TYPED.get(name.removesuffix(".html"), "")
    weight = next((each for start, each in _WEIGHTS.items() if name.startswith(start)), 1.0)
    for section in page.select("article section[id]"):
        heading = section.find(re.compile("^h[1-6]$"), recursive=False)
        if heading is None:
            continue
        prose, code = _split(section)
        asked = re.search(rf"{_ASKED}([^.]*)\.", prose)
        # What stands below a chooser's answer (the hook, its release, other words for it) is found, but not shown.
        prose, below, more = re.sub("^Fast track ", "", prose).partition(_SINCE)
        if below:
            prose, _, hook = prose.rpartition("\n")  # a paragraph of its own
            code = f"{code} {hook}{below}{more}"
        names = " ".join(str(each["id"]) for each in section.select(":scope > dl > dt[id]"))
        yield {
            "url": f"{name}#{section['id']}",
            "page": title,
            "heading": _words(heading),
            "asked": f"{asked[1] if asked else ''} {names}".strip(),
            "typed": typed if heading.name == "h1" else "",
            "prose": prose[:5000],
            "code": code[:3000],
            "weight": weight * (0.5 if heading.get_text().startswith("Exercise") else 1.0),
        }


def _split(section: Tag) -> tuple[str, str]:
    """The prose of a section, without its heading and the sections in it, and its code with what that showed."""
    prose, code = list[str](), list[str]()
    block: Tag | None = None
    for string in section.find_all(string=True):
        parts: list[Tag] = list(takewhile(lambda part: part is not section, string.parents))
        left_out = any(part.name in _NO_TEXT for part in parts)
        if left_out or type(string) is not NavigableString:  # comments are strings, too
            continue
        classes = {each for part in parts for each in part.get_attribute_list("class")}
        is_code = classes & _CODE or any(part.name in ("pre", "dt", "summary") for part in parts)
        if is_code:
            code.append(string)
            continue
        # A line for each paragraph, list item and cell: no sentence of an excerpt begins in one and ends in another.
        here = next((part for part in parts if part.name in _BLOCKS), None)
        words = str(string).replace("\n", " ")
        prose.append(f"\n{words}" if here is not block else words)
        block = here
    lines = (" ".join(line.split()) for line in "".join(prose).split("\n"))
    return "\n".join(filter(None, lines)), " ".join(" ".join(code).split())


def _words(part: Tag) -> str:
    return " ".join(part.get_text(" ").replace("¶", "").split()).removesuffix(" #")


def write(folder: Path) -> int:
    """Write the script that the search page reads; return how many sections it has."""
    found = split_pages(folder)
    script = f"window.hookscopeSections = {json.dumps(found, ensure_ascii=False)};\n"
    (folder / "_static" / "sections.js").write_text(script, encoding="utf-8")
    return len(found)


def find_broken_links(folder: Path) -> list[str]:
    """Links of the site that lead to no page, or to no place on it, as "page: link"."""
    pages = {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in folder.rglob("*.html")}
    names = {path: {tag["id"] for tag in page.select("[id]")} for path, page in pages.items()}
    broken = []
    for path, page in pages.items():
        for tag in page.select("a[href], img[src], script[src], link[href]"):
            link = str(tag.get("href") or tag.get("src"))
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in names and anchor not in names[target]):
                broken.append(f"{path.relative_to(folder)}: {link}")
    return broken
