"""Draw behaviors over releases: a bar for each answer with the answer in it, and a black line where it changed."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from hookscope.pictures.palette import VIRIDIS
from hookscope.pictures.picture import Picture
from hookscope_course.history.records import (
    FACTS,
    MISSING,
    change_table,
    full_history,
    history,
    releases,
    shorten_answer,
)

__all__ = ["by_danger", "changing", "chart"]

_WIDE = 584  # pixels: what a narrow page has
_LINE, _BAR, _NOTE, _GAP = 17, 21, 15, 8  # pixels: a label, a bar, a line below it, and between rows
_HEAD, _TURNED = 34, 80  # pixels: the line of releases, and where they are written upwards
_LEVEL = 42  # pixels: a column that has room for a release without turning it
_AGAIN = 12  # rows: after so many the releases stand there again
_MARGIN = 5  # pixels: left and right of the words in a bar
_SHADES = (40, 135, 185, 220, 250)  # of viridis, for the first answer, the second …: far apart in lightness
_NOT_YET = "not there yet"
_LABELS, _WORDS = 13, 11  # the sizes of the letters


class Bar(NamedTuple):
    """Releases side by side that give the same answer.

    Args:
        first: the place of its first column.
        columns: how many it covers.
        when: the releases, as "1.8 to 2.3" or "since 2.13".
        answer: what they answer.
        shade: 0 for the first answer of the row, 1 for the next that is new …; -1 if torch has no such thing.

    """

    first: int
    columns: int
    when: str
    answer: str
    shade: int


def changing() -> list[str]:
    """Return the facts that some releases answer otherwise than others, by the release of their first change."""
    at = {name: _first_change(name) for name in full_history()}
    return sorted((name for name in at if at[name]), key=lambda name: at[name])


def by_danger(then: str) -> list[str]:
    """Return the facts that changed, those first in which code of a release is wrong today without an error.

    First numbers, then shapes, then warnings and errors, then names of graph nodes and lists of functions. The last
    ones changed before that release, or it did not have them.

    Args:
        then: the release that the code was written for.

    """

    def danger(name: str) -> int:
        before, today = history(name)[then], history(name)[releases()[-1]]
        if before in (today, MISSING):
            return 5
        if name.startswith("node_") or (_count(today) and not today.isdecimal()):
            return 4
        if re.match(r"\w*(?:Error|Warning)", today):
            return 2
        return 1 if today.startswith("[") else 0

    return sorted(changing(), key=danger)


def chart(names: Sequence[str], title: str, marked: str = "", then: str = "") -> Picture:
    """Draw some facts as every release answers them.

    Each row has a bar for each answer, with the answer in it. A black line stands where it changed. What does not fit
    into a bar stands below it. Releases side by side that are alike in every row share a column.

    Args:
        names: of facts that every release was asked for, one row each.
        title: a sentence for the picture.
        marked: a release whose column is framed.
        then: a release; the label of a row says what it answered, if today's answer is another.

    """
    rows = {name: [*history(name).values()] for name in names}
    groups = _alike(rows)
    wide = _WIDE // len(groups)
    strips = []
    for at, (name, answers) in enumerate(rows.items()):
        if at % _AGAIN == 0:
            strips.append(_heads(groups, wide))
        strips.append(_row(_label(name, then), _bars(answers, groups), wide))
    image = Image.new("RGB", (_WIDE, sum(strip.height for strip in strips)), "white")
    top = 0
    for strip in strips:
        image.paste(strip, (0, top))
        top += strip.height
    if marked:
        (x,) = (wide * at for at, group in enumerate(groups) if releases().index(marked) in group)
        box = (max(0, x - 1), 0, min(_WIDE - 1, x + wide), image.height - 1)
        ImageDraw.Draw(image).rectangle(box, outline="black", width=2)
    file = io.BytesIO()
    image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(file, "PNG")
    return Picture(file.getvalue(), _alt(rows, marked), title, change_table(names).rows, "Each answer")


def _label(name: str, then: str) -> str:
    label, answers = FACTS[name].label, history(name)
    if not then or answers[then] in (MISSING, today := answers[releases()[-1]]):
        return label
    words = f"{label}: {_say(answers[then])} in {then.removesuffix('.0')}, {_say(today)} today"
    fits = ImageFont.load_default(size=_LABELS).getlength(words) <= _WIDE - _MARGIN
    return words if fits else label  # the bars have long answers, too


def _row(label: str, bars: Sequence[Bar], wide: int) -> Image.Image:
    """Draw the label of a behavior, its bars, and below them what does not fit into one."""
    font = ImageFont.load_default(size=_WORDS)
    inside = [_fitting(bar.answer, wide * bar.columns, font) for bar in bars]
    below = [bar for bar, words in zip(bars, inside, strict=True) if _is_cut(bar.answer, words)]
    high = _LINE + _BAR + _NOTE * len(below) + _GAP
    image = Image.new("RGB", (_WIDE, high), "white")
    pen = ImageDraw.Draw(image)
    label = label.replace("×", "x")  # Pillow's own font lacks the sign
    pen.text((2, _LINE / 2), label, fill="black", font=ImageFont.load_default(size=_LABELS), anchor="lm")
    for bar, words in zip(bars, inside, strict=True):
        x, end = wide * bar.first, wide * (bar.first + bar.columns)
        ground, ink = _colors(bar.shade)
        pen.rectangle((x, _LINE, end - 1, _LINE + _BAR - 1), fill=ground)
        if x:
            pen.rectangle((x - 2, _LINE - 1, x + 1, _LINE + _BAR), fill="black", outline="white")
        pen.text((x + _MARGIN, _LINE + _BAR / 2), words, fill=ink, font=font, anchor="lm")
    for line, bar in enumerate(below):
        y = _LINE + _BAR + _NOTE * (line + 0.5)
        pen.text(
            (_MARGIN, y), f"{bar.when}: {_ascii(shorten_answer(bar.answer))}", fill="black", font=font, anchor="lm"
        )
    return image


def _bars(answers: Sequence[str], groups: Sequence[Sequence[int]]) -> list[Bar]:
    shades = {answer: at for at, answer in enumerate(dict.fromkeys(each for each in answers if each != MISSING))}
    bars, first = [], 0
    for answer, alike in groupby(groups, key=lambda group: answers[group[0]]):
        columns = [*alike]
        bars.append(Bar(first, len(columns), _when(columns[0][0], columns[-1][-1]), answer, shades.get(answer, -1)))
        first += len(columns)
    return bars


def _when(first: int, last: int) -> str:
    start, end = (releases()[at].removesuffix(".0") for at in (first, last))
    if last == len(releases()) - 1:
        return f"since {start}"
    return start if first == last else f"{start} to {end}"


def _fitting(answer: str, wide: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return as much of an answer as has room: all, the kind of an error, or nothing."""
    room = wide - 2 * _MARGIN
    return next((words for words in _shorter(answer) if font.getlength(words) <= room), "")


