"""A report on one photograph: test each of its claims on the network, and draw the results on one page."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hookscope import capture, samples
from hookscope.pictures.colors import DATA, HOOK, INK, MUTED
from hookscope.pictures.picture import Picture, from_figure
from hookscope.samples.efficientnet import PHOTO_WEIGHTS
from hookscope.samples.photos import SIDE, crop, normalize
from hookscope_course.practice.blank import holds_blank
from hookscope_course.practice.feedback_card import Card
from hookscope_course.practice.rubric import NOTHING_YET, RefusedError, Review, judge_statements

__all__ = [
    "LARGEST",
    "MOST_CHANNELS",
    "NO_WEIGHTS",
    "STATEMENTS",
    "ReportReview",
    "load_photo",
    "review",
    "show_report",
]

LARGEST = 80 * 80
"""The pixels that a box may have: about an eighth of the photograph."""
MOST_CHANNELS = 32
"""How many of the 1,280 channels of `head` a hook may scale: one in forty."""
RANDOM = 20
"""How many random sets of channels are the control of the hook."""
STATEMENTS: Mapping[str, tuple[str, str]] = {
    "A": ("The boxes were covered with gray. With another cover, the numbers may be different.", ""),
    "B": (
        "Inside the box, the network sees the thing that it names.",
        "you know that these pixels matter, and not what the network takes them for",
    ),
    "C": (
        "No other box of this size lowers the probability as much.",
        "your page shows 36 other boxes, and there are thousands",
    ),
    "D": ("The hook was tried on a few photographs. In others, these channels may be needed.", ""),
    "E": (
        "These channels stand for this class, and for no other.",
        "each channel of `head` adds to the logits of hundreds of classes",
    ),
}
"""What is said of every such report, and why it is false; two of the five are true."""
NO_WEIGHTS = (
    f"the weights of the photo network are missing, so nothing can be measured: pip install {PHOTO_WEIGHTS}. "
    "notebooks/19_photo_report.ipynb has a finished page"
)
Hook = Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]
Box = tuple[int, int, int, int]


class PhotoReading(NamedTuple):
    """How something was read: what was done, the first class, and the probability of the class of the report."""

    done: str
    first: str
    chance: float


class ReportReview(Review):
    """What is true of a report: a reason for each point, and everything that was measured on the way.

    Attributes:
        criteria: six, in the order of the question.
        readings: the photograph as it is, with each cover, and with the hook.
        others: for each other photograph its class without and with the hook.
        boxes: those that can be drawn, by name.
        map: the probability with each of 36 gray boxes of 64 by 64, (6, 6), once the page is drawn.

    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.readings: list[PhotoReading] = []
        self.others: dict[str, tuple[str, str]] = {}
        self.boxes: dict[str, Box] = {}
        self.map: Tensor | None = None
        self.image: Tensor | None = None
        self.channels = 0

    def picture(self) -> Picture | None:
        """Return the page, if there is a photograph: it with its boxes, the numbers, the sentence."""
        if self.image is None:
            return None
        self.map = _map_of(self.image)
        name = Path(str(self.report["photo"])).name
        caption = f"A report on one photograph: {self.points} of {len(self.criteria)} points"
        # Drawn when it is seen: a grader needs no picture.
        return Picture(partial(_draw, self, self.image, name), _alt(self, name), caption, _rows(self))


def load_photo(name: str | Path) -> Tensor:
    """Return a bundled photograph, or the square in the center of an image file of yours, normalized in the same way.

    Args:
        name: one of `samples.PHOTOS`, or the path of a file that Pillow can open.

    Returns:
        A float32 tensor of shape (1, 3, 224, 224).

    Raises:
        OSError: there is no such file, or it is no image.

    Example:
        >>> load_photo("astronaut").shape
        torch.Size([1, 3, 224, 224])

    """
    if str(name) in samples.PHOTOS:
        return samples.photo(str(name))
    from PIL import Image, ImageOps

    with Image.open(name) as file:
        pixels = np.asarray(ImageOps.exif_transpose(file).convert("RGB")).copy()
    return normalize(crop(torch.from_numpy(pixels))[None].float() / 255)


