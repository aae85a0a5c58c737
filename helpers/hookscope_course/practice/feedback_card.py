"""The short messages under a cell: notes, hints, what a check says, and a solution's code."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Literal

from hookscope.pictures.colors import follow_page

CheckOutcome = Literal["not attempted", "wrong", "right"]
HEADINGS: dict[CheckOutcome, str] = {"not attempted": "Not attempted:", "wrong": "Not yet.", "right": "Right."}


@dataclass(frozen=True, repr=False)
class Card:
    """A short message under a cell: words and a sign, as plain text and as HTML; never by colour alone."""

    heading: str
    message: str
    kind: Literal["note", "not attempted", "wrong", "right"] = "note"
    printed: str = ""

    def sentence(self) -> str:
        """Return the message as it stands behind the heading: its first letter and its end fit."""
        # A word of code and a variable keep their case. What ends in a block of code or an item of a list has no end.
        starts = self.heading.endswith(".") and re.match(r"(a|[a-z]{2,})\b(?![_.(\[]| *=)", self.message)
        text = self.message[:1].upper() + self.message[1:] if starts else self.message
        last = text.rpartition("\n")[2]
        ends = re.search(r"([\w`'\"\]}%]|[^.?!]\))$", text) and not re.match(rf"```|{_ITEM}", last)
        return f"{text}." if ends else text

    def __repr__(self) -> str:
        text = f"{self.heading} {self.sentence()}"
        return f"{text}\nPrinted while checking:\n{self.printed}" if self.printed else text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        sign, border = _LOOKS[self.kind]
        printed = f"<pre>Printed while checking:\n{html.escape(self.printed)}</pre>" if self.printed else ""
        return {
            "text/plain": repr(self),
            "text/html": f'<div role="status" style="border-left: 4px {border}; padding: 0.2em 0.8em">'
            f'<strong><span aria-hidden="true">{sign}</span> {_convert_to_html(self.heading)}</strong> '
            f"{_convert_to_html(self.sentence())}{printed}</div>",
        }


_LOOKS = {
    "note": ("ℹ", f"solid {follow_page('accent')}"),
    "not attempted": ("…", f"dotted {follow_page('line')}"),
    "wrong": ("✗", f"dashed {follow_page('wrong')}"),
    "right": ("✓", f"solid {follow_page('right')}"),
}


class Feedback(Card):
    """What `check` answers: its `outcome`, a `message`, and what the learner's code `printed` meanwhile."""

    @property
    def outcome(self) -> CheckOutcome:
        """Return "right", "wrong" or, with a blank still in the answer, "not attempted"."""
        assert self.kind != "note"
        return self.kind


@dataclass(frozen=True, repr=False)
class Solution:
    """The solution's code: plain text to copy, and a highlighted block where Markdown is shown.

    A cell shows its last value only. So a hint that the same cell asked for stands above the code.
    """

    code: str
    hint: Card | None = None

    def __repr__(self) -> str:
        code = self.code.rstrip("\n")
        return f"{self.hint!r}\n\n{code}" if self.hint else code

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", self.code)), default=0))
        code = self.code.rstrip("\n")
        above = f"**{self.hint.heading}** {self.hint.sentence()}\n\n" if self.hint else ""
        return {"text/plain": repr(self), "text/markdown": f"{above}{fence}python\n{code}\n{fence}"}


_ITEM = r"[ \t]*(?:[-*•]|[A-Z][:)]|\d+[.)])[ \t]"
_CODE_BLOCK = r"\n?```\w*\n(.*?)\n```\n?"


def unwrap_lines(text: str) -> str:
    """Join the lines of each paragraph; code blocks, items and paragraphs stay apart."""
    parts = re.split(_CODE_BLOCK, text.strip("\n"), flags=re.DOTALL)
    for at, part in enumerate(parts):
        joined = re.sub(rf"(?<!\n)\n(?!\n|{_ITEM})[ \t]*", " ", part)
        parts[at] = f"\n```\n{part}\n```\n" if at % 2 else joined
    return "".join(parts).strip("\n")


def _convert_to_html(text: str) -> str:
    words_and_blocks = re.split(_CODE_BLOCK, html.escape(text), flags=re.DOTALL)
    for at, part in enumerate(words_and_blocks):
        if at % 2:
            words_and_blocks[at] = f"<pre><code>{part}</code></pre>"
        else:
            words_and_blocks[at] = _MARKS.sub(_mark_as_html, part).replace("\n", "<br>")
    return "".join(words_and_blocks)


# Code, strong words and emphasis, as in `guess_widget.js`. In 2 * 3 and in *args, a star stays a star.
_MARKS = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|\*\*(?P<strong>[^\s*]|[^\s*][^\n]*?[^\s*])\*\*"
    r"|(?<![\w*])\*(?P<em>[^\s*]|[^\s*][^*\n]*?[^\s*])\*(?![\w*])"
)


def _mark_as_html(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>{found[found.lastgroup or 0]}</{found.lastgroup}>"