def _shorter(answer: str) -> list[str]:
    """Return an answer in words, and what is left of it when there is less and less room."""
    if answer == MISSING:
        return [_NOT_YET, "-"]
    if count := _count(answer):
        return [count]
    words = [_ascii(shorten_answer(answer))]
    if error := re.match(r"\w*(?:Error|Warning)", answer):
        words += [error[0], "error" if error[0].endswith("Error") else "warning"]
    return words


def _is_cut(answer: str, words: str) -> bool:
    return answer != MISSING and words != _shorter(answer)[0]


def _count(answer: str) -> str:
    """Return the length of an answer that is a list; its names are in the table."""
    found = re.fullmatch(r"(\d+): .*|0", answer)
    return (found[1] or "0") if found else ""


def _ascii(words: str) -> str:
    return words.replace("…", "...").replace("×", "x")


def _heads(groups: Sequence[Sequence[int]], wide: int) -> Image.Image:
    """Write the releases of all columns."""
    turned = wide < _LEVEL
    image = Image.new("RGB", (_WIDE, _TURNED if turned else _HEAD), "white")
    for column, group in enumerate(groups):
        image.paste(_head(group, wide, image.height, turned), (wide * column, 0))
    return image


def _head(group: Sequence[int], wide: int, high: int, turned: bool) -> Image.Image:
    """Write the releases of a column, in two lines, or upwards in one."""
    first, last = (releases()[at].removesuffix(".0") for at in (group[0], group[-1]))
    size = (high, wide) if turned else (wide, high)
    image = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=_WORDS)
    if turned:
        words = first if len(group) == 1 else f"{first} to {last}"
        pen.text((4, wide / 2), words, fill="black", font=font, anchor="lm")
        return image.transpose(Image.Transpose.ROTATE_90)
    words = first if len(group) == 1 else f"{first}\nto {last}"
    middle = (wide / 2, high / 2)
    pen.multiline_text(middle, words, fill="black", font=font, anchor="mm", align="center", spacing=1)
    return image


def _alike(rows: Mapping[str, Sequence[str]]) -> list[list[int]]:
    """Group the releases, by their places, so that all of a group answer alike."""
    groups: list[list[int]] = []
    for at, column in enumerate(zip(*rows.values(), strict=True)):
        if groups and column == tuple(answers[at - 1] for answers in rows.values()):
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _first_change(name: str) -> int:
    answers = [*history(name).values()]
    return next((at for at, answer in enumerate(answers) if answer != answers[0]), 0)


def _colors(shade: int) -> tuple[tuple[int, ...], str]:
    if shade < 0:
        return (235, 235, 235), "black"
    step = min(shade, len(_SHADES) - 1)
    return tuple(VIRIDIS[_SHADES[step]].tolist()), "black" if step else "white"


def _alt(rows: Mapping[str, Sequence[str]], marked: str) -> str:
    first, last = releases()[0], releases()[-1]
    lines = []
    for name, answers in rows.items():
        turns = [_say(answers[0])]
        for release, answer, before in zip(releases()[1:], answers[1:], answers, strict=False):
            if answer != before:
                turns.append(f"from {release} on {_say(answer)}")
        lines.append(f"{FACTS[name].label}: {', '.join(turns)}")
    frame = f" The column with {marked} is framed." if marked else ""
    return f"{len(rows)} behaviors over {len(releases())} releases, {first} to {last}. {'; '.join(lines)}.{frame}"


def _say(answer: str) -> str:
    return _shorter(answer)[0]