def show_report(report: Mapping[str, Any], quiet: Hook | None) -> None:
    """Show the page of a report, below the cell.

    Args:
        report: with the fields photo, reads, box, control, limits and sentence.
        quiet: the forward hook on `head`.

    """
    from IPython.display import display

    display(_page_of(report, quiet))  # type: ignore[no-untyped-call]


def _page_of(report: Mapping[str, Any], quiet: Hook | None) -> Picture | Card:
    if not samples.has_photo_weights():
        return Card("No page.", NO_WEIGHTS)
    if holds_blank(report):
        return Card("No page yet.", "your page appears here when no `____` is left in the report")
    page = review(report, quiet).picture()
    return page or Card("No page yet.", "the report needs a photograph")


def review(report: Mapping[str, Any], quiet: Hook | None) -> ReportReview:
    """Run every claim of a report, and judge it.

    Nothing that is written into the report is taken for true: all classes and probabilities are measured here.

    Args:
        report: photo (a name or a path), reads (class and probability), box and control (top, bottom, left, right),
            limits (letters of `STATEMENTS`) and sentence. A field that is None gets no point.
        quiet: a forward hook for `head` of the photo network.

    Raises:
        ModuleNotFoundError: the weights of the photo network are not installed.

    """
    found = ReportReview(report)
    net = copy.deepcopy(_trained()).requires_grad_(False)
    try:
        image = found.image = _photo_of(report)
    except ValueError as error:
        said = [str(error), *[_FIRST_THE_PHOTO] * (len(_ASKED) - 1)]
        found.give_points(_ASKED, said)
        return found
    target = int(net(image).argmax())
    name = samples.PHOTO_CLASSES[target]

    def read(done: str, logits: Tensor) -> PhotoReading:
        chances = logits.softmax(dim=1)[0]
        reading = PhotoReading(done, samples.PHOTO_CLASSES[int(chances.argmax())], float(chances[target]))
        found.readings.append(reading)
        return reading

    whole = read("as it is", net(image))
    problems = [_wrong_reading(report.get("reads"), whole)]
    for field in ("box", "control"):
        problem = _wrong_box(field, report, problems[-1] if field == "control" else "")
        if not problem or problem == _FIRST_THE_BOX:
            box = found.boxes[field] = tuple(report[field])
            covered = read(f"{field} covered", net(_cover(image, box)))
            problem = problem or _wrong_chance(field, name, covered.chance, whole.chance)
        problems.append(problem)
    problems += _wrong_hook(found, net, quiet, image, read)
    problems.append(judge_statements(report.get("limits"), STATEMENTS))
    found.give_points(_ASKED, problems)
    return found


def _photo_of(report: Mapping[str, Any]) -> Tensor:
    name = report.get("photo")
    if not isinstance(name, str | Path):
        raise ValueError("`photo` has to be a name or the path of an image file")
    if name in _READ_RIGHT:
        raise ValueError(f"the {name} is read right; take the astronaut, the rocket, or an image file of your own")
    try:
        return load_photo(name)
    except OSError as error:
        raise ValueError(f"the photograph cannot be opened: {error}") from None


_READ_RIGHT = ("cat", "coffee", "camera")
_ASKED = (
    "the class and its probability are what the network says",
    f"covering the box, at most {LARGEST:,} pixels, halves the probability or more",
    "covering the control, as high and as wide, changes it by a quarter at most",
    f"the hook scales at most {MOST_CHANNELS} channels, and the network says something else",
    "with the hook, every other photograph keeps its class",
    "the limits are the two statements that are true",
)
_FIRST_THE_PHOTO = "first the photograph, point 1"
_FIRST_THE_BOX = "a control needs a box that passes, point 2"


@lru_cache(maxsize=1)
def _trained() -> samples.PhotoCNN:
    return samples.photo_cnn()


def _wrong_reading(reads: object, whole: PhotoReading) -> str:
    if reads is None:
        return NOTHING_YET
    match reads:
        case (str(first), int() | float() as chance):
            pass
        case _:
            return f"`reads` is {reads!r}; write the class and the probability, such as ('tripod', 0.95)"
    if first != whole.first:
        return f"the network says {whole.first}; you wrote {first}"
    # Rounded to two places, or not at all.
    if not abs(chance - whole.chance) < 0.0051:
        return f"the network gives {whole.first} {whole.chance:.2f}; you wrote {chance}"
    return ""


