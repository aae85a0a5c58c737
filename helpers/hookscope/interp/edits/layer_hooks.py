"""The two hooks that edits register on a layer: they count its calls and apply the edits in the order written."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.captures.recorder import PassRecorder
from hookscope.interp.edits.batch_first import PACKED, is_packed, samples_in
from hookscope.interp.edits.intercept import CallInterceptor, PatchedForward
from hookscope.interp.edits.layer_edit import LayerEdit
from hookscope.interp.edits.nested_values import tensors
from hookscope.interp.edits.pass_hooks import GradientHooks, NoCopyWhileHooked, PassHooks
from hookscope.layers import FusedLayer, attention_would_be_fused, call_id

__all__ = ["LayerHooks"]


_NOTHING = object()
# By names of their own: even to look for them in torch takes a part of a small model's time.
_task_id, _grad_is_on = torch._C._current_graph_task_id, torch.is_grad_enabled


@dataclass(eq=False, slots=True)
class LayerCall:
    """A call of a layer that has not returned yet.

    Attributes:
        number: the number of the call; 0 if it is unknown.
        again: whether a checkpoint runs it again in backward.
        began: autograd's sequence number of the call that it repeats; infinity if it repeats none, or one of another
            thread.
        error: the exception that was being handled when it began.
        call: its ID, see `call_id`.
        samples: the number of samples in its input, if known.

    """

    number: int
    again: bool
    began: float
    error: BaseException | None
    call: int
    samples: int | None = None


class LayerHooks(NoCopyWhileHooked):
    """The hooks on one layer.

    Attributes:
        name: name of the layer.
        module: the layer.
        layer_edits: its edits, by the kind of value that they change.
        seen: how often it was called.
        again: how often a checkpoint ran it again.
        checkpointed: whether it ran inside a checkpoint.
        notes: notes for the user, as keys; shared with other objects.

    """

    def __init__(
        self, name: str, module: nn.Module, fused: FusedLayer | None, notes: dict[str, None],
        gradients: GradientHooks, passes: PassHooks,
    ) -> None:  # fmt: skip
        self.name, self.module = name, module
        self.layer_edits: dict[str, list[LayerEdit]] = {}
        self.seen = self.again = 0
        self.checkpointed = False
        self.notes, self._gradients, self._passes = notes, gradients, passes
        self._returned: WeakTensorKeyDictionary | None = None  # with the number of the call
        self._fused = fused
        # By thread: the calls that have not returned; and the one that is about to run its forward.
        self._running: dict[int, list[LayerCall]] = {}
        self._starting: dict[int, LayerCall] = {}
        self._replaced = False
        self._thread, self._elsewhere = get_ident(), False  # whether another thread has called it
        self._counts = False  # samples

    def register(self, handles: ExitStack, born: int) -> None:
        """Register the hooks; captures that began after `born` still see the edited values.

        Args:
            handles: removes the hooks.
            born: the ID of the first hook of the block.

        """
        module = self.module
        handles.callback(module.register_forward_pre_hook(self.before, with_kwargs=True).remove)
        handles.callback(module.register_forward_hook(self.after, with_kwargs=True, always_call=True).remove)
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            _move_captures_last(hooks, born)

    def take(self, layer_edit: LayerEdit, handles: ExitStack) -> None:
        """Add an edit, which applies from now on."""
        kind = layer_edit.spec.to
        if kind == "heads" and not self._replaced:
            self._replaced = True
            replaced = PatchedForward(self.module, self._inside)
            handles.callback(replaced.remove)
            replaced.install()
        self.layer_edits.setdefault(kind, []).append(layer_edit)
        if kind in ("output", "input"):
            self._passes.note_earlier(self.module, self.name, kind)

    def count_samples(self) -> Callable[[], int | None]:
        """Count the samples of each call from now on; return a function that gives those of the running call."""
        self._counts = True
        running = self._running

        def count() -> int | None:
            runs = running.get(get_ident())
            return runs[-1].samples if runs else None

        return count

    def _inside(self) -> CallInterceptor | None:
        run = self._starting.pop(get_ident(), None)
        if run is None:
            return None  # `forward` was called directly: no hook ran
        if not (layer_edits := self._meant("heads", run)):
            return None

        def heads(merged: Tensor) -> Tensor:
            for layer_edit in layer_edits:
                merged = layer_edit.apply(merged, run.number, run.again)
            return merged

        return CallInterceptor(self.module, heads)

    def _meant(self, kind: str, run: LayerCall) -> list[LayerEdit]:
        """List the edits of a call, without those that were written after the call that it repeats."""
        layer_edits = self.layer_edits.get(kind, [])
        return [each for each in layer_edits if each.since <= run.began] if run.again else layer_edits

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Count the call, and edit its inputs."""
        if kwargs is None:  # another thread is just removing this hook
            return None
        again, thread, began = _task_id() >= 0, get_ident(), math.inf
        if again:
            self.again += 1
            number = 1 if self.seen == 1 else 0
            if not self._elsewhere:  # each thread counts by itself
                began = _when_made()
        else:
            self.seen = number = self.seen + 1
            self._elsewhere |= thread != self._thread
        if self._fused is not None and self._fused.would_run():
            self.notes[f"hooks switch off the fused path of layer {self._fused.name!r}"] = None
        run = LayerCall(number, again, began, sys.exception(), call_id(sys._getframe(1)))
        if self._counts:
            run.samples = samples_in((*args, *kwargs.values()))
        self._running.setdefault(thread, []).append(run)
        if again and not self.seen:
            return None  # the forward pass was before the block
        if not (again or self.checkpointed) and _grad_is_on() and _under_checkpoint():
            self.checkpointed = True
        if self._replaced:
            self._start(run, args, kwargs)
        if "input" not in self.layer_edits:
            return None
        given: Any = {**dict(enumerate(args)), **kwargs}
        for layer_edit in self._meant("input", run):
            given = layer_edit.apply(given, number, again)
        return tuple(given[index] for index in range(len(args))), {key: given[key] for key in kwargs}

    def _start(self, run: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare a call in whose forward something is edited."""
        if any(map(is_packed, (*args, *kwargs.values()))):
            raise RuntimeError(f"{self.layer_edits['heads'][0].label(run.number)}: {PACKED}")
        self._starting[get_ident()] = run
        if self._fused is None and attention_would_be_fused(self.module, args, kwargs):
            self.notes[
                f"edits switch off the fused path of layer {self.name!r}, so values that they do not change can be "
                "rounded differently"
            ] = None

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = _NOTHING) -> Any:
        """Edit the output of the call, and register hooks for its gradient."""
        if output is _NOTHING:  # another thread is just removing this hook, and so there are no keyword arguments
            return None
        runs = self._running.get(get_ident())
        if not runs:
            return None  # the call began before the block
        run = runs[-1]
        if len(runs) > 1 or run.error is not sys.exception():  # another call may end
            ended = _ended(runs, call_id(sys._getframe(1)))
            if ended is None:
                return None  # a hook before ours did not let it begin
            run = ended
        try:
            # With always_call torch calls this after an exception, too.
            if run.error is not sys.exception() or (run.again and not self.seen):
                return None
            value = output
            for layer_edit in self._meant("output", run):
                value = layer_edit.apply(value, run.number, run.again)
            if "grad" in self.layer_edits:
                value = self._waiting(run, args, kwargs, output, value)
            if value is output:
                return None
            self._passes.replace(self.name, output, value, (args, kwargs))
            return value
        finally:
            runs.pop()

    def _waiting(self, run: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, value: Any) -> Any:
        """Wait for the gradients of the edited output; return this output, with aliases in it."""
        if not (grads := self._meant("grad", run)):
            return value
        given = {id(tensor) for _, tensor in tensors((args, kwargs))}
        if not run.again:
            self._must_be_new(output, given, run.number, grads)
        places = Counter(id(tensor) for _, tensor in tensors(output))
        places |= Counter(id(tensor) for _, tensor in tensors(value))
        paths: dict[int, tuple[Tensor, list[LayerEdit]]] = {}

        def wait(tensor: Tensor) -> Tensor:
            if not (tensor.requires_grad and torch.is_grad_enabled()):
                return tensor
            # The gradient of what is returned as it came, or is a parameter, is the sum of that of all its uses,
            # and that of what is returned in two places is the sum of both: only an alias has that of one use.
            if id(tensor) in given or tensor.is_leaf or places[id(tensor)] > 1:
                tensor = tensor.view_as(tensor)
            paths.setdefault(id(tensor), (tensor, []))[1].append(layer_edit)
            if not run.again:  # of which autograd may only want what it had not kept
                layer_edit.hooked.add(run.number)
            return tensor

        for layer_edit in grads:
            value = layer_edit.apply(value, run.number, run.again, wait)
        for tensor, layer_edits in paths.values():
            # A call without a known number counts, too.
            self._gradients.wait(tensor, self._editing(layer_edits, run.number or -self.again))
        return value

    def _must_be_new(self, output: Any, given: set[int], number: int, waiting: list[LayerEdit]) -> None:
        """Refuse a tensor that an earlier call returned, because its gradient is that of both calls."""
        if self._returned is None:
            self._returned = WeakTensorKeyDictionary()
        for _, tensor in tensors(output):
            before = self._returned.get(tensor, number)  # type: ignore[no-untyped-call]
            if before != number:
                for layer_edit in waiting:
                    if layer_edit.applies_to(number, False) or layer_edit.applies_to(before, False):
                        raise RuntimeError(
                            f"{layer_edit.label(number)}: it returned the same tensor as call {before}, so the "
                            "gradient is the sum of both. Edit the gradient of a later layer"
                        )
            if id(tensor) not in given and not tensor.is_leaf:
                self._returned[tensor] = number

    def _editing(self, layer_edits: list[LayerEdit], number: int) -> Callable[[Tensor], Tensor]:
        # Counted now: in backward the model does not run.
        counts = [layer_edit.samples() if layer_edit.samples is not None else None for layer_edit in layer_edits]

        def hook(grad: Tensor) -> Tensor:
            for layer_edit, count in zip(layer_edits, counts, strict=True):
                grad = layer_edit.edit_tensor(grad, number, False, count)
            return grad

        return hook

    before.__qualname__ = after.__qualname__ = "hookscope.edit"  # what a census shows


def _move_captures_last(hooks: dict[int, Any], born: int) -> None:
    """Let captures that began inside the block, later than `born`, come after the hook that was registered last."""
    for key, hook in list(hooks.items()):
        if key >= born and isinstance(getattr(hook, "__self__", None), PassRecorder):
            hooks.move_to_end(key)  # type: ignore[attr-defined]  # as torch does for prepend=True


def _ended(runs: list[LayerCall], call: int) -> LayerCall | None:
    """Find the call that ends now, and forget the calls inside it for which torch called no hook at their end.

    A layer that calls itself can have such calls, after a `KeyboardInterrupt` or a hook that raised an error.

    """
    found = next((run for run in reversed(runs) if run.call == call), None)
    while found is not None and runs[-1] is not found:
        runs.pop()
    return found


def _when_made() -> float:
    """Return the sequence number of the node that the backward pass runs now, as autograd counts in this thread."""
    node = torch._C._current_autograd_node()
    return math.inf if node is None else node._sequence_nr()


_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _under_checkpoint() -> bool:
    """Return whether a checkpoint runs this code, as far as torch shows it. Gradients must be on."""
    if _saving_hooks is None:  # before torch 2.8: whoever called us may tell
        frame = sys._getframe()
        while frame := frame.f_back:  # type: ignore[assignment]
            if frame.f_code.co_name == "checkpoint" and frame.f_globals.get("__name__") == "torch.utils.checkpoint":
                return True
        return False
    hooks = _saving_hooks(False)
    return hooks is not None and "checkpoint" in getattr(hooks[0], "__qualname__", "")
