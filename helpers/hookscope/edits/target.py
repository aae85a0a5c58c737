"""One edit as it was written, and one edit on one layer with what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.keep import is_wrapped
from hookscope.edits.aim import Aim
from hookscope.edits.changes import UNCHANGED, Change, Moment
from hookscope.edits.order import PACKED, as_many, is_packed
from hookscope.edits.parts import get, holder_of, keys, listed, put, tensors
from hookscope.edits.sizes import Sizes
from hookscope.edits.tokens import Owner, Positions, Tokens

__all__ = ["Rule", "Target"]

Path = tuple[int | str, ...]


@dataclass(eq=False, slots=True)
class Rule:
    """One edit, as it was written.

    Attributes:
        number: which one it is, from 1.
        change: what it makes of the values.
        aim: which values of a tensor.
        to: "output", "input" or "grad"; "heads" between the heads and the output projection, or "edges", inside the
            attention of a layer.
        path: which tensor of a structure; None for the only one.
        calls: numbers of the calls; None for all.
        positions: places in the whole sequence; None for all.
        selects: whether it is not the same for all calls.
        by_sample: what of it takes the first axis for that of samples; "" if nothing does.

    """

    number: int
    change: Change
    aim: Aim
    to: str
    path: Path | None
    calls: frozenset[int] | None
    positions: Positions | None = None
    selects: bool = field(init=False)
    by_sample: str = field(init=False)

    def __post_init__(self) -> None:
        self.selects = (
            self.calls is not None or self.change.numbered or self.positions is not None or self.to == "edges"
        )
        self.by_sample = "rows=" if self.aim.by_row else "mean" if self.change.verb == "mean" else ""

    @property
    def text(self) -> str:
        """Say what it does, without the layer."""
        part = "" if self.path is None else f" part={self.path[0] if len(self.path) == 1 else self.path!r}"
        calls = "" if self.calls is None else f" calls={{{', '.join(map(str, sorted(self.calls)))}}}"
        to = f" to={self.to}" if self.to in ("input", "grad") else ""
        positions = "" if self.positions is None else f" {self.positions.text}"
        return f"{self.change.text}{self.aim.text}{positions}{to}{part}{calls}"


@dataclass(eq=False, slots=True)
class Target:
    """One edit on one layer, and what came of it.

    Attributes:
        rule: the edit.
        layer: the layer's name.
        sizes: of which calls there were changes, and how large.
        missed: what there was in a call that lacked the part, if one did.
        hooked: the numbers of the calls of which a tensor waits for a gradient.
        keys: the way to the part, as it was found in the last call that had it.
        aliased: whether an alias was put in the place of a tensor, to have the gradient of this use alone.
        owner: who knows which tokens a call has.
        tokens: those of each call; only with positions.
        places: which of them were edited.
        taken: which of them `freeze` took its values from, in the first call, which stays as it is.
        held: what an edit keeps from one call to the next.
        samples: tells how many samples the model is running on, if that is known; only where it matters.
        notes: what there is to know, as keys; shared with the others.
        late: how often the model had run in the block when the edit was written.
        dtype: that of the tensor that was edited last.
        since: when that was, as autograd counts in this thread: nodes that are made later have this number, or more.

    """

    rule: Rule
    layer: str
    sizes: Sizes = field(default_factory=Sizes)
    missed: str = ""
    hooked: set[int] = field(default_factory=set)
    keys: tuple[tuple[str, Any], ...] = ()
    aliased: bool = False
    owner: Owner | None = None
    tokens: dict[int, Tokens] = field(default_factory=dict)
    places: dict[int, list[int]] = field(default_factory=dict)
    taken: dict[int, list[int]] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    samples: Callable[[], int | None] | None = None
    notes: dict[str, None] = field(default_factory=dict)
    late: int = 0
    dtype: torch.dtype | None = None
    since: int = field(default_factory=torch.autograd._get_sequence_nr)  # type: ignore[attr-defined]

    def on(self, value: Any, number: int, again: bool, then: Callable[[Tensor], Tensor] | None = None) -> Any:
        """Return a value with the edit made; the value itself if this call is not meant or lacks the part.

        Args:
            value: a tensor, or a structure with tensors in it.
            number: which call of the layer this is; 0 if that is not known.
            again: whether the call runs again, in backward, to recompute what a checkpoint did not keep.
            then: what to do with the tensor instead, if not to edit it.

        Raises:
            ValueError: the tensor is in a container that belongs to the caller, or there are several tensors.
            TypeError: the structure cannot be rebuilt with another tensor in it.

        """
        rule = self.rule
        if rule.selects and not self.means(number, again):
            return value
        path = rule.path
        if path is None and then is None and isinstance(value, Tensor):
            return self.edited(value, number, again)
        if path is None:
            path = self._only(value, number)
        try:
            tensor = get(value, path) if path is not None else None
        except LookupError:
            tensor = None
        if path is None or not isinstance(tensor, Tensor):
            self.missed = listed(value)
            return value
        if rule.to == "input":
            self._refuse_container_of_the_caller(value, path, number)
        self.keys = keys(value, path)
        new = self.edited(tensor, number, again) if then is None else then(tensor)
        if new is tensor:
            return value
        try:
            return put(value, path, new)
        except Exception as error:  # a class outside hookscope may raise anything when it is copied
            raise TypeError(
                f"{self.label(number)}: cannot rebuild a {type(value).__name__} with another value in it "
                f"({type(error).__name__}: {error}); edit a layer inside this one, or the input of the next"
            ) from error

    def _refuse_container_of_the_caller(self, given: dict[int | str, Any], path: Path, number: int) -> None:
        """Refuse a tensor in a list, mapping or object that a layer is called with; tuples can be rebuilt."""
        if (holder := holder_of(given[path[0]], path[1:])) is not None:
            raise ValueError(
                f"{self.label(number)}: the input part={path!r} is in a {type(holder).__name__}, which belongs to the "
                "caller. An edit would change that object for everything else that uses it. Edit the output of the "
                "layer that computes the tensor, or pass the tensor itself as an argument"
            )

    def means(self, number: int, again: bool) -> bool:
        """Whether the edit means this call."""
        rule = self.rule
        if not rule.selects:
            return True
        if not number:
            raise RuntimeError(
                f"{self.label(number)}: a checkpoint runs it again in backward, and nothing tells which of its "
                "several calls that is; leave out calls=, positions=, swap, noise, freeze, or the checkpoint"
            )
        if self.owner is not None and not again:
            self.tokens[number] = self.owner.here()
        return rule.calls is None or number in rule.calls

    def _only(self, value: Any, number: int) -> Path | None:
        found = list(tensors(value))  # of a tensor it is the tensor itself
        if len(found) > 1:
            what = "was given" if self.rule.to == "input" else "returned"
            raise ValueError(f"{self.label(number)}: it {what} several tensors; say which: {listed(value)}")
        return found[0][0] if found else None

    def edited(self, tensor: Tensor, number: int, again: bool, samples: int | None = None) -> Tensor:
        """Return the tensor with the edit made, in memory of its own.

        Args:
            tensor: the tensor.
            number: which call of the layer this is; 0 if that cannot be said.
            again: whether the call runs again, in backward, to recompute what a checkpoint did not keep.
            samples: how many the model had in that call, where it does not run any more.

        """
        rule, aim, self.dtype = self.rule, self.rule.aim, tensor.dtype
        places: list[int] = []
        if rule.positions is not None:
            tokens = self.tokens[number]
            places = tokens.places(rule.positions, tensor, self.label(number))
            if not places:
                return tensor
            aim = aim.at_places(places)
            places = [tokens.start + place for place in places]
        moment = Moment(self.label, number, tensor, aim, self.held)
        if rule.by_sample or self.samples is not None:
            self._ask_for_samples(tensor, moment, samples)
        region = _region(tensor, moment) if aim.steps else tensor
        try:
            new = rule.change.compute(region, moment)
        except Exception as error:
            if not str(error).startswith("edit "):
                error.add_note(f"hookscope: in {moment.label}")
            raise
        if new is UNCHANGED:
            if places:
                self.taken[number] = places
            return tensor
        if rule.change.foreign or type(new) is not type(region):  # our own have its shape, dtype and device
            _check(new, region, moment)
        if rule.change.foreign and not aim.steps:
            new = new.clone()  # the function may keep it, and an in-place operation may come next
        if not again:
            self.sizes.add(number, region, new)
            if places:
                self.places[number] = places
        return aim.put(tensor, new) if aim.steps else new

    def _ask_for_samples(self, tensor: Tensor, moment: Moment, count: int | None) -> None:
        """Raise if the first axis is known not to be that of samples, where the edit takes it to be; note doubts."""
        by = self.rule.by_sample
        if by and is_packed(tensor):
            raise RuntimeError(f"{moment.label}: {PACKED}")
        if by and is_wrapped(tensor) and _is_batched(tensor):
            raise RuntimeError(
                f"{moment.label}: under torch.vmap a layer sees one sample at a time, so that samples cannot be told "
                f"apart for {by}; edit a call without vmap"
            )
        if count is None and self.samples is not None:
            count = self.samples()
        if count is None:
            if by:
                self.notes[
                    f"layer {self.layer!r}: nothing tells how many samples the model had, as where only a part of it "
                    f"is called; {by} takes the first axis for that of samples"
                ] = None
            return
        if by and tensor.shape[:1] != (count,):
            raise ValueError(
                f"{moment.label}: {by} takes the first axis for that of samples, but the shape is "
                f"{tuple(tensor.shape)}, and the model's first input has {count} samples; choose a layer that has "
                "samples there, or write an index, such as at[1]"
            )
        if said := as_many(tensor, count, f"layer {self.layer!r}"):
            self.notes[said] = None

    @property
    def done(self) -> set[int]:
        """The numbers of the calls that were edited."""
        return self.sizes.calls

    @property
    def is_whole(self) -> bool:
        """Whether it has come about, and there is nothing more that may be missing."""
        rule = self.rule
        return bool(self.done) and rule.calls is None and rule.positions is None and rule.to != "edges"

    def came(self) -> str:
        """Say which positions there were, in the calls that were meant."""
        ends = [(tokens.start, tokens.start + tokens.count) for tokens in self.tokens.values() if tokens.count]
        if not ends:
            return ""
        return f": {min(first for first, _ in ends)} to {max(last for _, last in ends) - 1} did"

    def missing_positions(self) -> list[int]:
        """List the positions that were asked for and not edited."""
        wanted, change = self.rule.positions, self.rule.change
        edited = {place for places in self.places.values() for place in places}
        if self.rule.to == "edges" and self.tokens:
            return sorted(set(change.options["edges"].queries) - edited)
        nothing = self.missed or (self.rule.to == "grad" and not self.done) or (change.verb == "freeze" and edited)
        if wanted is None or not self.tokens or nothing:
            return []
        if wanted.some is None:
            return [] if edited else [wanted.first]
        return sorted(wanted.some - edited)

    def label(self, number: int | None) -> str:
        """Say which edit, which layer, which call; for messages."""
        call = f", call {number}" if number and number > 0 else ""
        return f"edit {self.rule.number} ({self.rule.change.verb}) of layer {self.layer!r}{call}"


def _region(tensor: Tensor, moment: Moment) -> Tensor:
    """Return the values of a tensor that are meant; raise where there are none."""
    aim = moment.aim
    if is_packed(tensor):
        raise RuntimeError(f"{moment.label}: {PACKED}")
    try:
        region = aim.cut(tensor)
    except IndexError as error:
        raise IndexError(
            f"{moment.label}:{aim.text} does not fit shape {tuple(tensor.shape)}: {error}; if only some calls are "
            "like this, name the others with calls="
        ) from None
    if not region.numel() and tensor.numel():
        raise IndexError(f"{moment.label}:{aim.text} picks nothing of shape {tuple(tensor.shape)}")
    return region


def _check(new: Any, region: Tensor, moment: Moment) -> None:
    """Raise if a new value is not like the one in whose place it is to be."""
    if new is None:
        raise TypeError(
            f"{moment.label}: the function returned None; it has to return the new values, for it gets a copy, and "
            "what it writes there alone changes nothing"
        )
    if not isinstance(new, Tensor):
        raise TypeError(f"{moment.label}: the function returned {type(new).__name__}, not a tensor")
    if region.is_nested or new.is_nested:
        return  # their shapes are lists, and torch compares them itself
    if new.shape != region.shape:
        raise ValueError(f"{moment.label}: shape {tuple(region.shape)} would become {tuple(new.shape)}")
    if new.dtype is not region.dtype:
        raise TypeError(f"{moment.label}: dtype {region.dtype} would become {new.dtype}")
    if new.device != region.device:
        raise ValueError(f"{moment.label}: device {region.device} would become {new.device}")


def _is_batched(tensor: Tensor) -> bool:
    """Whether `torch.vmap` hides an axis of a tensor."""
    while is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False