def _wrong_box(field: str, report: Mapping[str, Any], of_box: str) -> str:
    box = report.get(field)
    if box is None:
        return NOTHING_YET
    if not _is_box(box):
        return f"`{field}` is {box!r}; write four integers, top < bottom and left < right, from 0 to {SIDE}"
    top, bottom, left, right = box
    high, wide = bottom - top, right - left
    if field == "box":
        much = f"the box has {high} · {wide} = {high * wide:,} pixels; it can have {LARGEST:,} at most"
        return much if high * wide > LARGEST else ""
    if not _is_box(report.get("box")):
        return _FIRST_THE_BOX if report.get("box") is None else "first mend the box, point 2"
    up, down, west, east = report["box"]
    if (high, wide) != (down - up, east - west):
        return f"the control is {high} high and {wide} wide, and the box {down - up} and {east - west}; make them equal"
    if top < down and up < bottom and left < east and west < right:
        return "the control overlaps the box; put it elsewhere"
    return _FIRST_THE_BOX if of_box else ""


def _is_box(box: object) -> bool:
    if not isinstance(box, tuple | list) or len(box) != 4 or any(type(edge) is not int for edge in box):
        return False
    top, bottom, left, right = box
    return bool(0 <= top < bottom <= SIDE and 0 <= left < right <= SIDE)


def _wrong_chance(field: str, name: str, covered: float, whole: float) -> str:
    said = f"with the {field} covered, {name} goes from {whole:.2f} to {covered:.2f}"
    if field == "box":
        return "" if covered <= whole / 2 else f"{said}; it should be {whole / 2:.2f} or less"
    low, high = whole * 3 / 4, whole * 5 / 4
    return "" if low <= covered <= high else f"{said}; it should be between {low:.2f} and {high:.2f}"


@torch.no_grad()
def _map_of(image: Tensor) -> Tensor:
    """Return the probability of the class with a gray box of 64 by 64 at each of 36 places, as `cover_map` does."""
    net, starts = _trained(), range(0, SIDE - 63, 32)
    covered = [_cover(image, (top, top + 64, left, left + 64)) for top in starts for left in starts]
    target = int(net(image).argmax())
    chances: Tensor = net(torch.cat(covered)).softmax(dim=1)[:, target]
    return chances.reshape(len(starts), -1)


def _cover(image: Tensor, box: Box) -> Tensor:
    top, bottom, left, right = box
    image = image.clone()
    image[..., top:bottom, left:right] = 0  # the mean color of ImageNet
    return image


# -- the hook -------------------------------------------------------------------------------------------------------


def _wrong_hook(
    found: ReportReview,
    net: samples.PhotoCNN,
    quiet: Hook | None,
    image: Tensor,
    read: Callable[[str, Tensor], PhotoReading],
) -> tuple[str, str]:
    """Say why the hook gets no point for the class that it turns, and none for the classes that it keeps."""
    first = "this counts when the hook turns the class, point 4"
    if not callable(quiet):
        return f"`quiet` is {quiet!r}; write a forward hook", first
    try:
        scales = _scales_of(net.head, quiet)
        hooked = read("with the hook", _run(net, quiet, image, scales))
        rest = [name for name in samples.PHOTOS if name != found.report["photo"]]
        images = torch.cat([samples.photo(name) for name in rest])
        plain, silenced = net(images).argmax(dim=1).tolist(), _run(net, quiet, images, scales).argmax(dim=1).tolist()
    except RefusedError as refused:
        return str(refused), first
    except Exception as error:
        return f"your hook raised {type(error).__name__}: {error}", first
    found.channels = int((scales != 1).sum())
    found.readings.append(_read_random(net, image, scales, found.readings[0].first))
    found.others = {
        name: (samples.PHOTO_CLASSES[was], samples.PHOTO_CLASSES[now])
        for name, was, now in zip(rest, plain, silenced, strict=True)
    }
    if hooked.first == found.readings[0].first:
        return f"with your hook, the network still says {hooked.first}, {hooked.chance:.2f}", first
    lost = [f"{name} turns from {was} to {now}" for name, (was, now) in found.others.items() if was != now]
    return "", f"{', '.join(lost)}; leave alone the channels that it needs" if lost else ""


