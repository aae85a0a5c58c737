"""Hooks that count the passes of a model, and hooks on tensors that edit gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["GradientHooks", "NoCopyWhileHooked", "PassCounter", "note_earlier_hooks"]


def note_earlier_hooks(module: nn.Module, layer: str, kind: str, notes: dict[str, None]) -> None:
    """Note the hooks of others that run before an edit, so they see the old value; transformers leaves such hooks.

    Args:
        module: the layer.
        layer: its name.
        kind: "output" or "input".
        notes: notes for the user, as keys; a hook that is on several layers gets one.

    """
    name = {"output": "_forward_hooks", "input": "_forward_pre_hooks"}[kind]
    for hook in (*getattr(torch_module, f"_global{name}").values(), *getattr(module, name).values()):
        if isinstance(getattr(hook, "__self__", None), NoCopyWhileHooked):
            return  # hooks after this one see the new value
        if not (getattr(hook, "__module__", None) or "").startswith(("torch.", "hookscope.")):
            start = f"hook {getattr(hook, '__name__', type(hook).__name__)} was there before the edit, so it sees the"
            if not any(note.startswith(start) for note in notes):
                notes[
                    f"{start} {kind} of layer {layer!r} from before the edit. If the model returns what this hook "
                    "stored, as transformers does for hidden_states, that is the old value, too"
                ] = None


class NoCopyWhileHooked:
    """An object whose methods are hooks of a model while it is edited, so that the model cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # copy.deepcopy(model) and torch.save(model) come here.
        raise RuntimeError("the model is being edited, and a copy would keep the hooks. Copy it after the block")


class PassCounter(NoCopyWhileHooked):
    """The hook that counts the passes of a model, which helps to explain why an edit did not happen.

    Attributes:
        count: the number of passes.

    """

    count = 0

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Count a pass, unless it recomputes what a checkpoint did not keep."""
        self.count += torch._C._current_graph_task_id() < 0

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
