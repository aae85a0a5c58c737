"""Run a copy of a module with one backward hook, and record the gradients that the hook gets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census
from hookscope.pytree import find_paths, keystr
from hookscope.wrong_inputs import explain_input_errors

__all__ = [
    "BackwardRun",
    "Gradients",
    "HookView",
    "argument_names",
    "copy_inputs",
    "first_tensor",
    "is_close",
    "named_tensors",
]

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False, repr=False)
class HookView:
    """The gradients that one backward hook got.

    Attributes:
        kind: `"legacy"` or `"full"`.
        grad_input: copies of the gradients that the hook got at its first call, or None if it was not called.
        grad_output: the same for `grad_output`.
        firings: how often the hook was called.
        node: name of the autograd node of the first output tensor, which gets the legacy hook; `""` if there is none.
        next_nodes: names of the nodes to which this node passes gradients, in the order of its inputs. `"None"` for an
            input that does not require a gradient.
        warnings: the warnings that torch gives only with this hook.
        error: type and text of the error that this hook causes, else `""`.

    """

    kind: Literal["legacy", "full"]
    grad_input: Gradients | None
    grad_output: Gradients | None
    firings: int
    node: str
    next_nodes: tuple[str, ...]
    warnings: tuple[str, ...]
    error: str

    @property
    def called(self) -> bool:
        """Whether the hook was called."""
        return self.firings > 0

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...] | None, ...] | None]:
        """The shapes of the gradients in `grad_input` and `grad_output`; None stays None."""
        return {"grad_input": _shapes(self.grad_input), "grad_output": _shapes(self.grad_output)}

    def __repr__(self) -> str:
        if not self.called:
            return f"{self.kind} hook: {'stopped by ' + self.error if self.error else 'not called'}"
        saw = ", ".join(f"{name} {shapes}" for name, shapes in self.shapes.items())
        return f"{self.kind} hook: {saw}" + (f", then {self.error}" if self.error else "")


class BackwardRun:
    """One forward and backward pass on copies."""

    def __init__(self, kind: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.kind = kind
        self.warnings: tuple[str, ...] = ()
        self.error = ""
        self.output = ""
        self.followed = False
        self.node = ""
        self.next_nodes: tuple[str, ...] = ()
        self.seen: list[tuple[Gradients, Gradients]] = []
        self.gradients: dict[str, Tensor | None] = {}
        self.arguments = argument_names(module, inputs)
        self.keywords = list(kwargs)
        # Copied together, so that a tensor that is both an input and part of the module is one tensor in the copy.
        module, inputs, kwargs, leaves = copy_inputs(module, inputs, kwargs)
        named = [
            *(
                (name, value)
                for key, arg in zip(self.arguments, inputs, strict=True)
                for name, value in named_tensors(arg, key)
            ),
            *((name, value) for key in kwargs for name, value in named_tensors(kwargs[key], key)),
        ]
        self.wanting = {name for name, value in named if value.requires_grad}
        self.tensors = {name for name, _ in named}
        try:
            if kind == "legacy":
                module.register_backward_hook(self._note)
            elif kind == "full":
                module.register_full_backward_hook(self._note)
            self._go(module, inputs, kwargs)
        except Exception as error:
            if kind == "plain":
                raise
            self.error = f"{type(error).__name__}: {error}"
        # After the call, because a lazy module has no parameters before it.
        for name, value in named:
            self.gradients[f"{name}.grad"] = _copy(leaves.get(id(value), value).grad)
        for name, parameter in module.named_parameters():
            shown = f"module.{name}" if f"{name}.grad" in self.gradients else name
            self.gradients[f"{shown}.grad"] = _copy(parameter.grad)

    def _go(self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with explain_input_errors(module, inputs, kwargs):
            output = module(*inputs, **kwargs)
        self.output = "tensor" if isinstance(output, Tensor) else type(output).__name__
        self.followed = isinstance(output, (Tensor, tuple))
        first = first_tensor(output, type(module).__name__)
        if first is not None and first.grad_fn is not None:
            self.node = _node_name(first.grad_fn)
            self.next_nodes = tuple(_node_name(node) for node, _ in first.grad_fn.next_functions)
        tensors = [value for _, value in named_tensors(output, "") if value.requires_grad]
        if not tensors and self.kind == "plain":
            raise ValueError(
                f"no tensor in the output of {type(module).__name__} requires a gradient, so no backward hook can "
                "fire. Call requires_grad_() on an input or a parameter"
            )
        torch.autograd.backward([(torch.view_as_real(t) if t.is_complex() else t).sum() for t in tensors])

    def _note(self, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        self.seen.append((_gradients(grad_input), _gradients(grad_output)))

    def view(self, kind: Literal["legacy", "full"], plain: BackwardRun) -> HookView:
        """Return the gradients that the hook got, and the warnings that a run without hooks does not give."""
        grad_input, grad_output = self.seen[0] if self.seen else (None, None)
        texts = list(dict.fromkeys(text for text in self.warnings if text not in plain.warnings))
        return HookView(
            kind, grad_input, grad_output, len(self.seen), self.node, self.next_nodes, tuple(texts), self.error
        )


def copy_inputs(
    module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[int, Tensor]]:
    """Copy all. The last dict maps the ID of each copied input that is not a leaf to the leaf that it was made from."""
    memo: dict[int, Any] = {}
    leaves: dict[int, Tensor] = {}
    for value in {id(value): value for _, value in named_tensors((inputs, kwargs), "")}.values():
        if not isinstance(value, nn.Parameter):
            leaf = value.detach().clone().requires_grad_(value.requires_grad)
            memo[id(value)] = leaf if value.is_leaf else leaf.clone()
            leaves[id(memo[id(value)])] = leaf
    # A weight that a hook of torch computes, as in pruning, is not a leaf, so deepcopy refuses it.
    for part in module.modules():
        for _, value in named_tensors(vars(part), ""):
            if not value.is_leaf:
                memo.setdefault(id(value), value.detach().clone())
    # The hooks are removed from the copy below, so the objects that they refer to need no copy.
    for entry in census(module, include_global=False):
        if not entry.by_torch:
            hook = getattr(entry._holder(), entry._attribute)[entry._id]
            memo[id(hook)] = hook
    try:
        module, inputs, kwargs = copy.deepcopy((module, inputs, kwargs), memo)
    except Exception as error:
        raise TypeError(
            f"{type(module).__name__} or one of its inputs cannot be copied, so it cannot be run without changing its "
            f"gradients. Make copy.deepcopy work on both: {error}"
        ) from error
    census(module, include_global=False).remove_all()
    module._is_full_backward_hook = None  # otherwise torch refuses this kind of hook if there was one of the other kind
    return module, inputs, kwargs, leaves


def named_tensors(value: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested tuples, lists, dicts and dataclasses, each with its path."""
    for path, tensor in find_paths(value, objects=False):
        yield name + keystr(path), tensor


