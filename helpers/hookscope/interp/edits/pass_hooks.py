"""Hooks that count the passes of a model, and hooks on tensors that edit gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.pytree import find_paths, find_tensors, keystr

__all__ = ["GradientHooks", "NoCopyWhileHooked", "PassHooks"]


class NoCopyWhileHooked:
    """An object whose methods are hooks of a model while it is edited, so that the model cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # copy.deepcopy(model) and torch.save(model) come here.
        raise RuntimeError("the model is being edited, and a copy would keep the hooks. Copy it after the block")


class PassHooks(NoCopyWhileHooked):
    """The hooks on the model itself: they count its passes and find values from before an edit in its output.

    Args:
        notes: notes for the user, as keys.

    Attributes:
        count: the number of passes.
        earlier: a quiet note for each hook of others that runs before an edit, as keys.

    """

    def __init__(self, notes: dict[str, None]) -> None:
        self.count = 0
        self.earlier: dict[str, None] = {}
        self._notes = notes
        self._old = WeakTensorKeyDictionary()  # with the name of the layer that returned it

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Count a pass, unless it recomputes the values that a checkpoint did not keep."""
        self.count += torch._C._current_graph_task_id() < 0

    def replace(self, layer: str, old: Any, new: Any, given: Any) -> None:
        """Remember the tensors that an edit of an output replaced, without those that the layer was given."""
        kept = {id(tensor) for tensor in find_tensors((new, given))}
        for tensor in find_tensors(old):
            if id(tensor) not in kept:
                self._old[tensor] = layer

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note which old values the model returns. In transformers, earlier hooks collect `hidden_states`."""
        for path, tensor in find_paths(output) if self._old else ():
            if (layer := self._old.get(tensor)) is not None:  # type: ignore[no-untyped-call]
                self._notes[
                    f"output{keystr(path)} of the model is what layer {layer!r} returned before the edit: the edit "
                    "runs after the hook or the code that kept this value. The layers that follow get the new value"
                ] = None
                return

    def note_earlier(self, module: nn.Module, layer: str, kind: str) -> None:
        """Note the hooks of others that run before an edit of an output or input, and so see the old value."""
        name = {"output": "_forward_hooks", "input": "_forward_pre_hooks"}[kind]
        for hook in (*getattr(torch_module, f"_global{name}").values(), *getattr(module, name).values()):
            if isinstance(getattr(hook, "__self__", None), NoCopyWhileHooked):
                return  # hooks after this one see the new value
            if not (getattr(hook, "__module__", None) or "").startswith(("torch.", "hookscope.")):
                called = getattr(hook, "__name__", type(hook).__name__)
                self.earlier[
                    f"hook {called} was on layer {layer!r} before the edit, so it sees the {kind} from before the edit"
                ] = None

    after.__qualname__ = "hookscope.edit"
    before.__qualname__ = "hookscope.edit"  # what a census shows


class GradientHooks:
    """The tensor hooks of all layers, which edit gradients."""

    def __init__(self) -> None:
        self._edits: WeakTensorKeyDictionary | None = None  # made when it is needed: that takes time, too
        self._handles: list[RemovableHandle] = []
        self._room = 64

    def wait(self, tensor: Tensor, editing: Callable[[Tensor], Tensor]) -> None:
        """Edit the gradient of a tensor when torch computes it."""
        if self._edits is None:
            self._edits = WeakTensorKeyDictionary()
        made, edits = self._edits.get(tensor, (None, None))  # type: ignore[no-untyped-call]
        if edits is not None and made is tensor.grad_fn:
            edits.insert(0, editing)  # a layer inside of this one returned it: a gradient is here first
            return
        if len(self._handles) >= self._room:  # what steps of training have left behind is gone
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._room = max(64, 2 * len(self._handles))
        # With what made it: written to in place it is another, whose gradient is another.
        _, edits = self._edits[tensor] = tensor.grad_fn, [editing]
        self._handles.append(tensor.register_hook(lambda grad: _all(edits, grad)))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Remove the hooks; you can call this repeatedly."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._edits = None


def _all(edits: list[Callable[[Tensor], Tensor]], grad: Tensor | None) -> Tensor | None:
    if grad is None:  # torch gives that of a chunk that nothing uses, and who wrote a Function may
        return None
    for editing in edits:
        grad = editing(grad)
    return grad
