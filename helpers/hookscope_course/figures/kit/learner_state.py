"""Keep how far a learner has come in a figure, so that a restart of the kernel does not begin it anew."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import traitlets

from hookscope_course.practice.guess_results import read_figure, store_figure

__all__ = ["keep_state"]


def keep_state(figure: traitlets.HasTraits, *traits: str, of: object = "") -> None:
    """Set traits as they were when the learner left the figure, and store them whenever they change.

    Only a learner's copy of the course stores them; elsewhere a figure always begins at its start.

    Args:
        figure: a figure that has been made.
        traits: in the order in which they can be set.
        of: tells apart figures of one class, such as its seed.

    """
    name = f"{type(figure).__name__} {of}".strip()
    kept = read_figure(name)
    # If the figure has changed since, or somebody edited the file, it goes on from what fits.
    with suppress(traitlets.TraitError, ValueError, TypeError, LookupError):
        for trait in traits:
            if trait in kept:
                setattr(figure, trait, kept[trait])

    def store(change: Any) -> None:
        store_figure(name, {trait: getattr(figure, trait) for trait in traits})

    figure.observe(store, list(traits))
