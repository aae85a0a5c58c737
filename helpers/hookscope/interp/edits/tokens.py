"""Find the positions of a call's tokens in the whole sequence, including those that a KV cache already holds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.interp.edits.pass_hooks import NoCopyWhileHooked
from hookscope.interp.edits.selection import numbers_in
from hookscope.layers import Modules
from hookscope.task_local import TaskLocal

__all__ = ["Positions", "TokenSource", "Tokens", "find_token_source", "parse_positions"]

_IDS = ("input_ids", "inputs_embeds")
_CACHES = ("past_key_values", "past_key_value", "layer_past", "past", "kv_cache", "cache", "cache_params")
# What an RNN, or a model with a memory, hands on: it says that tokens came before, and not how many.
_STATES = (
    "state", "states", "hidden", "hx", "mems", "memory", "past_buckets_states", "initial_state", "initial_states",
    "conv_state",
)  # fmt: skip
_STARTS = ("cache_position", "input_pos", "start_pos")


@dataclass(frozen=True)
class Positions:
    """Positions in a sequence that an edit selects.

    Attributes:
        text: the positions as the user wrote them.
        first: the smallest position.
        some: all positions; None if there is no end.
        step: the distance between positions if there is no end.

    """

    text: str
    first: int
    some: frozenset[int] | None
    step: int = 1

    def among(self, start: int, count: int) -> list[int]:
        """Return the selected positions of a call, counted from the start of the call."""
        if self.some is not None:
            return [place for place in range(count) if place + start in self.some]
        return [
            place
            for place in range(count)
            if place + start >= self.first and not (place + start - self.first) % self.step
        ]


def parse_positions(given: Any) -> Positions | None:
    """Check the value of `positions=` and return it as `Positions`.

    Raises:
        TypeError: a position is not an integer.
        ValueError: there are no positions, or one is negative.

    Example:
        >>> parse_positions(range(2, 9, 3)).among(4, 3)
        [1]
        >>> parse_positions(slice(5, None)).among(4, 3)
        [1, 2]

    """
    if given is None:
        return None
    text = f"positions={given!r}"
    if isinstance(given, slice):
        first, step = given.start or 0, 1 if given.step is None else given.step
        numbered = all(isinstance(end, int) and not isinstance(end, bool) for end in (first, step, given.stop or 0))
        if not numbered or first < 0 or step < 1 or (given.stop is not None and given.stop <= first):
            raise ValueError(f"{text} is not an increasing slice from 0 on. Pass one, such as slice(5, None)")
        some = None if given.stop is None else frozenset(range(first, given.stop, step))
        return Positions(text, first, some, step)
    try:
        numbers = frozenset(numbers_in(given))
    except TypeError:
        raise TypeError(f"{text} does not consist of integers. Pass some, such as 7 or range(12)") from None
    if not numbers:
        raise ValueError(f"{text} is empty. Pass at least one position")
    if min(numbers) < 0:
        raise ValueError(f"{text}: positions are counted from 0. For the last one of each call, use at[:, -1]")
    return Positions(text, min(numbers), numbers)


@dataclass(frozen=True)
class Tokens:
    """The tokens of one call of a model.

    Attributes:
        start: the number of tokens in earlier calls.
        count: the number of tokens per sample in this call.
        batch: the number of samples.
        problem: the reason if these numbers are unknown; empty otherwise.

    """

    start: int = 0
    count: int = 0
    batch: int = 0
    problem: str = ""

    def places(self, positions: Positions, tensor: Tensor, label: str) -> list[int]:
        """Return the selected indices on axis 1 of a tensor.

        Raises:
            ValueError: the positions are unknown.

        """
        if self.problem:
            raise ValueError(f"{label}: cannot determine which positions this call computes: {self.problem}")
        found = positions.among(self.start, self.count)
        kind = 2 if not tensor.is_floating_point() else 3
        if found and (tensor.dim() != kind or tensor.shape[:2] != (self.batch, self.count)):
            raise ValueError(
                f"{label}: positions= needs a tensor of shape ({self.batch}, {self.count}, …), samples and tokens, but "
                f"this one has {tuple(tensor.shape)}. Use an index instead, such as at[:, -1], and calls="
            )
        return found


@dataclass(eq=False)
class TokenSource(NoCopyWhileHooked):
    """The module that gets the tokens and, if there is one, the cache of earlier tokens.

    Attributes:
        name: the name of the module.
        module: the module.
        notes: notes for the user, as keys; shared with other objects.
        sure: whether the module was recognized by the names of its parameters.

    """

    name: str
    module: nn.Module
    notes: dict[str, None]
    sure: bool = True
    _calls: int = 0
    _running: TaskLocal[list[Tokens]] = field(default_factory=lambda: TaskLocal(list))

    def register(self, handles: ExitStack) -> None:
        """Register the hooks; they come first, because the model itself might be edited, too."""
        before = self.module.register_forward_pre_hook(self.before, with_kwargs=True, prepend=True)
        handles.callback(before.remove)
        handles.callback(self.module.register_forward_hook(self.after, always_call=True).remove)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the tokens of this call."""
        self._calls += 1
        self._running.get().append(self._read(args, kwargs))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Remove the tokens of this call."""
        if running := self._running.get():
            running.pop()

    before.__qualname__ = after.__qualname__ = "hookscope.edit"

    def here(self) -> Tokens:
        """Return the tokens of the call that is running."""
        running = self._running.get()
        return running[-1] if running else Tokens(problem=f"the layer was called outside {self._what}")

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.module.forward)

    @property
    def _what(self) -> str:
        return f"module {self.name!r}" if self.name else "the model"

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tokens:
        given = _given(self._signature, args, kwargs)
        ids = next((given[name] for name in _IDS if isinstance(given.get(name), Tensor)), None)
        embedded = ids is not None and ids.is_floating_point()
        if ids is None and not self.sure:
            ids = next((value for value in given.values() if isinstance(value, Tensor)), None)
            if ids is None or ids.dim() != 2 or ids.is_floating_point() or ids.dtype is torch.bool:
                return Tokens(
                    problem=f"{self._what} was called without token IDs of shape (samples, tokens). Use an index "
                    "into the layer's tensor instead, such as at[:, 7]"
                )
        if ids is None:
            return Tokens(problem=f"{self._what} was called without input_ids or inputs_embeds")
        shape = ids.shape[:-1] if embedded else ids.shape
        count, batch = shape[-1], int(shape[:-1].numel()) if len(shape) > 1 else 1
        start = self._start(given, count)
        if isinstance(start, str):
            return Tokens(problem=start)
        self._note(given, start)
        return Tokens(start, count, batch)

    def _start(self, given: dict[str, Any], count: int) -> int | str:
        """Return how many tokens came before, or the reason why this is unknown."""
        for name in _STARTS:
            if (value := given.get(name)) is not None:
                return int(value.flatten()[0]) if isinstance(value, Tensor) else int(value)
        for name in _CACHES:
            if (cache := given.get(name)) is not None:
                return _length(cache, name)
        for name in _STATES:
            if given.get(name) is not None:
                taken = [start for start in _STARTS if start in self._signature.parameters]
                fix = f"pass {taken[0]} to it, or use" if taken else "use"
                return (
                    f"{self._what} was called with {name}, a state from an unknown number of earlier tokens. To select "
                    f"tokens, {fix} calls= and an index, such as at[:, 0]"
                )
        if not any(name in self._signature.parameters for name in _CACHES) and self._calls > 1:
            if count == 1:
                return (
                    f"{self._what} was called with 1 token, and nothing tells how many came before. Pass "
                    f"{' or '.join(_STARTS)} to it, or use calls= and at[:, 0]"
                )
            self.notes[f"{self._what} got no cache, so positions are counted from 0 in each of its calls"] = None
        return 0

    def _note(self, given: dict[str, Any], start: int) -> None:
        real, ids = _real(given.get("attention_mask"), start), given.get("position_ids")
        if real is not None:
            if padded := (~real[:, 0]).nonzero().flatten().tolist():
                self.notes[
                    f"samples {padded} begin with padding, and positions= counts it: the first real token of sample "
                    f"{padded[0]} has position {int(real[padded[0]].int().argmax())}"
                ] = None
        elif isinstance(ids, Tensor) and ids.numel() and int(ids.flatten()[0]) != start:
            self.notes["position_ids do not start at the number of earlier tokens, but positions= counts tokens"] = None


def _real(mask: Any, start: int) -> Tensor | None:
    """Return which tokens are real and which are padding, [samples, tokens]; None if the mask does not say it.

    With a static cache, transformers passes a model the mask of its attention, [samples, 1, queries, keys]. In this
    mask, a padding token does not even see itself, with or without a sliding window.
    """
    if isinstance(mask, Mapping):
        mask = next(iter(mask.values()), None)
    if not isinstance(mask, Tensor) or mask.is_meta or not mask.numel():
        return None
    if mask.dim() == 2:
        return mask != 0
    if mask.dim() != 4 or start:
        return None
    return (mask[:, 0] if mask.dtype is torch.bool else mask[:, 0] == 0).diagonal(dim1=1, dim2=2)


def _given(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, by the names of the parameters."""
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError:
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({str(place): item for place, item in enumerate(value)})
        else:
            found[name] = value
    return found


