"""The values that a capture keeps from one call of a layer."""

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
from hookscope.captures.tensor_copies import StorageOptions, keep_fallback
from hookscope.error_pages import append_page
from hookscope.pictures.words import visible
from hookscope.pytree import tree_map

__all__ = [
    "Call",
    "Missing",
    "NotCapturedError",
    "OverwrittenError",
    "Slot",
    "Wanted",
    "is_never_called",
    "why_uncalled",
]


class NotCapturedError(RuntimeError):
    """The capture does not have this value, for example because the layer was not called or no gradient reached it.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hookscope import capture
        >>> net = nn.Linear(1, 1)
        >>> with capture(net) as seen:
        ...     y = net(torch.ones(1, 1))
        >>> try:
        ...     seen[net].grad
        ... except NotCapturedError as error:
        ...     print(str(error).partition(".")[0])
        this capture did not keep gradients

    """


class OverwrittenError(RuntimeError):
    """A tensor that `capture(..., copy=False)` kept by reference was overwritten later.

    Example:
        >>> import torch
        >>> from torch import nn
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
    """The options of a capture: what to keep, in which form, how many bytes at most, and when to stop."""

    gradients: bool
    inputs: bool
    form: StorageOptions | Callable[[Tensor], Stats]
    max_bytes: float | None = None
    stop: int = 0  # 0: until the pass ends

    @property
    def stats_only(self) -> bool:
        """Whether statistics are kept instead of tensors."""
        return not isinstance(self.form, StorageOptions)


RAISED = "raised an exception and returned nothing"
_NO_INPUTS: Any = ((), {})  # one for all: whatever is made for each call is felt in a pass


class Call:
    """One call of one layer.

    Attributes:
        layer: the layer's dotted name, `""` for the root.
        number: the number of this call among the layer's calls in the capture, from 1.
        type: class name of the module.
        by: name of the thread or asyncio task that called the layer.
        run: the number of the model's pass in the capture, from 1; 0 if a checkpoint runs the layer again in the
            backward pass.
        overwritten_by: the layer or code that overwrote the output after it was returned; `""` if there is none.

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
    def returned(self) -> bool:
        """Whether the layer returned; False if it raised an exception."""
        return self._returned

    @property
    def stats_only(self) -> bool:
        """Whether statistics were kept instead of tensors."""
        return self._wanted.stats_only

    @property
    def output(self) -> Any:
        """The output of the layer, with the same structure and with every tensor detached.

        Raises:
            NotCapturedError: the layer raised an exception and returned nothing, or only statistics were kept.
            OverwrittenError: `copy=False` kept a reference, and the tensor was overwritten later.

        """
        self._refuse(stats=False)
        return tree_map(self._read, self._results(), Slot)

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, with the same structure; None for tensors without a gradient.

        After several backward passes, it is the sum of their gradients, as in `Tensor.grad`.

        Raises:
            NotCapturedError: gradients were not requested, the output does not require grad, no backward pass
                reached it inside the block, or only statistics were kept.

        """
        self._refuse(stats=False)
        return tree_map(_grad_of, self._with_grads(), Slot)

    @property
    def stats(self) -> Any:
        """The statistics of the output, with the same structure and a `Stats` for each tensor; needs `stats=True`.

        Raises:
            NotCapturedError: the layer raised an exception, or tensors were kept instead of statistics.

        """
        self._refuse(stats=True)
        return tree_map(lambda slot: _present(slot.value), self._results(), Slot)

    @property
    def grad_stats(self) -> Any:
        """The statistics of the gradient, with the structure of the output; needs `stats=True` and `gradients=True`.

        Raises:
            NotCapturedError: as for `grad`; or several backward passes went through the layer, and their statistics
                cannot be added up.

        """
        self._refuse(stats=True)
        output = self._with_grads()
        passes = max(len(slot.grads) for slot in _slots(output))
        if passes > 1:
            raise NotCapturedError(
                f"{passes} backward passes went through {self.label}, and statistics of gradients cannot be added up. "
                "Use a new block for each pass"
            )
        return tree_map(lambda slot: _present(slot.grads[0]) if slot.grads else None, output, Slot)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they were before the layer ran; with `stats=True`, their `Stats`.

        Raises:
            NotCapturedError: inputs were not requested.
            OverwrittenError: `copy=False` kept references, and one of the tensors was overwritten later.

        """
        args: tuple[Any, ...] = self._inputs()[0]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they were before the layer ran; with `stats=True`, their `Stats`.

        Raises:
            NotCapturedError: inputs were not requested.
            OverwrittenError: `copy=False` kept references, and one of the tensors was overwritten later.

        """
        kwargs: dict[str, Any] = self._inputs()[1]
        return kwargs

    def _inputs(self) -> Any:
        if not self._wanted.inputs:
            raise NotCapturedError("this capture did not keep inputs. Write capture(model, ..., inputs=True)")
        return tree_map(partial(self._read, is_input=True), self._args, Slot)

    def _read(self, slot: Slot, is_input: bool = False) -> Any:
        if slot.overwritten:
            by = f", by {self.overwritten_by}" if self.overwritten_by and not is_input else ""
            what = "an input" if is_input else "the output"
            of = f"call {self.label!r}" if self.number > 1 else f"layer {self.label!r}"
            text = (
                f"{what} of {of} was overwritten later{by}: copy=False keeps a reference, not a copy. "
                "Write capture(model, ..., copy=True)"
            )
            raise OverwrittenError(append_page(text, "overwritten"))
        return _present(slot.value)

    def _results(self) -> Any:
        if not self._returned:
            raise NotCapturedError(f"layer {self.label!r} {RAISED}")
        return self._output

    def _with_grads(self) -> Any:
        if not self._wanted.gradients:
            raise NotCapturedError("this capture did not keep gradients. Write capture(model, ..., gradients=True)")
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
            raise NotCapturedError("stats=True keeps only .stats and .grad_stats. Leave it out to keep tensors")
        if stats and not self._wanted.stats_only:
            raise NotCapturedError("this capture kept tensors, not statistics. Write capture(model, ..., stats=True)")

    def slots(self) -> list[Slot]:
        """List the slots of the output's tensors; internal to this package."""
        return _slots(self._output)

    def _shapes(self) -> str:
        shapes = [tuple(slot.shape) for slot in self.slots()]
        return ", ".join(map(str, shapes)) if self._returned else "raised"

    def __repr__(self) -> str:
        what = f"output {self._shapes() or 'without tensors'}" if self._returned else "raised"
        return visible(f"Call {self.label} ({self.type}): {what}")