def _read_random(net: samples.PhotoCNN, image: Tensor, scales: Tensor, first: str) -> PhotoReading:
    """Give the factors of the hook to random channels instead, 20 times, and return the mean."""
    draw = torch.Generator().manual_seed(0)
    factors = torch.stack([scales[torch.randperm(len(scales), generator=draw)] for _ in range(RANDOM)])
    with capture(net, "head") as seen:
        net(image)
    means = seen["head"].output.mean(dim=(2, 3))
    chances = net.classifier(means * factors.to(means.dtype)).softmax(dim=1)
    return PhotoReading("random channels", first, float(chances[:, samples.PHOTO_CLASSES.index(first)].mean()))


def _scales_of(head: nn.Module, quiet: Hook) -> Tensor:
    """Measure by which factor a hook multiplies each channel, on maps that are no photograph's."""
    draw = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 1280, 5, 5, generator=draw, dtype=torch.float64) + 1
    given = torch.rand(2, 320, 5, 5, generator=draw, dtype=torch.float64)
    factors = _result(quiet(head, (given,), output := maps.clone()), maps) / maps
    if not torch.equal(output, maps):
        raise RefusedError("your hook wrote into `output`; return a changed copy")
    scales = factors[0, :, 0, 0]
    if not torch.allclose(factors, scales[:, None, None].expand_as(factors), atol=1e-6):
        raise RefusedError(
            "your hook does not scale: in one channel, its factors are different; use one for each channel"
        )
    if not bool(((scales >= 0) & (scales <= 1)).all()):
        raise RefusedError(f"a factor is {float(scales[(scales < 0) | (scales > 1)][0]):.3g}; take factors from 0 to 1")
    if (count := int((scales != 1).sum())) > MOST_CHANNELS:
        raise RefusedError(f"your hook scales {count:,} of 1,280 channels; take {MOST_CHANNELS} at most")
    if not count:
        raise RefusedError("your hook changes no channel")
    return scales


def _result(changed: object, maps: Tensor) -> Tensor:
    if changed is None:
        raise RefusedError("your hook returned None, so the output of `head` stayed as it was")
    if not isinstance(changed, Tensor) or changed.shape != maps.shape:
        what = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise RefusedError(f"your hook got maps of shape {tuple(maps.shape)} and returned {what}; return all the maps")
    return changed


