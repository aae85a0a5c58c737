"""The specification of an edit: an operation, the values that it selects, and options, checked before any pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from torch import Tensor

from hookscope.captures import Capture, NotCapturedError
from hookscope.interp.edits.nested_values import Part, get, listed, path_of, tensors
from hookscope.interp.edits.selection import Selection, numbers_in
from hookscope.interp.edits.tokens import Positions, parse_positions

__all__ = [
    "EditContext",
    "EditSpec",
    "Operation",
    "Options",
    "Where",
    "parse_options",
    "tensors_of_capture",
]  # fmt: skip

Path = tuple[int | str, ...]


@dataclass(slots=True)
class EditContext:
    """Where and when a tensor is edited.

    Attributes:
        name: returns a description of the call for error messages.
        number: the number of this call of the layer.
        tensor: the whole tensor.
        selection: the part of the tensor that is edited.
        is_named_in_error: whether an error of `make_error` is on its way.

    """

    name: Callable[[int | None], str]
    number: int | None
    tensor: Tensor
    selection: Selection
    is_named_in_error: bool = False

    @property
    def label(self) -> str:
        """A description of the edit, the layer and the call, for error messages."""
        return self.name(self.number)

    def make_error(self, kind: type[Exception], reason: str) -> Exception:
        """Return an error that names the edit, the layer and the call."""
        self.is_named_in_error = True  # not the error itself: its traceback leads back here
        return kind(f"{self.label}: {reason}")


@dataclass(eq=False, slots=True)
class Operation:
    """How an edit computes new values from the values that it selects.

    Attributes:
        verb: name of the method of `Edit`.
        value: the argument of this method.
        compute: takes the values and the context, and returns new values; it does not write to its arguments.
        foreign: whether the returned tensor can belong to other code.
        numbered: whether the result depends on the number of the call.
        options: further arguments of the method, and the values that a capture stored for each call.

    """

    verb: str
    value: Any
    compute: Callable[[Tensor, EditContext], Any]
    foreign: bool = False
    numbered: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """A short description of the operation."""
        value = self.value
        if isinstance(value, Tensor):
            shown = f"tensor{tuple(value.shape)}"
        elif isinstance(value, Capture):
            shown = "from a capture"
        else:
            shown = getattr(value, "__name__", None) or ("" if value is None else str(value))
        return f"{self.verb} {shown}".rstrip()


@dataclass(eq=False, slots=True)
class EditSpec:
    """One edit, as the user wrote it.

    Attributes:
        number: the number of the edit, from 1.
        operation: how the new values are computed.
        selection: which values of a tensor.
        to: "output", "input" or "grad"; "heads" is between the heads and the output projection.
        path: which tensor of a structure; None for the only one.
        calls: numbers of the calls; None for all.
        positions: positions in the whole sequence; None for all.
        selects: whether the edit differs from call to call.
        by_sample: the option that treats the first axis as samples; "" if there is none.

    """

    number: int
    operation: Operation
    selection: Selection
    to: str
    path: Path | None
    calls: frozenset[int] | None
    positions: Positions | None = None
    selects: bool = field(init=False)
    by_sample: str = field(init=False)

    def __post_init__(self) -> None:
        self.selects = self.calls is not None or self.operation.numbered or self.positions is not None
        self.by_sample = "samples=" if self.selection.by_sample else "mean" if self.operation.verb == "mean" else ""

    @property
    def text(self) -> str:
        """A short description of the edit, without the layer."""
        part = "" if self.path is None else f" part={self.path[0] if len(self.path) == 1 else self.path!r}"
        calls = "" if self.calls is None else f" calls={{{', '.join(map(str, sorted(self.calls)))}}}"
        to = f" to={self.to}" if self.to in ("input", "grad") else ""
        positions = "" if self.positions is None else f" {self.positions.text}"
        return f"{self.operation.text}{self.selection.text}{positions}{to}{part}{calls}"


class Where(TypedDict, total=False):
    """Which tensor, in which calls.

    Attributes:
        to: "output", "input", or "grad", the gradient with respect to the output.
        part: which tensor, if there are several: an index, key, attribute or keyword, or a path, ``(1, "h")``.
        calls: which calls of the layer, counted from 1 inside the block.
        samples: which samples of the batch, on the first axis. In beam search, beams are samples.
        heads: which heads of an attention layer, in the input of its output projection.
        positions: which tokens, by position in the whole sequence, from 0, even with a KV cache; padding on the left
            counts. With `samples`, `heads` or `positions`, `at` is an index into the values that they select.

    """

    to: Literal["output", "input", "grad"]
    part: Part | None
    calls: int | Iterable[int] | None
    samples: int | slice | Iterable[int] | None
    heads: int | Iterable[int] | None
    positions: int | slice | Iterable[int] | None


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of `Where`. The default is all values of the output in all calls.

    Attributes:
        to: "output", "input" or "grad".
        path: which tensor of a structure; None for the only one.
        calls: numbers of the calls; None for all.
        samples: the option as the user passed it.
        heads: the option as the user passed it.
        positions: positions in the whole sequence; None for all.

    """

    to: str = "output"
    path: tuple[int | str, ...] | None = None
    calls: frozenset[int] | None = None
    samples: Any = None
    heads: Any = None
    positions: Positions | None = None