class Missing:
    """A placeholder for a tensor that could not be kept; reading it raises an error with this text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<{self.text}>"


def _present(value: Any) -> Any:
    if isinstance(value, Missing):
        raise NotCapturedError(value.text)
    return value


class Slot:
    """One tensor in a call's output or inputs: its stored value and its gradients."""

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
        """Whether the value is a reference to a tensor that was overwritten later."""
        return self._version is not None and self._version != self.value._version  # type: ignore[union-attr]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has memory of its own, and a version that starts anew.
        lost = {
            "value": Missing("this tensor was kept as a reference, and was overwritten before the capture was copied")
        }
        state = {name: getattr(self, name) for name in self.__slots__}
        return state | (lost if self.overwritten else {}) | {"_version": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor, even if only some of its samples are kept."""
        return self.value.shape if self._shape is None else self._shape  # type: ignore[union-attr]

    def add(self, grad: Tensor, form: StorageOptions | Callable[[Tensor], Stats], say: Callable[[str], None]) -> None:
        """Store a gradient: add it to the earlier ones as `Tensor.grad` does, or keep the statistics of each pass."""
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
    """Add gradients in their own dtype, as `Tensor.grad` does, even if a coarser dtype is kept."""
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


_LISTS = nn.ModuleList, nn.ModuleDict
_PARAMETERS = nn.ParameterList, nn.ParameterDict
_PROJECTION = nn.modules.linear.NonDynamicallyQuantizableLinear


def is_never_called(module: nn.Module) -> bool:
    """Return whether torch never calls a module of this class, whatever the model does."""
    return isinstance(module, (*_LISTS, *_PARAMETERS, _PROJECTION))


def why_uncalled(module: nn.Module, still_there: bool = True) -> str:
    """Explain why a layer was probably not called.

    Args:
        module: the layer.
        still_there: whether the layer is still in the model.

    """
    if not still_there:
        return "was not called: it was removed from the model or replaced after capture(...). Capture again"
    if isinstance(module, _LISTS):
        return "was not called: torch never calls a ModuleList or ModuleDict, only the modules in it"
    if isinstance(module, _PARAMETERS):
        return "was not called: it only holds parameters"
    if isinstance(module, _PROJECTION):
        return "was not called: nn.MultiheadAttention uses its weight, but never calls it"
    return (
        "was not called: this pass did not reach it, or ran it without hooks (through .forward(...), through a "
        "function that uses its weight, or in code that was compiled earlier)"
    )
