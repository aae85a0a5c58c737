"""What stands for a placeholder in a lesson: claims and verdicts, and the tables of the reference pages."""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hookscope_course.figures.chooser.figure import GROUPS
from hookscope_course.figures.fact_check.figure import SIGNS
from lessons.build import lesson_source
from lessons.build.lesson_source import claims, name_of

VERDICTS = {
    "holds": "Holds",
    "partly": "Partly true",
    "outdated": "Outdated",
    "wrong": "Wrong",
    "cannot tell": "Cannot tell",
}
LONG = 12  # letters of a name that may go on in the next line of a table's cell


def fill(what: str, name: str) -> str:
    """Return what stands for the placeholder `{{what name}}`.

    Raises:
        LookupError: there is no such placeholder, claim, document or row; says which.

    """
    if what not in PLACEHOLDERS:
        raise LookupError(f"there is no placeholder '{what}'; there are: {', '.join(PLACEHOLDERS)}")
    return PLACEHOLDERS[what](name)


def make_heading_fragment(heading: str) -> str:
    """The fragment by which JupyterLab, and a forge that shows the notebook, find a heading of the same page.

    Only for headings in ASCII: of others a browser writes a fragment that JupyterLab does not decode.
    """
    return heading.replace("`", "").replace(" ", "-")


def make_cell_fragment(heading: str) -> str:
    """The fragment by which a link finds a heading of another notebook: the id of its cell.

    It works in a notebook that is only being opened, by JupyterLab 4.6. The name of the heading does not: the headings
    are drawn later, and a name such as "3 · Hooks" is not found at all.
    """
    return f"cell-id={lesson_source.cell_id(lesson_source.heading_key(heading))}"


def make_link(chapter: int, section: int | str) -> str:
    """A link to a chapter's section, given by its number or its heading.

    Raises:
        LookupError: there is no such chapter, or no such section in it.

    """
    for path in lesson_source.chapter_files():
        if name_of(path).startswith(f"{chapter:02}_"):
            for heading in lesson_source.headings(path):
                if heading == section or heading.startswith(f"{section} · "):
                    label = f", section {section}" if isinstance(section, int) else ""
                    return f"[{chapter:02}{label}]({name_of(path)}.ipynb#{make_cell_fragment(heading)})"
            raise LookupError(f"chapter {chapter:02} has no section '{section}'")
    raise LookupError(f"there is no chapter {chapter:02}")


def make_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def make_breakable(cell: str) -> str:
    """Let a long name in a table's cell go on in the next line, after "_" or ".": the table fits a narrow page."""

    def as_html(code: re.Match[str]) -> str:
        parts = re.sub(r"(?<=[_.])(?=[^_.])", "<wbr>", html.escape(code[1], quote=False))
        return f"<code>{parts.replace('_', '&#95;')}</code>"  # between two tags, Markdown reads _a_ as emphasis

    return re.sub(rf"`([^\W\d][\w.]{{{LONG},}})`", as_html, cell)


# -- claims -------------------------------------------------------------------------------------------------------


def claim_named(name: str) -> dict[str, Any]:
    """A row of claims.toml."""
    if name not in claims()["claims"]:
        raise LookupError(f"claims.toml has no claim '{name}'")
    return dict(claims()["claims"][name])


def claim(name: str) -> str:
    """A claim, in our words."""
    return f"**{name}** · *The document says:* {claim_named(name)['text']}"


def verdict(name: str) -> str:
    """What is true of a claim."""
    row = claim_named(name)
    since = f" since torch {row['since']}" if row.get("since") else ""
    return f"**Verdict on {name}: {VERDICTS[row['verdict']].lower()}{since}.**"


def describe_behavior(name: str) -> str:
    """What torch does where the document claims this, and the chapter that is about it."""
    row = claim_named(name)
    (chapter,) = [path for path in lesson_source.chapter_files() if name_of(path).startswith(f"{row['chapter']:02}_")]
    return f"**What torch does.** {row['does']} Taught in [chapter {row['chapter']:02}]({name_of(chapter)}.ipynb)."


def list_run_claims(document: str) -> list[str]:
    """The claims of a document that run on the ledger's own page, in order: those of which runs/ has a fragment."""
    runs = lesson_source.data_file("claims.toml").parent / "runs"
    names = (path.stem for path in runs.glob(f"{document}.*.md"))
    return sorted(names, key=lambda name: int(name.partition(".")[2]))


def describe_repeated_claim(name_and_section: str) -> str:
    """One line for a claim that only repeats a section of the page: verdict, section, the way to where it runs."""
    name, _, section = name_and_section.partition(" ")
    row = claim_named(name)
    if name not in list_run_claims(row["document"]):
        raise LookupError(f"claim {name} does not run on the ledger: 90_claims/runs/{name}.md is missing")
    since = f" since torch {row['since']}" if row.get("since") else ""
    shown = f" Section {section} shows it." if section else ""
    ledger = f"[Run it on the ledger page](90_claims.ipynb#{make_cell_fragment(name)})."
    return f"- **{name}** {row['text']} *{VERDICTS[row['verdict']]}{since}.*{shown} {ledger}"


