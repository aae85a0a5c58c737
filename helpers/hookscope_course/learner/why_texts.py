"""Find the reason behind the answer of a question: the text *Why* of its section."""

from __future__ import annotations

import json
import re
from functools import cache

from hookscope_course.paths import NOTEBOOKS

__all__ = ["cut_reasons", "read_reason"]

_SECTION = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_WHY = re.compile(r"^\*\*Why\.\*\* ", re.MULTILINE)
_ABOUT = re.compile(r"about=\"(\d\d\.\d+)\"")


def cut_reasons(source: str) -> list[tuple[str, bool]]:
    r"""Cut a text of Markdown at its reasons; each goes on to the next heading.

    Returns:
        The parts, each with whether it is a reason.

    Example:
        >>> cut_reasons("It runs.\n\n**Why.** It is 70.\n\n## Next")
        [('It runs.', False), ('**Why.** It is 70.', True), ('## Next', False)]

    """
    parts: list[tuple[str, bool]] = []
    text = ""
    for section in _SECTION.split(source):
        before, *why = _WHY.split(section, maxsplit=1)
        text += before
        if why:
            parts += [(text, False), (f"**Why.** {why[0]}", True)]
            text = ""
    parts.append((text, False))
    return [(text.strip("\n"), is_reason) for text, is_reason in parts if text.strip()]


def read_reason(about: str) -> str:
    """Return the reason that belongs to a question, as Markdown.

    Args:
        about: chapter and section, such as "03.1".

    Raises:
        LookupError: no page has it.

    """
    reasons = _read_reasons(about.partition(".")[0])
    if about not in reasons:
        raise LookupError(f"no page of the course has a reason for question {about!r}")
    return reasons[about]


@cache
def _read_reasons(chapter: str) -> dict[str, str]:
    """The reasons of a chapter by question, from its built notebook: a wheel has no other text of the lessons."""
    reasons: dict[str, str] = {}
    asked = ""
    for path in NOTEBOOKS.glob(f"{chapter}_*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                asked = found[1] if (found := _ABOUT.search(source)) else asked
            else:
                for text in (text for text, is_reason in cut_reasons(source) if is_reason):
                    reasons[asked] = text
    return reasons
