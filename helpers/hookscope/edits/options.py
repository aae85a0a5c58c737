"""Check what the methods of an edit are given, before any pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from torch import Tensor

from hookscope.captures import Capture, NotCapturedError
from hookscope.edits import changes
from hookscope.edits.aim import numbers_in
from hookscope.edits.parts import Part, path_of
from hookscope.edits.tokens import Positions, positions_of

__all__ = ["Options", "Where", "calls_of", "kept_of", "numbers_of", "options_of"]


class Where(TypedDict, total=False):
    """Which tensor, in which calls.

    Attributes:
        to: "output", "input", or "grad", the gradient with respect to the output.
        part: which tensor, if there are several: an index, key, attribute or keyword, or a path, ``(1, "h")``.
        calls: which calls of the layer, counted from 1 inside the block.
        rows: which samples of the batch, on the first axis. In beam search samples are beams.
        heads: which heads of an attention layer, in what goes into its output projection.
        positions: which tokens, by their positions in the whole sequence from 0, also under a KV cache; padding on the
            left counts. With `rows`, `heads` or `positions`, `at` is an index into what these pick.

    """

    to: Literal["output", "input", "grad"]
    part: Part | None
    calls: int | Iterable[int] | None
    rows: int | slice | Iterable[int] | None
    heads: int | Iterable[int] | None
    positions: int | slice | Iterable[int] | None


@dataclass(frozen=True, slots=True)
class Options:
    """What was given of `Where`, checked; without anything, all values of the output in all calls.

    Attributes:
        to: "output", "input" or "grad".
        path: which tensor of a structure; None for the only one.
        calls: numbers of the calls; None for all.
        rows: as it was given.
        heads: as it was given.
        positions: places in the whole sequence; None for all.

    """

    to: str = "output"
    path: tuple[int | str, ...] | None = None
    calls: frozenset[int] | None = None
    rows: Any = None
    heads: Any = None
    positions: Positions | None = None


_DEFAULT = Options()


def options_of(where: Where) -> Options:
    """Check options."""
    if not where:
        return _DEFAULT
    for option in where:
        if option not in Where.__annotations__:
            raise TypeError(f"no option {option!r}; there are {', '.join(Where.__annotations__)}")
    to = where.get("to", "output")
    if to not in ("output", "input", "grad"):
        raise ValueError(f"to={to!r}: give 'output', 'input' or 'grad'")
    return Options(
        to, path_of(where.get("part")), calls_of(where.get("calls")), where.get("rows"), where.get("heads"),
        positions_of(where.get("positions")),
    )  # fmt: skip


def calls_of(calls: Any) -> frozenset[int] | None:
    """Check which calls were asked for."""
    if calls is None:
        return None
    way = f"calls={calls!r}: give the numbers of calls, counted from 1, such as calls={{2}}"
    try:
        numbers = frozenset(numbers_in(calls))
    except TypeError:
        raise TypeError(way) from None
    if not numbers or min(numbers) < 1:
        raise ValueError(way)
    return numbers


def kept_of(source: Capture, name: str, to: str, path: tuple[int | str, ...] | None, number: int) -> list[Tensor]:
    """Take what an edit of this kind changes from each call that a capture has; raise now, and not in the pass."""
    if to == "heads":
        raise ValueError(
            f"layer {name!r}: no capture sees what is between the heads and the output projection of an "
            "nn.MultiheadAttention; give swap a tensor, such as one that map was called with in another run"
        )
    read: dict[str, Callable[[Any], Any]] = {
        "input": lambda call: {**dict(enumerate(call.args)), **call.kwargs},
        "grad": lambda call: call.grad,
        "output": lambda call: call.output,
    }
    try:
        return [changes.chosen(read[to](call), path, f"edit {number} of layer {name!r}") for call in source[name].calls]
    except (LookupError, NotCapturedError) as error:
        kept = {"input": ", inputs=True", "grad": ", gradients=True", "output": ""}[to]
        error.add_note(f"hookscope: edit {number} takes from capture(model, {name!r}{kept})")
        raise


def numbers_of(given: Any, name: str, end: int | None = None) -> tuple[int, ...]:
    """Check whole numbers that were given, one or several.

    Raises:
        TypeError: they are none.
        ValueError: there are none, or one is negative or too large.

    """
    try:
        numbers = tuple(numbers_in(given))
    except TypeError:
        raise TypeError(f"{name}={given!r}: give a whole number, or several") from None
    wrong = [number for number in numbers if number < 0 or (end is not None and number >= end)]
    if wrong or not numbers:
        count = "" if end is None else f"; there are {end}"
        raise ValueError(f"{name}={given!r}: give whole numbers from 0{count}")
    return numbers