def count_verdicts(rows: list[dict[str, Any]]) -> str:
    """How many claims have which verdict."""
    count = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{sign} {count[name]}" for name, sign in SIGNS.items() if count[name])


def document(name: str) -> str:
    """The beginning of the section about one document: what it is, and how many of its claims have which verdict."""
    if name not in claims()["documents"]:
        raise LookupError(f"claims.toml has no document '{name}'")
    of = claims()["documents"][name]
    rows = [row for row in claims()["claims"].values() if row["document"] == name]
    called = f', called "{of["name"]}"' if "name" in of else ""
    parts = [
        f"## {name}: {of['title']}",
        f"*{of['kind']}{called} · author: {of['author']} · in {of['language']} · {of['date']}*",
        of["summary"].strip(),
        f"{len(rows)} claims: {count_verdicts(rows)}.",
    ]
    return "\n\n".join(parts)


def claims_count(_: str) -> str:
    """How many claims there are, and how many have which verdict."""
    rows = list(claims()["claims"].values())
    return f"{len(rows)} claims of {len(claims()['documents'])} documents: {count_verdicts(rows)}"


# -- drawings -------------------------------------------------------------------------------------------------------


def drawing(name: str) -> str:
    """An SVG from the folder of a lesson, with what its `desc` says for those who cannot see it."""
    svg = lesson_source.data_file(f"{name}.svg").read_text(encoding="utf-8")
    found = re.search(r"<desc>(.+?)</desc>", svg, re.DOTALL)
    if not found:
        raise LookupError(f"{name}.svg has no desc")
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img class="sheet" alt="{html.escape(found[1])}" src="data:image/svg+xml;base64,{data}">'
    return f'<div class="sheet-box" tabindex="0" role="group" aria-label="The drawing">{image}</div>'


# -- chooser ------------------------------------------------------------------------------------------------------


def option(row: dict[str, Any]) -> str:
    """The option that a row's hook needs, if it needs one."""
    return f" with `{row['option']}=True`" if "option" in row else ""


def chooser() -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """The groups of the chooser: heading, and for each row text, snippet, where its output holds, what others show."""
    rows, found = lesson_source.rows_of("chooser.toml", "want"), []
    for group, heading in GROUPS.items():
        sections = []
        for row in (row for row in rows if row["group"] == group):
            facts = [" and ".join(f"`{hook}`" for hook in row["hooks"]) + option(row), f"since torch {row['since']}"]
            if "chapter" in row:
                facts.append("taught in chapter " + make_link(row["chapter"], row["section"]))
            # Whoever looks for other words finds the row by them, in the browser's search as in a site's.
            parts = [f"### {row['want']}", row["answer"], f"```python\n{row['lines'].strip()}\n```"]
            parts += [" · ".join(facts), f"Also asked as: {row['also']}."]
            sections.append(
                ("\n\n".join(parts), row["snippet"].strip(), row.get("holds_for", ""), row.get("before", ""))
            )
        if sections:
            found.append((f"## {heading}", sections))
    return found


# -- glossary -----------------------------------------------------------------------------------------------------


def glossary(_: str) -> str:
    """The table of the glossary, and folded below it what the documents call the terms."""
    rows = lesson_source.rows_of("glossary.toml", "term")
    lines = [
        (
            f"**{row['english']}**",
            make_breakable(row["meaning"]),
            # Short, as the column is the narrowest.
            make_link(row["chapter"], row["section"]).replace(", section ", "\u00a0§\u00a0")
            if "chapter" in row
            else make_chooser_link(row["want"]),
        )
        for row in rows
    ]
    said = [
        (row["english"], row.get("korean", ""), row.get("chinese", ""))
        for row in rows
        if {"korean", "chinese"} & {*row}
    ]
    return (
        f"{make_table(('Term', 'What it means', 'Shown in'), lines)}\n\n"
        "<details><summary>Details: the Korean and Chinese words of the five documents</summary>\n\n"
        "An empty cell means that these documents write the English word, or do not use the term.\n\n"
        f"{make_table(('English', 'Korean (D0 to D3)', 'Chinese (D4)'), said)}\n\n</details>"
    )


def make_chooser_link(want: str) -> str:
    """A link to a row of the chooser.

    Raises:
        LookupError: the chooser has no such row.

    """
    if want not in {row["want"] for row in lesson_source.rows_of("chooser.toml", "want")}:
        raise LookupError(f"chooser.toml has no want '{want}'")
    (page,) = [name_of(path) for path in lesson_source.reference_files() if name_of(path).endswith("_chooser")]
    return f"[chooser]({page}.ipynb#{make_cell_fragment(want)})"


PLACEHOLDERS: dict[str, Callable[[str], str]] = {
    "claim": claim,
    "verdict": verdict,
    "repeats": describe_repeated_claim,
    "document": document,
    "claims_count": claims_count,
    "drawing": drawing,
    "glossary": glossary,
}
