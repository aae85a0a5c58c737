"""Draw behaviours over releases: one row each, one letter and colour for all that is alike, a bar where it changed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

from hookscope.pictures.palette import VIRIDIS
from hookscope.pictures.picture import Picture
from hookscope_course.history.records import MISSING, PROBES, history, releases, short

__all__ = ["changing", "chart"]

_WIDE, _HIGH, _LABEL, _HEAD = 42, 24, 235, 34  # pixels: a cell, the labels, the line of releases
_ROOM, _TURNED = 584, 84  # pixels: what a narrow page has; the line of releases where they are written upwards
_NARROW = 15  # pixels: a cell that still has room for its letter
_SIZE = 13  # of the letters
_SHADES = (40, 135, 185, 220, 250)  # of viridis, for A, B, C …: far apart in lightness


def changing() -> list[str]:
    """Return the probes that some releases answer otherwise than others, by the release of their first change."""
    at = {name: _first_change(name) for name in PROBES}
    return sorted((name for name in at if at[name]), key=lambda name: at[name])


def chart(names: Sequence[str], title: str, marked: str = "") -> Picture:
    """Draw what every release shows of some probes.

    A cell holds a letter: A for the first behaviour of its row, B for the second … and "-" where torch has no such
    thing. A black bar stands before a cell that differs from the one to its left. Releases side by side that are alike
    in every row share a column.

    Args:
        names: of the probes, one row each.
        title: a sentence for the picture.
        marked: a release whose column is framed.

    """
    rows = {name: _letters(history(name).values()) for name in names}
    groups = _alike(rows)
    wide = max(_NARROW, min(_WIDE, (_ROOM - _LABEL - 4) // len(groups)))
    turned = wide < _WIDE
    top = _TURNED if turned else _HEAD
    image = Image.new("RGB", (_LABEL + wide * len(groups) + 4, top + _HIGH * len(names) + 4), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=_SIZE)
    for column, group in enumerate(groups):
        head = _head(group, wide, top, turned)
        image.paste(head, (_LABEL + wide * column, 0))
    for row, (name, letters) in enumerate(rows.items()):
        y = top + _HIGH * row
        label = PROBES[name].label.replace("×", "x")  # Pillow's own font lacks the sign
        pen.text((6, y + _HIGH / 2), label, fill="black", font=font, anchor="lm")
        for column, group in enumerate(groups):
            x, letter = _LABEL + wide * column, letters[group[0]]
            ground, ink = _colours(letter)
            pen.rectangle((x, y, x + wide - 1, y + _HIGH - 2), fill=ground)
            pen.text((x + wide / 2, y + _HIGH / 2), letter, fill=ink, font=font, anchor="mm")
            if column and letter != letters[group[0] - 1]:
                pen.rectangle((x - 3, y - 1, x + 1, y + _HIGH - 1), fill="black", outline="white")
    if marked:
        (x,) = (_LABEL + wide * at for at, group in enumerate(groups) if releases().index(marked) in group)
        pen.rectangle((x - 1, 0, x + wide, image.height - 2), outline="black", width=3)
    file = io.BytesIO()
    image.convert("P", palette=Image.Palette.ADAPTIVE, colors=32).save(file, "PNG")
    return Picture(file.getvalue(), _alt(rows, marked), title, _legend(names), "The letters in the picture")


def _head(group: Sequence[int], wide: int, high: int, turned: bool) -> Image.Image:
    """Write the releases of a column, in two lines, or upwards in one."""
    first, last = (releases()[at].removesuffix(".0") for at in (group[0], group[-1]))
    size = (high, wide) if turned else (wide, high)
    image = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=_SIZE - 2)
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
        if groups and column == tuple(letters[at - 1] for letters in rows.values()):
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _first_change(name: str) -> int:
    answers = [*history(name).values()]
    return next((at for at, answer in enumerate(answers) if answer != answers[0]), 0)


def _letters(answers: Iterable[str]) -> list[str]:
    """Return a letter for each answer: the first A, the next that is new B, and "-" for what is missing."""
    known: dict[str, str] = {MISSING: "-"}
    for answer in answers:
        known.setdefault(answer, chr(ord("A") + len(known) - 1))
    return [known[answer] for answer in answers]


def _colours(letter: str) -> tuple[tuple[int, ...], str]:
    if letter == "-":
        return (235, 235, 235), "black"
    step = min(ord(letter) - ord("A"), len(_SHADES) - 1)
    return tuple(VIRIDIS[_SHADES[step]].tolist()), "black" if step else "white"


def _legend(names: Sequence[str]) -> list[dict[str, object]]:
    """Return one line per behaviour and answer: its letter, since when, and what it says."""
    lines: list[dict[str, object]] = []
    for name in names:
        answers = history(name)
        for letter, (release, answer) in zip(_letters(answers.values()), answers.items(), strict=True):
            label = PROBES[name].label
            if not lines or lines[-1]["behaviour"] != label or lines[-1][""] != letter:
                lines.append({"behaviour": label, "since torch": release, "": letter, "answer": short(answer)})
    return lines


def _alt(rows: dict[str, list[str]], marked: str) -> str:
    first, last = releases()[0], releases()[-1]
    turns = []
    for name, letters in rows.items():
        at = [release for release, a, b in zip(releases()[1:], letters[1:], letters, strict=False) if a != b]
        turns.append(
            f"{PROBES[name].label}: {' '.join(dict.fromkeys(letters))}, new at {', '.join(at) or 'no release'}"
        )
    frame = f" The column with {marked} is framed." if marked else ""
    return f"{len(rows)} behaviours over {len(releases())} releases, {first} to {last}. {'; '.join(turns)}.{frame}"