def argument_names(module: nn.Module, inputs: Sequence[object]) -> list[str]:
    """Return the names of the positional arguments in `forward`, or `args[i]` for those without a name."""
    try:
        known = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        known = []
    names = [
        parameter.name
        for parameter in known
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [names[index] if index < len(names) else f"args[{index}]" for index in range(len(inputs))]


def first_tensor(output: object, name: str) -> Tensor | None:
    """Find the tensor whose node gets the legacy hook, as `Module._call_impl` does."""
    while output is not None and not isinstance(output, Tensor):
        if isinstance(output, str) and output:  # "a"[0] is "a" again
            raise ValueError(
                f"the output of {name} begins with a string. With a legacy hook, torch would search it for a tensor "
                "forever. Return the tensors first"
            )
        try:
            if isinstance(output, dict):
                output = next((value for value in output.values() if isinstance(value, Tensor)), None)
            else:
                output = output[0]  # type: ignore[index]
        except (LookupError, TypeError):
            return None
    return output


def is_close(one: Tensor, other: Tensor) -> bool:
    """Compare values up to rounding, because a gradient that is computed twice can differ in its last digits."""
    if one.shape != other.shape:
        return False
    precision = max(torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    a, b = ((value if value.layout == torch.strided else value.to_dense()).cpu().to(wide) for value in (one, other))
    return torch.allclose(a, b, rtol=10 * precision, atol=precision / 10, equal_nan=True)


def _node_name(node: Any) -> str:
    return "None" if node is None else str(node.name()).removeprefix("torch::autograd::")


def _copy(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().clone()


def _gradients(gradients: Any) -> Gradients:
    if not isinstance(gradients, tuple):
        gradients = (gradients,)
    return tuple(_copy(gradient) if isinstance(gradient, Tensor) else None for gradient in gradients)


def _shapes(gradients: Gradients | None) -> tuple[tuple[int, ...] | None, ...] | None:
    return None if gradients is None else tuple(None if g is None else tuple(g.shape) for g in gradients)
