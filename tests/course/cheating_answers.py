"""Ways to spoil an answer that is right: each calls it, and cheats, forgets or damages something on the way."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

Call = Callable[..., Any]
# A cheat calls an answer, or does not; `acted.append(True)` says that this made a difference, False that it could have.
Cheat = Callable[[Call, tuple[Any, ...], dict[str, Any], list[bool]], Any]


def spoil(answer: Any, cheat: Cheat, acted: list[bool]) -> Any:
    """Return an answer, spoiled, and so are the hooks it returns; classes of modules and values stay as they are."""
    if not _can_be_spoiled(answer):
        return answer

    @functools.wraps(answer)
    def spoiled(*args: Any, **kwargs: Any) -> Any:
        return spoil(cheat(answer, args, kwargs, acted), cheat, acted)

    return spoiled


def _can_be_spoiled(answer: Any) -> bool:
    is_class = isinstance(answer, type)
    return (
        callable(answer)
        and not is_class
        and not isinstance(answer, nn.Module)
        and not hasattr(answer, "__enter__")
        and not hasattr(answer, "__len__")
    )


def _all(values: Any, kind: type) -> Iterator[Any]:
    """All tensors or modules in arguments."""
    if isinstance(values, kind):
        yield values
    for part in values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ():
        yield from _all(part, kind)


def _each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every tensor, number and string in a result."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_each(part, change) for part in value)
    if isinstance(value, bool | int | float | str):
        return type(value)()
    return value


# -- the result -----------------------------------------------------------------------------------------------------


def returns_none(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> None:
    if call(*args, **kwargs) is not None:
        acted.append(True)


def returns_zeros(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    result = call(*args, **kwargs)
    other = _each(result, torch.zeros_like)
    if repr(other) != repr(result) or isinstance(result, list | dict | tuple):
        acted.append(True)
    return other


def returns_detached(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    result = call(*args, **kwargs)
    if any(tensor.requires_grad for tensor in _all(result, Tensor)):
        acted.append(True)
        return _each(result, torch.Tensor.detach)
    return result


def first_result_forever() -> Cheat:
    known: dict[Any, Any] = {}

    def cheat(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
        acted.append(call in known)
        if call not in known:
            known[call] = call(*args, **kwargs)
        return known[call]

    return cheat


def _only_for(fact: Callable[[Tensor], Any]) -> Callable[[], Cheat]:
    """Be right for tensors like the first ones, and do nothing for others."""

    def make() -> Cheat:
        known: dict[Any, Any] = {}

        def cheat(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
            tensors = [*_all((args, kwargs), Tensor)]
            tensors += [p for module in _all((args, kwargs), nn.Module) for p in module.parameters()]
            facts = [fact(tensor) for tensor in tensors]
            place = getattr(call, "__code__", None)  # the hooks that one function returns are one to this cheat
            other = bool(facts) and known.setdefault(place, facts) != facts
            acted.extend([other] * bool(facts))
            return None if other else call(*args, **kwargs)

        return cheat

    return make


def works_in_place(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    result = call(*args, **kwargs)
    for given in reversed([*_all((args, kwargs), Tensor)]):
        for made in _all(result, Tensor):
            if made is not given and made.shape == given.shape and made.dtype == given.dtype:
                acted.append(True)
                given.data.copy_(made.detach())
                return _each(result, lambda tensor, made=made, given=given: given if tensor is made else tensor)
    return result


# -- hooks ----------------------------------------------------------------------------------------------------------

_METHODS = {
    "forward_hook": nn.Module,
    "forward_pre_hook": nn.Module,
    "full_backward_hook": nn.Module,
    "full_backward_pre_hook": nn.Module,
    "hook": Tensor,
    "post_accumulate_grad_hook": Tensor,
}


def registers_nothing(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    def register(*_: Any, **__: Any) -> RemovableHandle:
        acted.append(True)
        return RemovableHandle({})

    with ExitStack() as patched:
        for name, owner in _METHODS.items():
            patched.enter_context(mock.patch.object(owner, f"register_{name}", register))
        return call(*args, **kwargs)


def registers_globally(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    def instead_of(name: str) -> Call:
        def register(self: nn.Module, hook: Call, **_: Any) -> Any:
            acted.append(True)

            def of_this(module: nn.Module, *rest: Any) -> Any:
                return hook(module, *rest) if module is self else None

            return getattr(torch_module, f"register_module_{name}")(of_this)

        return register

    with ExitStack() as patched:
        for name, owner in _METHODS.items():
            if owner is nn.Module:
                patched.enter_context(mock.patch.object(owner, f"register_{name}", instead_of(name)))
        return call(*args, **kwargs)


def never_removes(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    def stays(*_: Any) -> None:
        acted.append(True)

    with mock.patch.multiple(RemovableHandle, remove=stays, __exit__=stays):
        return call(*args, **kwargs)


# -- what else is touched -------------------------------------------------------------------------------------------


def _then(kind: type, damage: Callable[[Any], Any]) -> Cheat:
    """Do what is asked for, then damage every tensor or module that was given."""

    def cheat(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
        result = call(*args, **kwargs)
        with torch.no_grad():
            for given in _all((args, kwargs), kind):
                acted.append(damage(given) is not False)
        return result

    return cheat


def _first(damage: Callable[[], Any]) -> Cheat:
    def cheat(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
        acted.append(True)
        damage()
        return call(*args, **kwargs)

    return cheat


def _requires_grad(tensor: Tensor) -> bool:
    if not tensor.is_leaf or tensor.requires_grad or not tensor.is_floating_point():
        return False
    tensor.requires_grad_()
    return True


def _grad(tensor: Tensor) -> bool:
    if not tensor.is_leaf or not tensor.is_floating_point():
        return False
    tensor.grad = torch.ones_like(tensor) if tensor.grad is None else tensor.grad + 1
    return True


def _parameters(change: Callable[[Tensor], Any]) -> Callable[[nn.Module], bool]:
    def damage(module: nn.Module) -> bool:
        for parameter in module.parameters():
            change(parameter)
        return any(True for _ in module.parameters())

    return damage


def _someone_s_hook(model: nn.Module) -> bool:
    hooked = [module for module in model.modules() if module._forward_hooks]
    for module in hooked:
        module._forward_hooks.popitem()
    return bool(hooked)


def swallows_errors(call: Call, args: Any, kwargs: Any, acted: list[bool]) -> Any:
    acted.append(False)
    try:
        return call(*args, **kwargs)
    except Exception:
        acted.append(True)
        return None


def _set_grad_off() -> None:
    torch.set_grad_enabled(False)


# A name, a way to make the cheat anew for each check, and the kind of change that would allow it.
CHEATS: dict[str, tuple[Callable[[], Cheat], str]] = {
    "returns_none": (lambda: returns_none, ""),
    "returns_zeros": (lambda: returns_zeros, ""),
    "returns_detached": (lambda: returns_detached, ""),
    "first_result_forever": (first_result_forever, ""),
    "one_size_only": (_only_for(lambda tensor: tuple(tensor.shape)), ""),
    "one_dtype_only": (_only_for(lambda tensor: tensor.dtype), ""),
    "works_in_place": (lambda: works_in_place, "values"),
    "registers_nothing": (lambda: registers_nothing, ""),
    "registers_globally": (lambda: registers_globally, "global hooks"),
    "never_removes": (lambda: never_removes, "hooks"),
    "one_hook_more": (lambda: _then(nn.Module, lambda m: m.register_forward_hook(lambda *_: None) and None), "hooks"),
    "removes_another_hook": (lambda: _then(nn.Module, _someone_s_hook), "others' hooks"),
    "changes_values": (lambda: _then(Tensor, lambda tensor: tensor.data.add_(1) is not None), "values"),
    "sets_requires_grad": (lambda: _then(Tensor, _requires_grad), "requires_grad"),
    "changes_grad": (lambda: _then(Tensor, _grad), "grad"),
    "changes_parameters": (lambda: _then(nn.Module, _parameters(lambda p: p.data.add_(1))), "parameters"),
    "changes_parameter_grad": (lambda: _then(nn.Module, _parameters(_grad)), "parameter grad"),
    "flips_training": (lambda: _then(nn.Module, lambda module: module.train(not module.training) and None), "training"),
    "sets_an_attribute": (lambda: _then(nn.Module, lambda module: setattr(module, "inplace", 7)), "attributes"),
    "draws_from_torch": (lambda: _first(lambda: torch.rand(1)), "random"),
    "draws_from_numpy": (lambda: _first(np.random.rand), "random"),
    "draws_from_python": (lambda: _first(random.random), "random"),
    "sets_the_dtype": (lambda: _first(lambda: torch.set_default_dtype(torch.float64)), "settings"),
    "sets_grad_off": (lambda: _first(_set_grad_off), "settings"),
    "swallows_errors": (lambda: swallows_errors, ""),
}
# Where these could make a difference, the check must see to it that they do.
MUST_ACT = ("first_result_forever", "one_size_only", "one_dtype_only", "removes_another_hook", "swallows_errors")


class EqualsEverything:
    """A value for which every comparison is true."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def other_values(answer: Any) -> Iterator[Any]:
    """Values that are not the answer."""
    yield from (None, EqualsEverything(), object(), float("nan"), [], {}, -1, "", "nonsense", [[answer]], torch.ones(2))
    yield from (answer + 1,) if isinstance(answer, int | float) else ()
