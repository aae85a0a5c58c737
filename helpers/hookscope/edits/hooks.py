"""The two hooks that edits put on a layer, which count its calls and apply each edit in the order written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.hooks import Hooks as CaptureHooks
from hookscope.captures.keep import is_wrapped
from hookscope.edits.aim import Aim
from hookscope.edits.changes import Change, Moment
from hookscope.edits.parts import get, keys, listed, put, tensors
from hookscope.layers import FusedLayer

__all__ = ["Layer", "Rule", "Target"]

Path = tuple[int | str, ...]


@dataclass(frozen=True, eq=False)
class Rule:
    """One edit, as it was written.

    Attributes:
        number: which one it is, from 1.
        change: what it makes of the values.
        aim: which values of a tensor.
        to: "output", "input" or "grad".
        path: which tensor of a structure; None for the only one.
        calls: numbers of the calls; None for all.

    """

    number: int
    change: Change
    aim: Aim
    to: str
    path: Path | None
    calls: frozenset[int] | None

    @property
    def text(self) -> str:
        """Say what it does, without the layer."""
        part = "" if self.path is None else f" part={self.path[0] if len(self.path) == 1 else self.path!r}"
        calls = "" if self.calls is None else f" calls={{{', '.join(map(str, sorted(self.calls)))}}}"
        to = "" if self.to == "output" else f" to={self.to}"
        return f"{self.change.text}{self.aim.text}{to}{part}{calls}"


@dataclass(eq=False)
class Target:
    """One edit on one layer, and what came of it.

    Attributes:
        rule: the edit.
        layer: the layer's name.
        sizes: tensors with the largest change of a value, for each call edited; None where it could not be measured.
        done: the numbers of these calls.
        missed: what there was in a call that lacked the part, if one did.
        hooked: how many tensors wait for a gradient.
        keys: the way to the part, as it was found in the last call that had it.
        passed_on: whether the layer returned something that it did not make itself, and a gradient of that was wanted.

    """

    rule: Rule
    layer: str
    sizes: list[tuple[Tensor, ...] | None] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    missed: str = ""
    hooked: int = 0
    keys: tuple[tuple[str, Any], ...] = ()
    passed_on: bool = False

    def on(self, value: Any, number: int, again: bool, then: Callable[[Tensor], Tensor] | None = None) -> Any:
        """Return a value with the edit made; the value itself if this call is not meant or lacks the part.

        Args:
            value: a tensor, or a structure with tensors in it.
            number: which call of the layer this is; 0 if that cannot be said.
            again: whether the call runs again, in backward, to recompute what a checkpoint did not keep.
            then: what to do with the tensor instead, if not to edit it.

        """
        rule = self.rule
        if rule.calls is not None or rule.change.numbered:
            if not number:
                raise RuntimeError(
                    f"{self.label(number)}: a checkpoint runs it again in backward, and nothing tells which of its "
                    "several calls that is; leave out calls=, swap, noise, or the checkpoint"
                )
            if rule.calls is not None and number not in rule.calls:
                return value
        path = rule.path
        if path is None:
            path = () if isinstance(value, Tensor) else self._only(value, number)
        try:
            tensor = get(value, path) if path is not None else None
        except LookupError:
            tensor = None
        if not isinstance(tensor, Tensor):
            self.missed = listed(value)
            return value
        if path:
            self.keys = keys(value, path)
        new = self.edited(tensor, number, again) if then is None else then(tensor)
        return value if new is tensor else put(value, path or (), new)

    def _only(self, value: Any, number: int) -> Path | None:
        found = list(tensors(value))
        if len(found) > 1:
            what = "was given" if self.rule.to == "input" else "returned"
            raise ValueError(f"{self.label(number)}: it {what} several tensors; say which: {listed(value)}")
        return found[0][0] if found else None

    def edited(self, tensor: Tensor, number: int, again: bool) -> Tensor:
        """Return the tensor with the edit made, in memory of its own."""
        rule = self.rule
        label = self.label(number)
        moment = Moment(label, self.layer, number, tensor)
        try:
            region = rule.aim.cut(tensor)
        except IndexError as error:
            raise IndexError(
                f"{label}:{rule.aim.text} does not fit shape {tuple(tensor.shape)}: {error}; if only some calls are "
                "like this, name the others with calls="
            ) from None
        if rule.aim.steps and not region.numel() and tensor.numel():
            raise IndexError(f"{label}:{rule.aim.text} picks nothing of shape {tuple(tensor.shape)}")
        with _told(label):
            new = rule.change.compute(region, moment)
        _check(new, region, label)
        if rule.change.foreign and not rule.aim.steps and _uses(new) > _alone:
            new = new.clone()  # somebody else holds it, and an in-place operation may come next
        if not again:
            self.done.add(number)
            self.sizes.append(_largest(region, new))
        return rule.aim.put(tensor, new)

    def label(self, number: int) -> str:
        """Say which edit, which layer, which call; for messages."""
        call = f", call {number}" if number else ""
        return f"edit {self.rule.number} ({self.rule.change.verb}) of layer {self.layer!r}{call}"


@contextmanager
def _told(label: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not str(error).startswith("edit "):
            error.add_note(f"hookscope: in {label}")
        raise


def _check(new: Any, region: Tensor, label: str) -> None:
    """Raise if a new value is not like the one in whose place it is to be."""
    if new is None:
        raise TypeError(
            f"{label}: the function returned None; it has to return the new values, for it gets a copy, and what it "
            "writes there alone changes nothing"
        )
    if not isinstance(new, Tensor):
        raise TypeError(f"{label}: the function returned {type(new).__name__}, not a tensor")
    if region.is_nested or new.is_nested:
        return  # their shapes are lists, and torch compares them itself
    if new.shape != region.shape:
        raise ValueError(f"{label}: shape {tuple(region.shape)} would become {tuple(new.shape)}")
    if new.dtype is not region.dtype:
        raise TypeError(f"{label}: dtype {region.dtype} would become {new.dtype}")
    if new.device != region.device:
        raise ValueError(f"{label}: device {region.device} would become {new.device}")


def _largest(old: Tensor, new: Tensor) -> tuple[Tensor, ...] | None:
    """Measure the largest change of a value, without waiting for it: the largest and the smallest differences."""
    if is_wrapped(old) or is_wrapped(new) or old.is_nested or not old.numel() or old.layout is not torch.strided:
        return None
    old, new = old.detach(), new.detach()
    if old.dtype is torch.bool:
        return ((old != new).any(),)
    with torch.no_grad():
        if old.is_complex():
            return ((new - old).abs().max(),)
        # Not torch.dist, nor a norm: for infinity they take ten times as long.
        return torch.aminmax(new - old)


_use_count: Callable[[int], float] = getattr(torch._C, "_storage_Use_Count", lambda cdata: float("inf"))


def _uses(tensor: Tensor) -> tuple[int, float]:
    """Count who holds a tensor, and how many tensors have its memory."""
    if is_wrapped(tensor) or tensor.layout is not torch.strided:
        return (sys.maxsize, 0)
    return (sys.getrefcount(tensor), _use_count(tensor.untyped_storage()._cdata))


def _uses_of_a_new_one() -> tuple[int, float]:
    new = torch.empty(1, device="cpu")
    return _uses(new)


_alone = _uses_of_a_new_one()


def in_backward() -> bool:
    """Whether a backward pass is running, and this is called from inside of it."""
    return bool(torch._C._current_graph_task_id() >= 0)


class _Running(threading.local):
    """The calls that have not returned, of each thread by itself: their numbers, and whether they run again."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []


