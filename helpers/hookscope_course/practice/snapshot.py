"""What a call of an answer must leave as it found it: all of that before the call, and what is different after it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

# What a check may allow (see `allows`), and what it stands for.
KINDS: Mapping[str, str] = {
    "values": "the numbers in tensors that were given",
    "requires_grad": "whether a tensor that was given, or a parameter, requires grad",
    "grad": "`.grad` of tensors that were given",
    "parameters": "the parameters of modules, and which modules they have in them",
    "parameter grad": "`.grad` of the parameters of modules",
    "buffers": "the buffers of modules",
    "hooks": "a hook more on a module or a tensor",
    "others' hooks": "hooks that were there before",
    "global hooks": "hooks on all modules at once, also if they come off again",
    "training": "the flag `training`",
    "attributes": "other attributes of modules, such as `inplace`",
    "random": "the state of the random numbers of torch, NumPy and Python",
    "settings": "torch's default dtype, grad mode and saved-tensor hooks",
}


@dataclass
class _TensorSnapshot:
    """A tensor as it was."""

    tensor: Tensor
    name: str
    role: str  # given, parameter or buffer
    requires_grad: bool
    version: int | None
    values: Tensor | None
    grad: Tensor | None
    hooks: dict[int, object]


@dataclass
class _ModuleSnapshot:
    """A module as it was."""

    module: nn.Module
    name: str
    hooks: dict[int, object]
    parts: dict[str, int]
    attributes: dict[str, Any] = field(default_factory=dict)


class Snapshot:
    """Everything that an answer's call could spoil for others: what is reachable in its arguments, and torch's own.

    Args:
        given: the arguments by the names that the answer has for them.

    Example:
        >>> x = torch.ones(2)
        >>> state = Snapshot({"x": x})
        >>> [*state.find_changes([])]
        []
        >>> _ = x.mul_(2)
        >>> [*state.find_changes([])]
        [('values', 'changed the numbers in `x`, which belongs to the caller; work on a copy')]

    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self.tensors: dict[int, _TensorSnapshot] = {}
        self.modules: dict[int, _ModuleSnapshot] = {}
        with torch.no_grad():
            modules = [each for name, value in given.items() for each in _find_modules(value, name)]
            for root, name in modules:
                for path, module in root.named_modules():
                    self._note_module(module, path, name)
            for name, value in given.items():
                for tensor, path in _find_tensors(value, name):
                    self._note_tensor(tensor, f"`{path}`", "given")
        self.random = _random_states()
        self.settings = _settings()
        self.global_hooks = _global_hooks()

    def find_changes(self, handles: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Yield the kind of each change, and what the answer did, as the end of a sentence that begins with it.

        Args:
            handles: the handles of the hooks that were registered meanwhile.

        """
        with torch.no_grad():
            stores = [*map(id, _global_stores().values())]
            if _global_hooks() != self.global_hooks or any(id(each.hooks_dict_ref()) in stores for each in handles):
                yield (
                    "global hooks",
                    "registered a global hook on all modules; register it only on the module that needs it",
                )
            for was in self.modules.values():
                yield from _find_module_changes(was)
            for each in self.tensors.values():
                yield from _find_tensor_changes(each)
        if _random_states() != self.random:
            yield (
                "random",
                (
                    "changed the state of the random numbers, which other code may depend on; "
                    "use your own `torch.Generator()`, or none"
                ),
            )
        for name, value in _settings().items():
            if value != self.settings[name]:
                yield "settings", f"changed {name} globally, from {self.settings[name]} to {value}"

    def _note_module(self, module: nn.Module, path: str, root: str) -> None:
        if id(module) in self.modules:
            return
        name = f"`{path}` of `{root}`" if path else f"`{root}`"
        self.modules[id(module)] = _ModuleSnapshot(
            module, name, _list_hooks(module), _list_parts(module), _list_attributes(module)
        )
        dot = f"{path}." if path else ""
        for each, parameter in module.named_parameters(recurse=False):
            self._note_tensor(parameter, f"`{dot}{each}` of `{root}`", "parameter")
        for each, buffer in module.named_buffers(recurse=False):
            self._note_tensor(buffer, f"`{dot}{each}` of `{root}`", "buffer")

    def _note_tensor(self, tensor: Tensor, name: str, role: str) -> None:
        if id(tensor) not in self.tensors:
            grad, version, values = _grad(tensor), _version(tensor), _copy(tensor)
            hooks = _tensor_hooks(tensor)
            self.tensors[id(tensor)] = _TensorSnapshot(
                tensor, name, role, tensor.requires_grad, version, values, _copy(grad), hooks
            )


# -- what is in the arguments ---------------------------------------------------------------------------------------


def _find_modules(value: object, name: str) -> Iterator[tuple[nn.Module, str]]:
    if isinstance(value, nn.Module):
        yield value, name
    for part, path in _list_items(value, name):
        yield from _find_modules(part, path)


def _find_tensors(value: object, name: str) -> Iterator[tuple[Tensor, str]]:
    if isinstance(value, Tensor):
        yield value, name
    for part, path in _list_items(value, name):
        yield from _find_tensors(part, path)


def _list_items(value: object, name: str) -> Iterator[tuple[object, str]]:
    if isinstance(value, Mapping):
        yield from ((part, f"{name}[{key!r}]") for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((part, f"{name}[{index}]") for index, part in enumerate(value))


# -- modules --------------------------------------------------------------------------------------------------------


def _list_stores(module: nn.Module) -> dict[str, Mapping[int, object]]:
    """All stores of hooks of a module, by name."""
    return {
        name: store
        for name, store in vars(module).items()
        if name.startswith("_") and name.endswith("_hooks") and isinstance(store, Mapping)
    }


def _list_hooks(module: nn.Module) -> dict[int, object]:
    return dict(chain.from_iterable(store.items() for store in _list_stores(module).values()))


def _list_parts(module: nn.Module) -> dict[str, int]:
    parts = chain(module._parameters.items(), module._modules.items())
    return {name: id(part) for name, part in parts}


_SIMPLE = bool | int | float | str | torch.dtype | None
# What torch itself writes when a hook is registered, and what is looked at elsewhere.
_IGNORED_ATTRIBUTES = ("_is_full_backward_hook", "training")


def _list_attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _IGNORED_ATTRIBUTES
        and (isinstance(value, _SIMPLE) or (isinstance(value, tuple) and all(isinstance(v, _SIMPLE) for v in value)))
    } | {"training": module.training, "forward": vars(module).get("forward", "its class's")}


def _find_module_changes(was: _ModuleSnapshot) -> Iterator[tuple[str, str]]:
    module, hooks = was.module, _list_hooks(was.module)
    if any(handle not in hooks for handle in was.hooks):
        yield "others' hooks", f"removed a hook that was on {was.name} before; remove only your own"
    if any(handle not in was.hooks for handle in hooks):
        yield "hooks", f"left a hook on {was.name}; remove it with its handle, or register it in a `with` statement"
    if _list_parts(module) != was.parts:
        yield "parameters", f"replaced a part of {was.name}; do not change the caller's module"
    now = _list_attributes(module)
    for name in {**was.attributes, **now}:
        before, after = was.attributes.get(name), now.get(name)
        if before is after or (type(before) is type(after) and before == after):
            continue
        if name == "training":
            yield "training", f"set `training` of {was.name} to {after}; do not change the caller's module"
        elif name == "forward":
            yield "attributes", f"replaced `forward` of {was.name}; do not change the caller's module"
        else:
            yield "attributes", f"set `{name}` of {was.name} to {after!r}; do not change the caller's module"


# -- tensors --------------------------------------------------------------------------------------------------------


def _copy(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.layout is not torch.strided or tensor.is_meta or torch.compiler.is_compiling():
        return None
    return tensor.detach().clone()


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _grad(tensor: Tensor) -> Tensor | None:
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def _tensor_hooks(tensor: Tensor) -> dict[int, object]:
    stores = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return dict(chain.from_iterable(store.items() for store in stores if store))


def _is_same_tensor(was: Tensor | None, now: Tensor | None) -> bool:
    if was is None or now is None:
        return was is now
    if was.shape != now.shape or was.dtype != now.dtype:
        return False
    if torch.equal(was, now):
        return True
    return (was.is_floating_point() or was.is_complex()) and torch.allclose(was, now, rtol=0, atol=0, equal_nan=True)


def _find_tensor_changes(was: _TensorSnapshot) -> Iterator[tuple[str, str]]:
    tensor, given = was.tensor, was.role == "given"
    whose = f"{was.name}, which belongs to the caller" if given else was.name
    if was.values is not None and (was.version != _version(tensor) or not _is_same_tensor(was.values, _copy(tensor))):
        kind = {"given": "values", "parameter": "parameters", "buffer": "buffers"}[was.role]
        way_out = "work on a copy" if given else "do not change the caller's module"
        yield kind, f"changed the numbers in {whose}; {way_out}"
    if tensor.requires_grad != was.requires_grad:
        instead = "use your own copy, `x.detach().clone()`" if given else "do not change it"
        yield "requires_grad", f"set `requires_grad` of {whose}, to {tensor.requires_grad}; {instead}"
    if not _is_same_tensor(was.grad, _copy(_grad(tensor))):
        kind = "grad" if given else "parameter grad"
        yield kind, f"changed `.grad` of {whose}; use `torch.autograd.grad`, or work on a copy"
    hooks = _tensor_hooks(tensor)
    if any(handle not in hooks for handle in was.hooks):
        yield "others' hooks", f"removed a hook that was on {was.name} before; remove only your own"
    if any(handle not in was.hooks for handle in hooks):
        yield "hooks", f"left a hook on {was.name}; remove it with its handle"


# -- what everybody shares ------------------------------------------------------------------------------------------


def _random_states() -> tuple[object, ...]:
    import numpy as np

    state: tuple[Any, ...] = np.random.get_state()  # type: ignore[assignment]
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in state]
    return torch.get_rng_state().numpy().tobytes(), of_numpy, random.getstate()


def _settings() -> dict[str, object]:
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "whether gradients are recorded": torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "the saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
    }


def _global_stores() -> dict[str, Mapping[int, object]]:
    stores = vars(torch_module)
    return {name: s for name, s in stores.items() if name.startswith("_global_") and isinstance(s, Mapping)}


def _global_hooks() -> dict[str, list[int]]:
    return {name: list(store) for name, store in _global_stores().items()}
