"""The teacher's page of a class's guesses: plain HTML, large enough for the last row, without a script."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

__all__ = ["Question", "page"]

SHOWN = 12  # different guesses of a question; the rest is one row
STYLE = """
:root { color-scheme: light dark; font: 1.25rem/1.4 system-ui, sans-serif }
body { max-width: 60rem; margin: 1rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 2rem }
caption { text-align: left; opacity: 0.85 }
th, td { text-align: left; padding: 0.25rem 0.75rem 0.25rem 0; vertical-align: middle }
th[scope=row] { width: 40%; font-weight: 600; overflow-wrap: anywhere }
td.n { width: 4rem; text-align: right; font-variant-numeric: tabular-nums }
.bar { height: 1.4rem; background: #3b7dd8; min-width: 2px }
nav a { display: inline-block; padding: 0.2rem 0.5rem; min-width: 1.5rem }
nav a[aria-current] { font-weight: 700; border-bottom: 3px solid #3b7dd8 }
button { font: inherit; padding: 0.3rem 1rem }
code { font-size: 0.95em }
@media print { .bar { print-color-adjust: exact } }
"""


@dataclass(frozen=True)
class Question:
    """A question of a chapter: the id of the cell that takes the guess, the heading above, and the text."""

    cell: str
    heading: str
    text: str


def page(
    chapter: str,
    questions: dict[str, Question],
    counts: dict[str, list[tuple[str, int]]],
    guessed: dict[str, int],
    xsrf: str,
) -> str:
    """Draw the page of a chapter: its questions and how many guessed what, by cell; the button sends `xsrf`."""
    title = f"Chapter {html.escape(chapter.partition('_')[0])}: what the class guessed"
    links = " ".join(
        f'<a href="?chapter={html.escape(name)}"{_current(name == chapter)}>'
        f"{html.escape(name.partition('_')[0])}{f' ({n})' if n else ''}</a>"
        for name, n in guessed.items()
    )
    tables = "\n".join(_table(question, counts[cell]) for cell, question in questions.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="5"><title>{title}</title><style>{STYLE}</style></head>
<body><h1>{title}</h1>
<nav aria-label="Chapters">{links}</nav>
{tables}
<form method="post"><input type="hidden" name="_xsrf" value="{html.escape(xsrf)}">
<button>New lesson: forget all guesses</button></form>
<p>This page reloads every 5 seconds. It counts only learners who agreed, each once, and shows no names.</p>
</body></html>
"""


def _current(is_it: bool) -> str:
    return ' aria-current="page"' if is_it else ""


def _table(question: Question, rows: list[tuple[str, int]]) -> str:
    everybody = sum(n for _, n in rows)
    shown, rest = rows[:SHOWN], sum(n for _, n in rows[SHOWN:])
    if rest:
        shown = [*shown, (f"{len(rows) - SHOWN} other guesses", rest)]
    most = max((n for _, n in shown), default=1)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(guess) or "(nothing)"}</th><td class="n">{n}</td>'
        f'<td><div class="bar" style="width: {100 * n // most}%"></div></td></tr>'
        for guess, n in shown
    )
    nobody = "<tr><td>Nobody yet.</td></tr>"
    return (
        f"<h2>{_words(question.heading)}</h2>\n<div>{_words(question.text)}</div>\n"
        f"<table><caption>{everybody} {'guess' if everybody == 1 else 'guesses'}</caption>\n{body or nobody}</table>"
    )


def _words(markdown: str) -> str:
    """Paragraphs, items, code and stress of a question; nothing else is in them."""
    text = html.escape(markdown)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*?(\S[^*]*)\*\*?", r"<em>\1</em>", text)
    return re.sub(r"\n- ", "<br>– ", text).replace("\n\n", "<br>")
