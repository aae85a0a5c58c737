"""What a capture keeps of one call of a layer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.functorch import UNDER_TRANSFORM, is_wrapped
from hookscope.captures.stats import Stats
from hookscope.captures.storage_options import StorageOptions, keep_fallback
from hookscope.error_pages import append_page
from hookscope.pictures.words import visible
from hookscope.pytree import tree_map

__all__ = ["Call", "Missing", "NotCapturedError", "OverwrittenError", "Slot", "Wanted", "why_uncalled"]


class NotCapturedError(RuntimeError):
    """What was asked for is not in the capture: the layer was not called, no gradient reached it, and so on."""


class OverwrittenError(RuntimeError):
    """A tensor that `capture(..., copy=False)` kept by reference has been written to since.

    Example:
        >>> from hookscope import capture
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
        >>> with capture(net, copy=False) as seen:
        ...     _ = net(torch.ones(1, 1))
        >>> seen["1"].output.shape
        torch.Size([1, 1])
        >>> try:
        ...     seen["0"].output
        ... except OverwrittenError as error:
        ...     print(str(error).partition(":")[0])
        the output of layer '0' was overwritten later, by layer 1 (ReLU)

    """


@dataclass(frozen=True)
class Wanted:
    """What a capture is to keep: gradients, inputs, in which form, how many bytes at most, until which call of each."""

    gradients: bool
    inputs: bool
    form: StorageOptions | Callable[[Tensor], Stats]
    max_bytes: float | None = None
    stop: int = 0  # 0: until the pass ends

    @property
    def stats_only(self) -> bool:
        """Whether statistics take the place of the tensors."""
        return not isinstance(self.form, StorageOptions)


_NO_INPUTS: Any = ((), {})  # one for all: whatever is made for each call is felt in a pass


class Call:
    """One call of one layer.

    Attributes:
        layer: the layer's dotted name, `""` for the root.
        number: which call of this layer it is within the capture, from 1.
        type: class name of the module.
        by: name of the thread, or of the task of asyncio, that made it.
        run: which pass of the model within the capture it belongs to, from 1; 0 for what a checkpoint runs again, in
            backward.
        overwritten_by: what wrote to the output after the layer had returned it; `""` if nothing did.

    """

    __slots__ = (
        "_args", "_output", "_returned", "_wanted", "by", "layer", "number", "overwritten_by", "run", "type",
    )  # fmt: skip

    def __init__(self, layer: str, number: int, type_name: str, wanted: Wanted) -> None:
        self.layer, self.number, self.type = layer, number, type_name
        self._wanted = wanted
        self.by = self.overwritten_by = ""
        self.run = 0
        self._returned = False
        # In these, every tensor of the output and of args and kwargs is replaced by a Slot.
        self._output: Any = None
        self._args: Any = _NO_INPUTS

    @property
    def label(self) -> str:
        """The layer's name, with `#number` from the second call on."""
        name = self.layer or "(root)"
        return f"{name}#{self.number}" if self.number > 1 else name

    @property
    def stats_only(self) -> bool:
        """Whether statistics were kept in place of tensors."""
        return self._wanted.stats_only

    @property
    def output(self) -> Any:
        """What the layer returned, in its own structure, every tensor detached.

        Raises:
            NotCapturedError: the layer raised, so it returned nothing; or only statistics were kept.
            OverwrittenError: it was kept with `copy=False`, and has been written to since.

        """
        self._refuse(stats=False)
        return tree_map(self._read, self._results(), Slot)

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, in the output's structure; None for tensors none reached.

        After several backward passes it is their sum, as in `Tensor.grad`.

        Raises:
            NotCapturedError: gradients were not asked for, the output does not require grad, no backward pass
                has reached it inside the block, or only statistics were kept.

        """
        self._refuse(stats=False)
        return tree_map(_grad_of, self._with_grads(), Slot)

    @property
    def stats(self) -> Any:
        """The statistics of the output, in its own structure, a `Stats` for every tensor; needs `stats=True`.

        Raises:
            NotCapturedError: the layer raised, or tensors were kept, not statistics.

        """
        self._refuse(stats=True)
        return tree_map(lambda slot: _present(slot.value), self._results(), Slot)

    @property
    def grad_stats(self) -> Any:
        """The statistics of the gradient, in the output's structure; needs `stats=True` and `gradients=True`.

        Raises:
            NotCapturedError: as for `grad`; or several backward passes went through the layer, whose gradients add
                up, which statistics do not.

        """
        self._refuse(stats=True)
        output = self._with_grads()
        passes = max(len(slot.grads) for slot in _slots(output))
        if passes > 1:
            raise NotCapturedError(
                f"{passes} backward passes went through {self.label}; their gradients add up, their statistics do not: "
                "enter a new block for each pass"
            )
        return tree_map(lambda slot: _present(slot.grads[0]) if slot.grads else None, output, Slot)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they were before the layer ran; `Stats` of them with `stats=True`.

        Raises:
            NotCapturedError: inputs were not asked for.
            OverwrittenError: they were kept with `copy=False`, and one has been written to since.

        """
        args: tuple[Any, ...] = self._inputs()[0]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they were before the layer ran; `Stats` of them with `stats=True`.

        Raises:
            NotCapturedError: inputs were not asked for.
            OverwrittenError: they were kept with `copy=False`, and one has been written to since.

        """
        kwargs: dict[str, Any] = self._inputs()[1]
        return kwargs

    def _inputs(self) -> Any:
        if not self._wanted.inputs:
            raise NotCapturedError("inputs were not kept; write capture(model, ..., inputs=True)")
        return tree_map(partial(self._read, what="an input"), self._args, Slot)

    def _read(self, slot: Slot, what: str = "the output") -> Any:
        if slot.overwritten:
            by = f", by {self.overwritten_by}" if self.overwritten_by and what == "the output" else ""
            of = f"call {self.label!r}" if self.number > 1 else f"layer {self.label!r}"
            text = (
                f"{what} of {of} was overwritten later{by}: copy=False keeps a reference, not a copy. "
                "Write capture(model, ..., copy=True)"
            )
            raise OverwrittenError(append_page(text, "overwritten"))
        return _present(slot.value)

    def _results(self) -> Any:
        if not self._returned:
            raise NotCapturedError(f"call {self.label} raised an exception and returned nothing")
        return self._output

    def _with_grads(self) -> Any:
        if not self._wanted.gradients:
            raise NotCapturedError("gradients were not kept; write capture(model, ..., gradients=True)")
        slots = _slots(self._results())
        if not any(slot.needs_grad for slot in slots):
            text = (
                f"the output of layer {self.label!r} does not require grad. Either no input and no parameter before it "
                "requires grad, or it ran under torch.no_grad(). Call requires_grad_() on an input, and leave out "
                "torch.no_grad()"
            )
            raise NotCapturedError(append_page(text, "no_gradient"))
        if not any(slot.grads for slot in slots):
            text = (
                f"no gradient has reached layer {self.label!r}. Call backward() inside the with block, on a value that "
                "depends on its output"
            )
            raise NotCapturedError(append_page(text, "no_gradient"))
        return self._output

    def _refuse(self, stats: bool) -> None:
        if self._wanted.stats_only and not stats:
            raise NotCapturedError("only statistics were kept, see .stats and .grad_stats; leave out stats=True")
        if stats and not self._wanted.stats_only:
            raise NotCapturedError("tensors were kept, not statistics; write capture(model, ..., stats=True)")

    def slots(self) -> list[Slot]:
        """List what was kept of the output's tensors; for the inside of this package."""
        return _slots(self._output)

    def _shapes(self) -> str:
        shapes = [tuple(slot.shape) for slot in self.slots()]
        return ", ".join(map(str, shapes)) if self._returned else "raised"

    def __repr__(self) -> str:
        what = f"output {self._shapes() or 'without tensors'}" if self._returned else "raised"
        return visible(f"Call {self.label} ({self.type}): {what}")


