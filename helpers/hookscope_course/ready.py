"""Whether this machine has what the course needs, and what to do when it has not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hookscope_course.practice.card import Card

NEEDED = ("torch", "torchvision", "matplotlib", "ipywidgets", "anywidget", "jupyterlab", "nbval", "hookscope")
COURSE_TORCH = "2.15"  # what every sentence and every saved output of the course was run on


def setup() -> Card:
    """List the versions of what the course uses; say what is missing and how to get it.

    Example:
        >>> print(setup())  # doctest: +ELLIPSIS
        Setup complete: torch ...

    """
    found, missing = {}, []
    for package in NEEDED:
        try:
            found[package] = version(package).split("+")[0]  # "+cpu" and "+cu130" are the same release
        except PackageNotFoundError:
            missing.append(package)
    versions = " · ".join(f"{package} {release}" for package, release in found.items())
    if missing:
        way = "In a terminal, in the folder of the course, run `make .venv`; then restart the kernel."
        return Card(f"Missing: {', '.join(missing)}.", f"{way}\n{versions}", "wrong")
    installed, needed = ([int(part) for part in text.split(".")[:2]] for text in (found["torch"], COURSE_TORCH))
    if installed < needed:
        way = "In a terminal, in the folder of the course, run `make .venv`; then choose its kernel, or restart yours."
        why = f"The course needs torch {COURSE_TORCH} or newer: older ones print other results, and some crash."
        return Card(f"torch {found['torch']} is too old.", f"{why}\n{way}\n{versions}", "wrong")
    if installed > needed:
        note = f"The course was run on torch {COURSE_TORCH}; on yours some results may differ."
        return Card("Setup complete:", f"{versions}\n{note}")
    return Card("Setup complete:", versions, "right")
