"""Apply one edit to one layer: change the tensors of each call, and measure how much they changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from hookscope.captures.functorch import is_under_vmap, is_wrapped
from hookscope.error_pages import append_page
from hookscope.interp.edits.batch_first import PACKED, as_many, is_packed
from hookscope.interp.edits.nested_values import get, holder_of, keys, listed, put, tensors
from hookscope.interp.edits.specification import EditContext, EditSpec, Path
from hookscope.interp.edits.tokens import Tokens, TokenSource

__all__ = ["ChangeSize", "LayerEdit"]


@dataclass(eq=False, slots=True)
class LayerEdit:
    """One edit of one layer, and its results.

    Attributes:
        spec: the edit as the user wrote it.
        layer: the layer's name.
        sizes: which calls were changed, and by how much.
        missed: the parts of a call that lacked the requested part; empty if no call did.
        hooked: the numbers of the calls whose tensors have a gradient hook.
        keys: the path to the part, from the last call that had it.
        token_source: finds the tokens of a call.
        tokens: the tokens of each call; only with positions.
        places: the positions that were edited, by call.
        samples: returns the number of samples of the running call, or None; only set if the edit needs it.
        notes: notes for the user, as keys; shared with other objects.
        late: how often the model had run in the block before the edit was written.
        dtype: the dtype of the tensor that was edited last.
        since: autograd's sequence number when the edit was written; later nodes of this thread have it or a larger one.

    """

    spec: EditSpec
    layer: str
    sizes: ChangeSize = field(default_factory=lambda: ChangeSize())
    missed: str = ""
    hooked: set[int] = field(default_factory=set)
    keys: tuple[tuple[str, Any], ...] = ()
    token_source: TokenSource | None = None
    tokens: dict[int, Tokens] = field(default_factory=dict)
    places: dict[int, list[int]] = field(default_factory=dict)
    samples: Callable[[], int | None] | None = None
    notes: dict[str, None] = field(default_factory=dict)
    late: int = 0
    dtype: torch.dtype | None = None
    since: int = field(default_factory=torch.autograd._get_sequence_nr)  # type: ignore[attr-defined]

    def apply(self, value: Any, number: int, again: bool, then: Callable[[Tensor], Tensor] | None = None) -> Any:
        """Return the edited value; the value itself if the edit does not apply to this call or the part is missing.

        Args:
            value: a tensor, or a structure with tensors in it.
            number: the number of this call of the layer; 0 if it is unknown.
            again: whether a checkpoint runs the call again in backward.
            then: a function to call with the tensor instead of editing it.

        Raises:
            ValueError: the tensor is in a container that belongs to the caller, or there are several tensors.
            TypeError: the structure cannot be rebuilt with another tensor in it.

        """
        spec = self.spec
        if spec.selects and not self.applies_to(number, again):
            return value
        path = spec.path
        if path is None and then is None and isinstance(value, Tensor):
            return self.edit_tensor(value, number, again)
        if path is None:
            path = self._only(value, number)
        try:
            tensor = get(value, path) if path is not None else None
        except LookupError:
            tensor = None
        if path is None or not isinstance(tensor, Tensor):
            self.missed = listed(value)
            return value
        if spec.to == "input":
            self._refuse_container_of_the_caller(value, path, number)
        self.keys = keys(value, path)
        new = self.edit_tensor(tensor, number, again) if then is None else then(tensor)
        if new is tensor:
            return value
        try:
            return put(value, path, new)
        except Exception as error:  # a class outside hookscope may raise anything when it is copied
            why = f"edit cannot rebuild the {type(value).__name__} with the new value"
            if not isinstance(value, MappingProxyType):
                why += f" ({type(error).__name__}: {error})"
            raise TypeError(
                f"{self.label(number)}: {why}. Edit a layer inside this one, or the input of the next one"
            ) from error

    def _refuse_container_of_the_caller(self, given: dict[int | str, Any], path: Path, number: int) -> None:
        """Refuse a tensor in a list, mapping or object among the inputs; only tuples can be rebuilt."""
        if (holder := holder_of(given[path[0]], path[1:])) is not None:
            text = (
                f"{self.label(number)}: the input part={path!r} is in a {type(holder).__name__}, which belongs to the "
                "caller. An edit would change that object for everything else that uses it. Edit the output of the "
                "layer that computes the tensor, or pass the tensor itself as an argument"
            )
            raise ValueError(append_page(text, "caller_container"))

    def applies_to(self, number: int, again: bool) -> bool:
        """Return whether the edit applies to this call."""
        spec = self.spec
        if not spec.selects:
            return True
        if not number:
            raise RuntimeError(
                f"{self.label(number)}: a checkpoint runs the layer again in backward, and hookscope cannot tell which "
                "call this is. Do not use calls=, positions= or swap here, or remove the checkpoint"
            )
        if self.token_source is not None and not again:
            self.tokens[number] = self.token_source.here()
        return spec.calls is None or number in spec.calls

    def _only(self, value: Any, number: int) -> Path | None:
        found = list(tensors(value))  # of a tensor it is the tensor itself
        if len(found) > 1:
            what = "got" if self.spec.to == "input" else "returned"
            raise ValueError(f"{self.label(number)}: it {what} several tensors. Choose one: {listed(value)}")
        return found[0][0] if found else None

    def edit_tensor(self, tensor: Tensor, number: int, again: bool, samples: int | None = None) -> Tensor:
        """Return the edited tensor, which has its own memory.

        Args:
            tensor: the tensor.
            number: the number of this call of the layer; 0 if it is unknown.
            again: whether a checkpoint runs the call again in backward.
            samples: the number of samples in that call, if the model is no longer running.

        """
        spec, selection, self.dtype = self.spec, self.spec.selection, tensor.dtype
        places: list[int] = []
        if spec.positions is not None:
            tokens = self.tokens[number]
            places = tokens.places(spec.positions, tensor, self.label(number))
            if not places:
                return tensor
            selection = selection.at_places(places)
            places = [tokens.start + place for place in places]
        context = EditContext(self.label, number, tensor, selection)
        if spec.by_sample or self.samples is not None:
            self._ask_for_samples(tensor, context, samples)
        region = _region(tensor, context) if selection.steps else tensor
        try:
            new = spec.operation.compute(region, context)
        except Exception as error:
            if not context.is_named_in_error:
                error.add_note(f"hookscope: in {context.label}")
            raise
        if spec.operation.foreign or type(new) is not type(region):  # our own have its shape, dtype and device
            _check(new, region, context)
        if spec.operation.foreign and not selection.steps:
            new = new.clone()  # the function may keep it, and an in-place operation may come next
        if not again:
            self.sizes.add(number, region, new)
            if places:
                self.places[number] = places
        return selection.put(tensor, new) if selection.steps else new

    def _ask_for_samples(self, tensor: Tensor, context: EditContext, count: int | None) -> None:
        """Raise an error if the edit needs samples on the first axis but they are not there; add a note if unsure."""
        by = self.spec.by_sample
        if by and is_packed(tensor):
            raise RuntimeError(f"{context.label}: {PACKED}")
        if by and is_under_vmap(tensor):
            raise RuntimeError(
                f"{context.label}: under torch.vmap a layer sees one sample at a time, so {by} cannot select "
                "samples. Edit a call without vmap"
            )
        if count is None and self.samples is not None:
            count = self.samples()
        if count is None:
            if by:
                self.notes[
                    f"layer {self.layer!r}: the number of samples is unknown, for example because only a part of the "
                    f"model was called; {by} treats the first axis as the samples"
                ] = None
            return
        if by and tensor.shape[:1] != (count,):
            raise ValueError(
                f"{context.label}: {by} needs samples on the first axis, but the shape is {tuple(tensor.shape)}, and "
                f"the model's first input has {count} samples. Choose a layer with samples on the first axis, or use "
                "an index, such as at[1]"
            )
        if said := as_many(tensor, count, f"layer {self.layer!r}"):
            self.notes[said] = None

    @property
    def done(self) -> set[int]:
        """The numbers of the calls that were edited."""
        return self.sizes.calls

    @property
    def is_whole(self) -> bool:
        """Whether the edit happened, and no call can be missing."""
        spec = self.spec
        return bool(self.done) and spec.calls is None and spec.positions is None

    def came(self) -> str:
        """Return a text with the positions that occurred in the selected calls."""
        ends = [(tokens.start, tokens.start + tokens.count) for tokens in self.tokens.values() if tokens.count]
        if not ends:
            return ""
        return f", only with {min(first for first, _ in ends)} to {max(last for _, last in ends) - 1}"

    def missing_positions(self) -> list[int]:
        """List the requested positions that were not edited."""
        wanted = self.spec.positions
        edited = {place for places in self.places.values() for place in places}
        nothing = self.missed or (self.spec.to == "grad" and not self.done)
        if wanted is None or not self.tokens or nothing:
            return []
        if wanted.some is None:
            return [] if edited else [wanted.first]
        return sorted(wanted.some - edited)

    def label(self, number: int | None) -> str:
        """Describe the edit, the layer and the call, for messages."""
        call = f", call {number}" if number and number > 0 else ""
        return f"edit {self.spec.number} ({self.spec.operation.verb}) of layer {self.layer!r}{call}"


def _region(tensor: Tensor, context: EditContext) -> Tensor:
    """Return the selected values of a tensor; raise an error if there are none."""
    selection = context.selection
    if is_packed(tensor):
        raise RuntimeError(f"{context.label}: {PACKED}")
    try:
        region = selection.cut(tensor)
    except IndexError as error:
        raise IndexError(
            f"{context.label}:{selection.text} does not fit shape {tuple(tensor.shape)}: {error}. If it fits some "
            "calls, select those with calls="
        ) from None
    if not region.numel() and tensor.numel():
        raise IndexError(f"{context.label}:{selection.text} selects nothing from shape {tuple(tensor.shape)}")
    return region


def _check(new: Any, region: Tensor, context: EditContext) -> None:
    """Raise an error if a new value does not fit in the place of the old one."""
    if new is None:
        raise TypeError(
            f"{context.label}: the function returned None. It gets a copy of the values, and writing into this copy "
            "does not change the layer. Return the new values"
        )
    if not isinstance(new, Tensor):
        raise TypeError(f"{context.label}: the function returned {type(new).__name__}, not a tensor")
    if region.is_nested or new.is_nested:
        return  # their shapes are lists, and torch compares them itself
    if new.shape != region.shape:
        raise ValueError(f"{context.label}: the function changed the shape {tuple(region.shape)} to {tuple(new.shape)}")
    if new.dtype is not region.dtype:
        raise TypeError(f"{context.label}: the function changed the dtype {region.dtype} to {new.dtype}")
    if new.device != region.device:
        raise ValueError(f"{context.label}: the function moved the tensor from {region.device} to {new.device}")


_MANY = 64  # calls whose measures wait to be read
_FEW = 1 << 14  # values that are kept until then: to look through them takes a small model's time
# In which a difference is computed: in their own, 3 - 5 is 254 as uint8, and 40,000 + 40,000 infinite as float16.
_NARROW = (
    dict.fromkeys((torch.int64, torch.uint64), torch.float64)
    | dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16), torch.int32)
    | dict.fromkeys((torch.int32, torch.uint32), torch.int64)
    | {torch.float16: torch.float32}
)
# float8, quantized: torch does not compute with them; on some devices not in float64.
_CANNOT = (RuntimeError, NotImplementedError, TypeError)


class ChangeSize:
    """The largest changes of values in the calls of a layer.

    Attributes:
        calls: the numbers of the calls that were edited.

    Example:
        >>> sizes = ChangeSize()
        >>> for call, change in enumerate((0.0, -2.0, 1.0)):
        ...     sizes.add(call, torch.ones(3), torch.ones(3) + change)
        >>> sizes.row()
        {'calls changed': 2, 'largest change': 2.0}

    """

    _largest, _unknown = 0.0, False

    def __init__(self) -> None:
        self.calls: set[int] = set()
        self._changed: set[int] = set()
        # By call: old and new values, one after the other in one tensor, or what was measured of them.
        self._waiting: list[tuple[int, Tensor | tuple[Tensor, Tensor]]] = []

    def add(self, call: int, old: Tensor, new: Tensor) -> None:
        """Measure a call; if it gets two gradients, it still counts as one call."""
        self.calls.add(call)
        if old.is_nested:
            self._unknown = True
            return
        # What else cannot be measured is found when it is read: each question takes a part of a small model's pass.
        kept: Tensor | tuple[Tensor, Tensor]
        try:
            if old.numel() > _FEW:
                kept = _measured(old.detach(), new.detach())
            else:
                # Copied, for the model may write to both: that is one operation, and to measure takes eight.
                kept = both = torch.cat((old, new)) if old.dim() else torch.stack((old, new))
                if both.requires_grad:
                    kept = both.detach()
        except _CANNOT:
            self._unknown = True
            return
        self._waiting.append((call, kept))
        if len(self._waiting) >= _MANY:
            self._read()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        with unset_fake_temporarily():  # what was kept is real
            for call, kept in waiting:
                one = kept[0] if isinstance(kept, tuple) else kept
                if is_wrapped(one) or one.layout is not torch.strided or one.is_meta or isinstance(one, FakeTensor):
                    self._unknown = True  # the last two have no values
                    continue
                if not one.numel():
                    continue
                try:
                    largest, unchanged = kept if isinstance(kept, tuple) else _measured(*kept.chunk(2))
                    change = float(largest)
                except _CANNOT:
                    self._unknown = True
                    continue
                if not bool(unchanged):
                    self._changed.add(call)
                self._largest = change if math.isnan(change) or change > self._largest else self._largest

    def row(self) -> dict[str, object]:
        """Return the columns of the table: how many calls were changed, and the largest change of a value."""
        self._read()
        if self._unknown:
            return {"calls changed": len(self.calls), "largest change": "not measured"}
        return {"calls changed": len(self._changed), "largest change": self._largest if self.calls else ""}


def _measured(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the size of the largest change, and whether there is none, without waiting for a GPU."""
    same = new == old  # also where they are infinite, so that there is no difference
    if old.dtype in _NARROW:
        old, new = old.to(_NARROW[old.dtype]), new.to(_NARROW[old.dtype])
    differences = (new - old).abs() if old.is_complex() else new - old
    # Not torch.dist, nor a norm: for infinity they take ten times as long.
    ends = torch.stack(torch.aminmax(differences.masked_fill(same, 0)))
    return ends.abs().max(), same.all()
