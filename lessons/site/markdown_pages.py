"""Write what programs read: each page as Markdown, `llms.txt`, and a sitemap if the address of the site is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from lessons.site import addresses

_EXCLUDED = ("script", "style", "button", "svg", "noscript")
_HEAD = """# hookscope

> See what happens inside a PyTorch model, change it, and learn how hooks work: a Python package, and a course of
> Jupyter notebooks. Each page below is Markdown. What a chapter asks is answered in the same section.
"""
_GROUPS = {
    "Begin": ("index", "install", "tour", "course", "where_to_begin"),
    "Look up": ("91_", "93_", "92_", "90_", "94_", "widgets"),
    "Chapters": ("0", "1"),
    "The package": ("reference/", "other_tools", "errors/", "limits/", "side_effects", "compatibility", "strict"),
    "For teachers and contributors": ("",),
}


def write(folder: Path) -> None:
    """Write all of it into the folder of the built pages."""
    found = {}
    for path in sorted(folder.rglob("*.html")):
        article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select_one("article")
        name = path.relative_to(folder).with_suffix("").as_posix()
        if article is not None and article.h1 is not None and name not in ("genindex", "search", "py-modindex"):
            path.with_suffix(".md").write_text(convert_to_markdown(article), encoding="utf-8")
            found[name] = " ".join(article.h1.get_text().replace("¶", "").split()).removesuffix("#")
    (folder / "llms.txt").write_text("\n".join(_list(found)), encoding="utf-8")
    if base := addresses.get_site_address():
        rows = "".join(f"<url><loc>{escape(base + name)}.html</loc></url>\n" for name in found)
        schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
        sitemap = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{schema}">\n{rows}</urlset>\n'
        (folder / "sitemap.xml").write_text(sitemap, encoding="utf-8")
        (folder / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n", encoding="utf-8")


def _list(titles: dict[str, str]) -> Iterator[str]:
    yield _HEAD
    left = dict(titles)
    for group, starts in _GROUPS.items():
        names = [name for start in starts for name in left if name.startswith(start)]
        yield f"## {group}\n"
        yield from (f"- [{left.pop(name)}]({addresses.get_site_address()}{name}.md)" for name in dict.fromkeys(names))
        yield ""


def convert_to_markdown(article: Tag) -> str:
    """Return a page as Markdown: its text, code, tables, and what its images show.

    Example:
        >>> page = "<article><h1>A<a class='headerlink'>¶</a></h1><p>The <code>b</code>.</p><pre>x = 1</pre></article>"
        >>> print(convert_to_markdown(BeautifulSoup(page, "html.parser").article))
        # A
        <BLANKLINE>
        The `b`.
        <BLANKLINE>
        ```
        x = 1
        ```
        <BLANKLINE>

    """
    return "\n\n".join(part for part in _blocks(article) if part.strip()) + "\n"


def _blocks(part: Tag) -> Iterator[str]:
    words: list[str] = []  # what stands between two blocks
    for child in part.children:
        if not isinstance(child, Tag) or child.name in _INLINE:
            words.append(_words(child))
            continue
        yield "".join(words).strip()
        words = []
        yield from _block(child)
    yield "".join(words).strip()


def _block(part: Tag) -> Iterator[str]:
    if part.name in _EXCLUDED:
        return
    if found := re.fullmatch("h([1-6])", part.name):
        yield f"{'#' * int(found[1])} {_line(part)}"
    elif part.name == "p":
        yield _line(part)
    elif part.name == "summary":
        yield f"**{_line(part)}**"
    elif part.name == "pre":
        python = part.find_parent(class_="highlight-ipython3") or part.find_parent(class_="highlight-python")
        code = part.get_text().strip("\n")
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        yield f"{fence}{'python' if python else ''}\n{code}\n{fence}"
    elif part.name in ("ul", "ol"):
        yield "\n".join(_items(part))
    elif part.name == "table":
        yield "\n".join(_rows(part))
    else:
        yield from _blocks(part)


def _items(part: Tag) -> Iterator[str]:
    for number, item in enumerate(part.find_all("li", recursive=False), 1):
        sign = f"{number}. " if part.name == "ol" else "- "
        lines = "\n\n".join(each for each in _blocks(item) if each).split("\n")
        yield sign + f"\n{' ' * len(sign)}".join(lines)


def _rows(part: Tag) -> Iterator[str]:
    if part.caption:
        yield f"{_line(part.caption)}\n"
    for number, row in enumerate(part.find_all("tr")):
        cells = [_line(cell).replace("|", r"\|") for cell in row.find_all(["th", "td"])]
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{' --- |' * len(cells)}"


_INLINE = ("a", "abbr", "b", "br", "code", "em", "i", "img", "kbd", "output", "small", "span", "strong", "sub", "sup")
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}


def _line(part: Tag) -> str:
    return " ".join("".join(map(_words, part.children)).split())


def _words(part: object) -> str:
    if isinstance(part, NavigableString):
        return str(part) if type(part) is NavigableString else ""  # comments are strings, too
    assert isinstance(part, Tag)
    if part.name in _EXCLUDED or "headerlink" in part.get_attribute_list("class"):
        return ""
    if part.name == "img":
        return f"[Image: {part['alt']}]" if part.get("alt") else ""
    if part.name == "code":
        return f"`{part.get_text()}`"
    inside = "".join(map(_words, part.children))
    if part.name == "a" and part.get("href") and inside.strip():
        target = re.sub(r"^(?!\w+:)([^#]+)\.html", r"\1.md", str(part["href"]))
        return f"[{inside.strip()}]({target})"
    mark = _MARKS.get(part.name, "") if inside.strip() else ""
    return f"{mark}{inside}{mark}"