def _run(net: samples.PhotoCNN, quiet: Hook, images: Tensor, scales: Tensor) -> Tensor:
    """Call the network with the hook on, and hold the hook to the factors that were measured."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        seen.append(output.clone())

    with ExitStack() as hooks:
        for hook in (keep, quiet, keep):
            hooks.enter_context(net.head.register_forward_hook(hook))
        logits: Tensor = net(images)
    before, after = seen
    _result(after, before)
    if not torch.allclose(after, before * scales.to(before.dtype)[:, None, None], atol=1e-5):
        raise RefusedError(
            "on a photograph your hook does something else than on other maps; scale the same channels always"
        )
    return logits


# -- the page -------------------------------------------------------------------------------------------------------

_LOOKS = {"box": (HOOK, "-"), "control": (DATA[0], "--")}


def _draw(found: ReportReview, image: Tensor, name: str) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    first = found.readings[0].first
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    figure.suptitle(f"Why does the network say “{first}”?", x=0.01, ha="left", fontsize=16, color=INK)
    panels = figure.subplot_mosaic(
        [["photo", "map", "bars"], ["words", "words", "words"]], height_ratios=[1.5, 1], width_ratios=[1, 1, 1.2]
    )
    panels["photo"].imshow(samples.denormalize(image)[0].permute(1, 2, 0).numpy())
    panels["photo"].set(xticks=[], yticks=[], title=name)
    for field, (top, bottom, left, right) in found.boxes.items():
        color, line = _LOOKS[field]
        edges: dict[str, Any] = {"facecolor": "none", "edgecolor": color, "linestyle": line, "linewidth": 3}
        panels["photo"].add_patch(Rectangle((left, top), right - left, bottom - top, **edges))
        label: dict[str, Any] = {"color": "white", "fontsize": 11, "va": "top", "bbox": {"color": color, "pad": 1.5}}
        panels["photo"].text(left + 3, top + 4, field, **label)
    _draw_map(panels["map"], found)
    bars, most = panels["bars"], max(reading.chance for reading in found.readings)
    labels = [reading.done for reading in found.readings]
    colors = [_LOOKS.get(label.split()[0], (MUTED, ""))[0] for label in labels]
    bars.barh(labels, [reading.chance for reading in found.readings], color=colors, height=0.6)
    for at, reading in enumerate(found.readings):
        said = f"{reading.chance:.2f}" + (f", says {reading.first}" if reading.first != first else "")
        bars.text(reading.chance + most / 50, at, said, va="center", color=INK)
    bars.set(xlim=(0, 2 * most), xticks=[], title=f"probability of {first}")
    bars.invert_yaxis()
    bars.spines[["top", "right", "bottom"]].set_visible(False)
    panels["words"].axis("off")
    panels["words"].text(0, 1, _words(found), va="top", fontsize=11, color=INK, linespacing=1.4)
    return from_figure(figure, "A page.").png


def _draw_map(axes: Any, found: ReportReview) -> None:
    """Draw the 36 gray boxes: the darker, the lower the probability; a dot where it falls to a half."""
    from matplotlib.colors import LinearSegmentedColormap

    assert found.map is not None
    whole = found.readings[0].chance
    axes.imshow(found.map / whole, cmap=LinearSegmentedColormap.from_list("falls", [HOOK, "white"]), vmin=0, vmax=1)
    half = [(row, column) for row, column in (found.map <= whole / 2).nonzero().tolist()]
    axes.plot([column for _, column in half], [row for row, _ in half], "o", color=INK, markersize=5)
    axes.set(xticks=[], yticks=[], title="36 gray boxes")
    axes.set_xlabel(f"●: a half or less, {len(half)} of 36", color=INK, fontsize=9)


def _told_map(found: ReportReview) -> str:
    if found.map is None:
        return ""
    whole = found.readings[0].chance
    halve, more = int((found.map <= whole / 2).sum()), int((found.map > whole).sum())
    return f"Of 36 gray boxes of 64 by 64, {halve} halve the probability and {more} raise it."


def _words(found: ReportReview) -> str:
    kept = [name for name, (was, now) in found.others.items() if was == now]
    limits = [text for letter, (text, _) in STATEMENTS.items() if letter in (found.report.get("limits") or ())]
    sizes = {f"{bottom - top} by {right - left}" for top, bottom, left, right in found.boxes.values()}
    lines = [
        found.quote(),
        f"Covered: {' and '.join(sorted(sizes))} pixels, with gray. {_told_map(found)}" if sizes else _told_map(found),
        f"The hook scales {found.channels} of 1,280 channels of head; the control scales as many at random, "
        f"{RANDOM} times. "
        f"Of {len(found.others)} other photographs, {len(kept)} keep their class."
        if found.others
        else "",
        " ".join(limits),
        found.count_points(),
    ]
    return "\n".join(textwrap.fill(line, 100) for line in lines if line)


def _alt(found: ReportReview, name: str) -> str:
    where = [
        f"the {field} in rows {top} to {bottom} and columns {left} to {right}"
        for field, (top, bottom, left, right) in found.boxes.items()
    ]
    first, *rest = found.readings
    bars = "; ".join(f"{reading.done} {reading.chance:.2f}, first {reading.first}" for reading in rest)
    drawn = f" On it, {' and '.join(where)}." if where else ""
    return (
        f"A page. On the left the photograph {name}.{drawn} On the right bars: {first.first} has {first.chance:.2f}; "
        f"{bars}. Below: {_words(found)}"
    ).replace("\n", " ")


def _rows(found: ReportReview) -> list[dict[str, object]]:
    first = found.readings[0].first
    rows: list[dict[str, object]] = [
        {"photograph": "this one", "what was done": reading.done, "read as": reading.first, first: reading.chance}
        for reading in found.readings
    ]
    return rows + [
        {"photograph": name, "what was done": "with the hook", "read as": now, "without": was}
        for name, (was, now) in found.others.items()
    ]
