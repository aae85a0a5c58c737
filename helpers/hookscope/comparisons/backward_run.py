"""Run a module on copies of everything, with one backward hook on it, and note what the hook sees."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookscope.censuses.census import census

__all__ = ["Gradients", "HookView", "Run", "argument_names", "copy_inputs", "first_tensor", "is_close", "named_tensors"]

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False, repr=False)
class HookView:
    """What one backward hook saw.

    Attributes:
        kind: "legacy" or "full".
        grad_input: the tuple that the hook got, detached copies; None if it was not called.
        grad_output: likewise.
        firings: how often it was called. `grad_input` and `grad_output` are those of the first time.
        node: name of the autograd node of the module's (first) output tensor, "" if it has none. A legacy hook sits
            on this node.
        next_nodes: names of the nodes that this node passes gradients on to, in the order of its inputs, "None" for
            an input that needs no gradient.
        warnings: texts of the warnings given with this hook and not without a hook.
        error: type and text of the error raised with this hook, "" if there was none.

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
        """The shapes in `grad_input` and `grad_output`, None for None."""
        return {"grad_input": _shapes(self.grad_input), "grad_output": _shapes(self.grad_output)}

    def __repr__(self) -> str:
        if not self.called:
            return f"{self.kind} hook: {'stopped by ' + self.error if self.error else 'not called'}"
        saw = ", ".join(f"{name} {shapes}" for name, shapes in self.shapes.items())
        return f"{self.kind} hook: {saw}" + (f", then {self.error}" if self.error else "")


class Run:
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
        # One tuple, so that a tensor that is both an input and in the module is one in the copy, too.
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
        # After the call, since a lazy module has its parameters only then.
        for name, value in named:
            self.gradients[f"{name}.grad"] = _copy(leaves.get(id(value), value).grad)
        for name, parameter in module.named_parameters():
            shown = f"module.{name}" if f"{name}.grad" in self.gradients else name
            self.gradients[f"{shown}.grad"] = _copy(parameter.grad)

    def _go(self, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
                f"nothing in the output of {type(module).__name__} requires a gradient, so no backward hook can fire; "
                "call requires_grad_() on an input or a parameter"
            )
        torch.autograd.backward([(torch.view_as_real(t) if t.is_complex() else t).sum() for t in tensors])

    def _note(self, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        self.seen.append((_gradients(grad_input), _gradients(grad_output)))

    def view(self, kind: Literal["legacy", "full"], plain: Run) -> HookView:
        """Say what the hook saw, and what torch said beyond what it says in a run without hooks."""
        grad_input, grad_output = self.seen[0] if self.seen else (None, None)
        texts = list(dict.fromkeys(text for text in self.warnings if text not in plain.warnings))
        return HookView(
            kind, grad_input, grad_output, len(self.seen), self.node, self.next_nodes, tuple(texts), self.error
        )


def copy_inputs(
    module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[int, Tensor]]:
    """Copy all; the last dict has the leaf behind each input copy that is not a leaf, by the id of the copy."""
    memo: dict[int, Any] = {}
    leaves: dict[int, Tensor] = {}
    for value in {id(value): value for _, value in named_tensors((inputs, kwargs), "")}.values():
        if not isinstance(value, nn.Parameter):
            leaf = value.detach().clone().requires_grad_(value.requires_grad)
            memo[id(value)] = leaf if value.is_leaf else leaf.clone()
            leaves[id(memo[id(value)])] = leaf
    # A weight computed by a hook of torch's (pruning) is no leaf, and deepcopy refuses those.
    for part in module.modules():
        for _, value in named_tensors(vars(part), ""):
            if not value.is_leaf:
                memo.setdefault(id(value), value.detach().clone())
    # The caller's hooks are taken off below; what they hold on to need not be copied first.
    for entry in census(module, include_global=False):
        if not entry.by_torch:
            hook = getattr(entry._holder(), entry._attribute)[entry._id]
            memo[id(hook)] = hook
    try:
        module, inputs, kwargs = copy.deepcopy((module, inputs, kwargs), memo)
    except Exception as error:
        raise TypeError(
            f"{type(module).__name__} or one of its inputs cannot be copied, and on the originals a run would leave "
            f"gradients behind: {error}"
        ) from error
    census(module, include_global=False).remove_all()
    module._is_full_backward_hook = None  # else a module that once had the other kind of hook refuses this one
    return module, inputs, kwargs, leaves


def named_tensors(value: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested tuples, lists, dicts and dataclasses, each with how to reach it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field in value._fields:
            yield from named_tensors(getattr(value, field), f"{name}.{field}")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}[{key!r}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from named_tensors(getattr(value, each.name, None), f"{name}.{each.name}")


def argument_names(module: nn.Module, inputs: Sequence[object]) -> list[str]:
    """Name the positional arguments as `forward` does, or args[i] where it has no name for them."""
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
    """Find the tensor whose node torch puts a legacy hook on, by the rule in `Module._call_impl`."""
    while output is not None and not isinstance(output, Tensor):
        if isinstance(output, str) and output:  # "a"[0] is "a" again
            raise ValueError(
                f"the output of {name} begins with a string, in which torch looks for a tensor for ever when the "
                "module has a legacy hook; return the tensors first"
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
    """Compare values, whatever the precision; a gradient computed twice differs in its last digits."""
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