class Missing:
    """Stands for a tensor that could not be kept; reading it raises an error with this text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<{self.text}>"


def _present(value: Any) -> Any:
    if isinstance(value, Missing):
        raise NotCapturedError(value.text)
    return value


class Slot:
    """The place of one tensor in a call's output or inputs: what was kept of it, and of its gradients."""

    __slots__ = ("_shape", "_version", "grads", "needs_grad", "value")

    def __init__(
        self,
        value: Tensor | Stats | Missing,
        needs_grad: bool,
        shape: tuple[Any, ...] | None = None,
        reference: bool = False,
    ) -> None:
        self.value = value
        self.needs_grad = needs_grad
        self._shape = shape  # None: that of the value
        self._version = value._version if reference and isinstance(value, Tensor) else None
        self.grads: list[Any] = []

    @property
    def overwritten(self) -> bool:
        """Whether the value is a reference, and the tensor has been written to."""
        return self._version is not None and self._version != self.value._version  # type: ignore[union-attr]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has memory of its own, and a version that starts anew.
        lost = {"value": Missing("a reference was kept, and was overwritten before it was copied")}
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | (lost if self.overwritten else {}) | {"_version": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor, which is more than the value's if a sample is kept."""
        return self.value.shape if self._shape is None else self._shape  # type: ignore[union-attr]

    def add(self, grad: Tensor, form: StorageOptions | Callable[[Tensor], Stats], say: Callable[[str], None]) -> None:
        """Take what a tensor hook got: add it up as `Tensor.grad` does, or keep the statistics of each pass."""
        if is_wrapped(grad):
            self.grads = [Missing(f"a gradient has no values: {UNDER_TRANSFORM}")]
            return
        try:
            kept = form(grad.detach())  # a copy, also with copy=False: torch may add to this one
        except Exception as error:  # no reason for the backward pass to fail
            kept = keep_fallback(grad, form, error, say)
        with _adding:  # several threads may run backward through one graph
            if self.grads and isinstance(self.grads[0], Missing):
                return
            if self.grads and isinstance(kept, Tensor):
                kept = _added(self.grads.pop(), kept, kept.dtype is grad.dtype)
            self.grads.append(kept)


_adding = threading.Lock()


def _added(total: Tensor, more: Tensor, own: bool) -> Tensor:
    """Add gradients: in their own dtype as `Tensor.grad` does, but not in a coarser one that they are kept in."""
    wide = total if own or more.dtype.itemsize > 2 else total.float()
    return wide + (more.float() if wide.dtype is torch.float32 else more)


def _grad_of(slot: Slot) -> Tensor | None:
    """Return the sum of the gradients in the dtype in which the output is kept."""
    if not slot.grads:
        return None
    grad: Tensor = _present(slot.grads[0])
    kept = slot.value.dtype if isinstance(slot.value, Tensor) else grad.dtype
    return grad.to(kept) if kept.is_floating_point and kept.itemsize < grad.dtype.itemsize else grad


def _slots(value: Any) -> list[Slot]:
    if type(value) is Slot:
        return [value]
    found: list[Slot] = []
    tree_map(lambda slot: found.append(slot) or slot, value, Slot)  # type: ignore[func-returns-value]
    return found


def why_uncalled(module: nn.Module, still_there: bool = True) -> str:
    """Say why a layer may not have been called.

    Args:
        module: the layer.
        still_there: whether the model has it now.

    """
    if not still_there:
        return "was not called: it was taken out of the model, or replaced, after capture(...); capture again"
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return "was not called: torch never calls a ModuleList or ModuleDict, only what is in it"
    if isinstance(module, (nn.ParameterList, nn.ParameterDict)):
        return "was not called: it only holds parameters"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "was not called: nn.MultiheadAttention uses its weight, but never calls it"
    return (
        "was not called: this pass did not reach it, or reached it through .forward(...), or used its weight in a "
        "function, or in code that was compiled before, none of which runs hooks"
    )