class Layer:
    """The hooks on one layer.

    Attributes:
        name: name of the layer.
        module: the layer.
        targets: its edits, by what they change.
        seen: how often it was called.
        again: how often it ran again, to recompute what a checkpoint did not keep.
        checkpointed: whether it ran where a checkpoint does not keep what autograd needs.
        notes: what there is to know, as keys; shared with the others.
        handles: what takes hooks on tensors off.

    """

    def __init__(
        self, name: str, module: nn.Module, fused: FusedLayer | None, notes: dict[str, None], handles: list[Any]
    ) -> None:
        self.name, self.module = name, module
        self.targets: dict[str, list[Target]] = {"input": [], "output": [], "grad": []}
        self.seen = self.again = 0
        self.checkpointed = False
        self.notes, self.handles = notes, handles
        self._fused = fused
        self._running = _Running()

    def put_on(self, born: int) -> None:
        """Hook the layer; captures that began inside the block, later than `born`, go on seeing what was edited."""
        self.handles.append(self.module.register_forward_pre_hook(self.before, with_kwargs=True))
        self.handles.append(self.module.register_forward_hook(self.after, with_kwargs=True))
        for hooks in (self.module._forward_pre_hooks, self.module._forward_hooks):
            for key, hook in list(hooks.items()):
                if key >= born and isinstance(getattr(hook, "__self__", None), CaptureHooks):
                    hooks.move_to_end(key)  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Reached by copy.deepcopy(model) and torch.save(model), since the model's hooks are bound to this object.
        if self.handles:
            raise RuntimeError("the model is being edited, and a copy would keep the hooks; copy it outside the block")
        return super().__reduce_ex__(protocol)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count the call, and edit what it is given."""
        again = in_backward()
        if again:
            self.again += 1
            number = 1 if self.seen == 1 else 0
        else:
            self.seen = number = self.seen + 1
        self._running.calls.append((number, again))
        if self._fused is not None and self._fused.would_run():
            self.notes[f"hooks switch off the fused path of layer {self._fused.name!r}"] = None
        if again and not self.seen:
            return None  # the forward pass was before the block
        if not again and not self.checkpointed and _under_checkpoint():
            self.checkpointed = True
        if not (edits := self.targets["input"]):
            return None
        given: Any = {**dict(enumerate(args)), **kwargs}
        for target in edits:
            given = target.on(given, number, again)
        return tuple(given[index] for index in range(len(args))), {key: given[key] for key in kwargs}

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Edit what the call returned, and wait for the gradient of it."""
        calls = self._running.calls
        if not calls:
            return None  # the call began before the block
        number, again = calls.pop()
        if again and not self.seen:
            return None
        value = output
        for target in self.targets["output"]:
            value = target.on(value, number, again)
        if waiting := self.targets["grad"]:
            given = {id(tensor) for _, tensor in tensors((args, kwargs))}
            paths: dict[int, tuple[Tensor, list[Target]]] = {}

            def wait(tensor: Tensor) -> Tensor:
                if not tensor.requires_grad:
                    return tensor
                # The gradient of what is returned as it came, or is a parameter, is the sum of that of all its uses:
                # only an alias has that of this use alone.
                if id(tensor) in given or tensor.is_leaf:
                    tensor = tensor.view_as(tensor)
                    target.passed_on = True
                paths.setdefault(id(tensor), (tensor, []))[1].append(target)
                target.hooked += 1
                return tensor

            for target in waiting:
                value = target.on(value, number, again, wait)
            for tensor, targets in paths.values():
                self.handles.append(tensor.register_hook(_editing(targets, number)))  # type: ignore[no-untyped-call]
        return None if value is output else value

    before.__qualname__ = after.__qualname__ = "hookscope.edit"  # what a census shows


def _editing(targets: list[Target], number: int) -> Callable[[Tensor], Tensor]:
    def hook(grad: Tensor) -> Tensor:
        for target in targets:
            grad = target.edited(grad, number, False)
        return grad

    return hook


def _under_checkpoint() -> bool:
    """Whether a checkpoint is keeping this, as far as torch lets us know."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(False) if top is not None and torch.is_grad_enabled() else None
    return hooks is not None and "checkpoint" in getattr(hooks[0], "__qualname__", "")
