"""Exclude our hooks and our own passes from torch.compile, without importing the compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

__all__ = ["note_traced_hooks", "run_eagerly", "skip_our_hooks"]


_told: list[ModuleType] = []


def skip_our_hooks() -> None:
    """Tell the compiler, if it is loaded, to call our hooks and not to trace them.

    If a part of a model is compiled inside a block, torch would trace the hooks together with their layers.
    `torch.compiler.disable` for each hook would import the compiler, which takes a second.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and rules not in _told:  # each time takes torch 5 ms
        rules.add("hookscope")
        _told.append(rules)


def note_traced_hooks(error: BaseException | None) -> None:
    """Add a note to an error of the compiler, which might have traced our hooks because it was loaded after them."""
    if error is not None and type(error).__module__ == "torch._dynamo.exc":
        error.add_note(
            "hookscope: if the traceback shows a hook of hookscope, the compiler was loaded inside the block and "
            "traced this hook. Write `import torch._dynamo` before the block"
        )


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Compile nothing while the block runs.

    Example:
        >>> with run_eagerly():
        ...     torch.compile(torch.sin, backend="eager")(torch.zeros(1))
        tensor([0.])

    """
    skip_our_hooks()
    if "torch._dynamo" not in sys.modules:
        yield  # nothing has been compiled
        return
    with torch.compiler.set_stance("force_eager"):
        yield