def _counts(layer: Any) -> bool:
    """Return whether a layer of a cache can tell how many tokens it holds."""
    try:
        return layer.get_seq_length() is not None
    except Exception:  # one of a recurrence may raise whatever it likes
        return False


def _length(cache: Any, name: str) -> int | str:
    """Count the tokens that a cache holds."""
    if (length := getattr(cache, "get_seq_length", None)) is not None:
        with suppress(ValueError):  # it holds states of a recurrence, not tokens
            # Of all layers, where it can be asked: the first may be a recurrence among layers of attention.
            of_layers = [each.get_seq_length() for each in getattr(cache, "layers", ()) if _counts(each)]
            return max(map(int, [length(), *of_layers]))
    while isinstance(cache, (tuple, list)):
        if not cache:
            return 0
        cache = cache[0]
    if isinstance(cache, Tensor) and cache.dim() >= 3:
        return int(cache.shape[-2])
    return f"{name} is a {type(cache).__name__} that does not tell how many tokens it holds. Pass cache_position, too"


def find_token_source(modules: Modules, name: str) -> tuple[str, nn.Module, bool]:
    """Find the module around a layer that gets the tokens; return its name, the module, and whether this is certain.

    It is the innermost module that takes both tokens and a cache, as models of transformers do. If there is none, it
    is the outermost module that takes tokens, or else the model.
    """
    parts = name.split(".") if name else []
    taking = []
    for end in range(len(parts) - 1, -1, -1) if parts else [0]:
        outer = ".".join(parts[:end])
        module = modules.find(outer)
        takes = inspect.signature(module.forward).parameters if module is not None else {}
        if module is None or not any(each in takes for each in _IDS):
            continue
        taking.append((outer, module, True))
        if any(each in takes for each in _CACHES):
            return taking[-1]
    return taking[-1] if taking else ("", modules.model, False)
