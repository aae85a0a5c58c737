"""Edit gradients of tensors when they come."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Gradients"]


class Gradients:
    """The hooks on tensors that wait for a gradient, of all layers."""

    def __init__(self) -> None:
        self._edits: WeakTensorKeyDictionary | None = None  # made when it is needed: that takes time, too
        self._handles: list[RemovableHandle] = []
        self._room = 64

    def wait(self, tensor: Tensor, editing: Callable[[Tensor], Tensor]) -> None:
        """Edit the gradient of a tensor when it comes."""
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
        """Take the hooks off; as often as you like."""
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
