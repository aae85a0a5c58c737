"""The two hooks that a capture registers on every layer, and the calls that they keep from one pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call, Missing, Slot, Wanted
from hookscope.captures.early_stop import EarlyStop
from hookscope.captures.functorch import UNDER_TRANSFORM, is_wrapped
from hookscope.captures.inplace import Overwrites
from hookscope.captures.stats import Stats, shape_of
from hookscope.captures.tensor_copies import StorageOptions, keep_fallback
from hookscope.layers import FusedLayer, LateModules, Modules, call_id
from hookscope.pytree import find_paths, tree_map
from hookscope.task_local import TaskLocal, current_task_name

__all__ = ["CaptureTooLargeError", "PassRecord", "PassRecorder"]


class CaptureTooLargeError(MemoryError):
    """A capture would keep more than `max_bytes`."""


class _Strand:
    """The position of a thread, or of an asyncio task, in the calls of a pass."""

    def __init__(self) -> None:
        # The calls that have not returned, innermost last: by what they are told apart, and what is known of them.
        self.running: list[tuple[int, nn.Module, Call | None]] = []
        self.last: Call | None = None
        self.run = 0
        self.name = current_task_name()


class PassRecord:
    """The calls that the hooks kept from one pass.

    Attributes:
        order: the calls, in the order in which they started.
        notes: notes for the user, as keys.

    """

    unwatched = False
    """Whether some outputs are inference tensors, for which torch does not count writes."""
    opaque = ""
    """The class of what the model returned, if it holds no tensor in tuples, lists, mappings and dataclasses."""

    def __init__(self, order: list[Call], notes: dict[str, None]) -> None:
        self.order, self.notes = order, notes
        self._by_layer: dict[str, list[Call]] = {}

    def by_layer(self) -> dict[str, list[Call]]:
        """Return the calls of each layer that was called, in the order of the first calls."""
        for call in self.order[sum(map(len, self._by_layer.values())) :]:
            self._by_layer.setdefault(call.layer, []).append(call)
        return self._by_layer


class PassRecorder(PassRecord):
    """Keeps one pass of a model; each pass has a new one.

    The code that runs for every layer is written for speed: 10 µs of Python add 10 % to a layer that takes 100 µs.

    Attributes:
        last: the last call that returned.
        writes: which outputs were overwritten later.
        early_stop: when to end the pass early.
        ran: whether the model, or one of the layers, was called at all.

    """

    def __init__(
        self,
        modules: Modules,
        layers: Mapping[nn.Module, str],
        wanted: Wanted,
        fused: Mapping[nn.Module, FusedLayer],
    ) -> None:
        """Create the hooks, without registering them yet.

        Args:
            modules: the modules of the model.
            layers: the chosen layers, with their names.
            wanted: what to keep.
            fused: the fused layers around them.

        """
        self.writes = Overwrites()
        super().__init__([], {})
        self.last: Call | None = None
        self.ran = False
        self._model, self._layers, self._wanted, self._fused = modules.model, layers, wanted, fused
        self._modules = modules
        self._stack = ExitStack()  # removes the hooks
        self._owner: object = None
        self._numbers: dict[str, int] = {}  # calls of each layer so far
        self._per_task = TaskLocal(_Strand)
        self._runs = count(1)
        self._lock = threading.Lock()  # several threads may run the model
        self._bytes = 0
        self.early_stop = EarlyStop(layers.values(), wanted.stop) if wanted.stop else None

    def register(self, owner: object) -> None:
        """Register hooks on the layers, and always on the root, because its inputs belong to the caller.

        Args:
            owner: an object that must stay alive as long as the hooks are registered.

        """
        self._owner = owner
        if self.early_stop is not None:
            self.early_stop.owner = self._per_task.get()
        for module in dict.fromkeys([self._model, *self._layers]):
            self._stack.callback(module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
            self._stack.callback(module.register_forward_hook(self._after).remove)
        late_modules = LateModules(self._modules.names, self._note_late)
        self._stack.callback(late_modules.remove)
        late_modules.register()

    def _note_late(self, module: nn.Module, name: str, leaf: bool) -> None:
        # If it takes the place of a chosen layer, or if all leaves are chosen.
        names = self._layers.values()
        if name in names or (leaf and self._modules.leaves.keys() <= set(names)):
            self.notes[
                f"layer {name}: a {type(module).__name__} was added to the model inside the block, so it is not "
                "captured. Call the model once before capture(...), or use hookscope.record"
            ] = None

    def remove(self) -> None:
        """Remove all hooks, including those on tensors, and check for writes once more; you can call it repeatedly."""
        try:
            self._stack.close()
        finally:
            self._owner = None
            self._per_task.clear()
            self.writes.close(self.last)
            if self.early_stop is not None:
                self.early_stop.owner = None
                if self.early_stop.caught:
                    self.notes["the model caught the exception with which stop=True ends a pass, and continued"] = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Reached by copy.deepcopy(model) and torch.save(model), since the model's hooks are bound to this object.
        if self._owner is not None:
            raise RuntimeError(
                f"{type(self._model).__name__} is being captured, and a copy would keep the hooks. Copy or save it "
                "after the with block, or save its state_dict()"
            )
        return PassRecord, (self.order, self.notes)

    def _calls_itself(self, here: _Strand) -> bool:
        """Return whether the model is called inside a call of itself; a call that an exception ended does not count."""
        if all(module is not self._model for _, module, _ in here.running):
            return False
        frame, calls = sys._getframe(), 0
        while frame := frame.f_back:  # type: ignore[assignment]
            calls += frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is self._model
        return calls > 1

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # Without kwargs only in a race: a thread may read torch's hooks just before it says that this one takes them.
        here = self._per_task.get()
        if not here.running or (module is self._model and not self._calls_itself(here)):
            again = torch._C._current_graph_task_id() >= 0  # a checkpoint runs it again, in backward
            self.ran = True
            here.run = 0 if again else next(self._runs)
        if (name := self._layers.get(module)) is None:
            here.running.append((call_id(sys._getframe(1)), module, None))
            return
        call = Call(name, self._numbers.get(name, 0) + 1, type(module).__name__, self._wanted)
        call.by, call.run = here.name, here.run
        self.writes.look(call, here.last, inside=False)
        if self._wanted.inputs:
            take = partial(self._slot, call=call)
            call._args = tree_map(take, (args, kwargs or {}), note=partial(self._say, call))
        if self._fused and (fused := self._fused.get(module)) and fused.would_run():
            self.notes[f"hooks switch off the fused path of layer {fused.name!r}"] = None
        with self._lock:
            call.number = self._numbers[name] = self._numbers.get(name, 0) + 1
            self.order.append(call)
        here.running.append((call_id(sys._getframe(1)), module, call))

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        here = self._per_task.get()
        running, this = here.running, call_id(sys._getframe(1))
        if running and running[-1][0] == this:
            call = running.pop()[2]
        else:
            places = range(len(running))[::-1]
            place = next((i for i in places if running[i][0] == this), None)
            if place is None:
                return  # the call began before the block
            call = running[place][2]
            # What was called further in and is still here was left by an exception that the model caught.
            del running[place:]
        if call is None:
            if self.early_stop is not None:
                self.early_stop.again(here)
            if type(output) is not Tensor and module is self._model:
                self.opaque = "" if any(find_paths(output, objects=False)) else type(output).__name__
            return
        self.writes.look(call, here.last, inside=True)
        if type(output) is Tensor:
            call._output = self._take(output, call)
        else:
            call._output = tree_map(partial(self._take, call=call), output, note=partial(self._say, call))
        call._returned = True
        self.last = here.last = call
        if self.early_stop is not None and self.early_stop.returned(call.layer, call.label, here):
            self.notes[f"stop=True does not end the pass of {here.name}, which did not enter the block"] = None

    def _take(self, tensor: Tensor, call: Call) -> Slot:
        wanted, needs_grad = self._wanted, tensor.requires_grad
        slot = self._slot(tensor, call)
        if isinstance(slot.value, Missing):
            return slot
        if isinstance(wanted.form, StorageOptions):
            if wanted.gradients and needs_grad and wanted.max_bytes is not None:
                self._count_bytes(wanted.form.bytes_of(tensor), call)  # of the gradient, which will come
            self.writes.add(tensor, call)
            self.unwatched |= tensor.is_inference()
        # Reading grad_fn first: torch before 2.15 kills Python where a view of what was edited in place gets a hook.
        if wanted.gradients and needs_grad and (tensor.is_leaf or tensor.grad_fn):
            say = partial(_add_note, self.notes, call)  # not of self: the graph must not keep the model alive
            handle = tensor.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: None if grad is None else slot.add(grad, wanted.form, say)
            )
            self._stack.callback(handle.remove)
        return slot

    def _slot(self, tensor: Tensor, call: Call) -> Slot:
        form, shape = self._wanted.form, shape_of(tensor)
        kept: Tensor | Stats
        # Whatever kind of tensor this is: that it cannot be kept is no reason for the model to fail.
        if is_wrapped(tensor):
            self._say(call, UNDER_TRANSFORM)
            return Slot(Missing(f"layer {call.layer or '(root)'!r} has no values: {UNDER_TRANSFORM}"), False, shape)
        if not isinstance(form, StorageOptions):
            try:
                kept = form(tensor)
            except Exception as error:
                kept = keep_fallback(tensor, form, error, partial(self._say, call))
            return Slot(kept, tensor.requires_grad, shape)
        if self._wanted.max_bytes is not None:
            self._count_bytes(form.bytes_of(tensor), call)
        reference = form.refers_to(tensor)
        try:
            kept = form.part_of(tensor.detach()) if reference else form(tensor.detach())
        except Exception as error:
            reference, kept = False, keep_fallback(tensor, form, error, partial(self._say, call))
        if form.picks_nothing(tensor, kept):
            self._say(call, f"{form.asked()} selects nothing from a tensor of shape {shape}")
        return Slot(kept, tensor.requires_grad, shape, reference)

    def _say(self, call: Call, text: str) -> None:
        _add_note(self.notes, call, text)

    def _count_bytes(self, more: int, call: Call) -> None:
        self._bytes += more
        if self._bytes > (limit := self._wanted.max_bytes or 0):
            raise CaptureTooLargeError(
                f"this capture would keep more than max_bytes={limit:,}; reached at call {call.label}. "
                "Choose fewer layers, or pass samples=0, dtype=torch.float16 or stats=True"
            )


def _add_note(notes: dict[str, None], call: Call, text: str) -> None:
    # Once for each reason and layer, and no more than there is room to read.
    if len(notes) < _MOST_NOTES:
        notes[f"layer {call.layer or '(root)'}: {text}"] = None
    else:
        notes["and more notes like these"] = None


_MOST_NOTES = 20