_DEFAULT = Options()


def parse_options(where: Where) -> Options:
    """Check options."""
    if not where:
        return _DEFAULT
    for option in where:
        if option not in Where.__annotations__:
            raise TypeError(f"there is no option {option!r}. The options are {', '.join(Where.__annotations__)}")
    to = where.get("to", "output")
    if to not in ("output", "input", "grad"):
        raise ValueError(f"to={to!r} does not exist. Pass 'output', 'input' or 'grad'")
    return Options(
        to, path_of(where.get("part")), _parse_calls(where.get("calls")), where.get("samples"), where.get("heads"),
        parse_positions(where.get("positions")),
    )  # fmt: skip


def _parse_calls(calls: Any) -> frozenset[int] | None:
    """Check the value of `calls=` and return it as a set of numbers."""
    if calls is None:
        return None
    way = f"calls={calls!r} does not number calls. Pass numbers from 1 on, such as calls={{2}}"
    try:
        numbers = frozenset(numbers_in(calls))
    except TypeError:
        raise TypeError(way) from None
    if not numbers or min(numbers) < 1:
        raise ValueError(way)
    return numbers


def tensors_of_capture(
    source: Capture, name: str, to: str, path: tuple[int | str, ...] | None, number: int
) -> list[Tensor]:
    """Return the tensor that an edit of this kind changes, for each call of a capture; raise errors before the pass."""
    if to == "heads":
        raise ValueError(
            f"layer {name!r}: a capture cannot see the values between the heads and the output projection of an "
            "nn.MultiheadAttention. Pass swap a tensor, for example one that map received in another run"
        )
    read: dict[str, Callable[[Any], Any]] = {
        "input": lambda call: {**dict(enumerate(call.args)), **call.kwargs},
        "grad": lambda call: call.grad,
        "output": lambda call: call.output,
    }
    try:
        return [only_tensor(read[to](call), path, f"edit {number} of layer {name!r}") for call in source[name].calls]
    except (LookupError, NotCapturedError) as error:
        kept = {"input": ", inputs=True", "grad": ", gradients=True", "output": ""}[to]
        error.add_note(f"hookscope: edit {number} needs the values of capture(model, {name!r}{kept})")
        raise


def only_tensor(value: Any, path: tuple[int | str, ...] | None, label: str) -> Tensor:
    """Return the tensor at a path in the values of a capture; without a path, the only tensor."""
    if path is None:
        everything = list(tensors(value))
        if len(everything) != 1:
            raise LookupError(f"{label}: there are several tensors. Choose one: {listed(value)}")
        return everything[0][1]
    found = get(value, path)
    if not isinstance(found, Tensor):
        raise LookupError(f"{label}: part={path!r} is not a tensor. Choose one: {listed(value)}")
    return found
