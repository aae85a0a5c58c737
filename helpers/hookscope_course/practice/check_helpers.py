"""What checks ask of answers in the same way: which hooks they registered, and whether exceptions come through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope import census
from hookscope.censuses.census import record_handles


@contextmanager
def record_registrations() -> Iterator[list[str]]:
    """Tell, after a `with` block, where hooks were registered in it, also those that came off again.

    Yields:
        A list that is empty inside the block, and after it holds names such as "forward", "full backward", "tensor".

    Example:
        >>> layer = nn.Identity()
        >>> with record_registrations() as registered:
        ...     with layer.register_forward_hook(print):
        ...         pass
        >>> registered
        ['forward']

    """
    made: list[Any] = []
    registered: list[str] = []
    stores = dict[int, str]()
    try:
        with record_handles(made):
            yield registered
    finally:
        for handle, holder, kind in made:
            owner = holder()
            if isinstance(owner, nn.Module):
                stores = {id(s): name.strip("_").removesuffix("_hooks") for name, s in vars(owner).items()}
            name = "tensor" if isinstance(owner, Tensor) else stores.get(id(handle.hooks_dict_ref()), kind or "other")
            registered.append(name.replace("_", " "))


def foreign_hook(module: nn.Module, args: object, output: object) -> None:
    """A forward hook that does nothing, and has to stay."""


def add_foreign_hooks(model: nn.Module) -> nn.Module:
    """Put a hook of somebody else's on each module of a model; what takes one off is told of by the guard."""
    for module in model.modules():
        module.register_forward_hook(foreign_hook)
    return model


def count_hooks(*models: nn.Module) -> int:
    """Count the hooks on models, beside those of `add_foreign_hooks`.

    Example:
        >>> layer = add_foreign_hooks(nn.Identity())
        >>> _ = layer.register_forward_hook(print)
        >>> count_hooks(layer)
        1

    """
    found = census(*models, include_global=False)
    return sum(foreign_hook.__name__ not in entry.callable for entry in found)


def format_count(count: int) -> str:
    """Say how many hooks there are, as a subject with its verb.

    Example:
        >>> format_count(1), format_count(2)
        ('1 hook is', '2 hooks are')

    """
    return f"{count} hook{' is' if count == 1 else 's are'}"


def format_numbers(value: object, digits: int = 6) -> str:
    """A tensor, or a list of tensors and numbers, as one line of numbers that can be read.

    Example:
        >>> format_numbers(torch.tensor([[1.0, -0.25]])), format_numbers(1 / 3, digits=2)
        ('[1, -0.25]', '0.33')

    """
    if isinstance(value, Tensor):
        return format_numbers(value.flatten().tolist(), digits)
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_numbers(one, digits) for one in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_numbers(one, digits)}" for key, one in value.items()) + "}"
    return f"{value:.{digits}g}" if isinstance(value, float) else repr(value)


def fill_grads(model: nn.Module) -> dict[str, Tensor]:
    """Give each parameter a `.grad`, as an earlier pass would have left it, and return copies.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = fill_grads(layer)
        >>> layer.weight.grad += 1
        >>> have_grads_changed(layer, before)
        True

    """
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def have_grads_changed(model: nn.Module, before: dict[str, Tensor]) -> bool:
    """Whether a `.grad` is another than `fill_grads` has made it."""
    now = {name: parameter.grad for name, parameter in model.named_parameters()}
    return any((grad := now[name]) is None or not torch.equal(grad, was) for name, was in before.items())


def is_close(answer: object, expected: Tensor) -> bool:
    """Whether an answer is a tensor of the same shape and, up to rounding, the same numbers."""
    if not isinstance(answer, Tensor) or answer.shape != expected.shape:
        return False
    return torch.allclose(answer, expected.to(answer.dtype), rtol=1e-3, atol=1e-5)


class Broken(Exception):  # noqa: N818  # a layer that broke, in the words of the feedback
    """What the layer `BreakingLayer` raises: no answer could have meant to catch it."""


class BreakingLayer(nn.Module):
    """A layer that raises when it is called."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Raise `Broken`."""
        raise Broken("this layer breaks")


ERROR_HIDDEN = "a layer raised an error, but your function kept it to itself; let the exception through"
# Reasons why an exercise has nothing that an answer could keep to itself.
CALLS_NOTHING = "it calls no module, so nothing raises in it"


def hides_errors(answer: Callable[[], object]) -> bool:
    """Whether an answer keeps to itself what a layer raised; it calls a model that has a `BreakingLayer` in it."""
    try:
        answer()
    except Broken:
        return False
    return True


def check_removal(tool: Callable[[nn.Module], AbstractContextManager[Any]]) -> str | None:
    """Say what is wrong if a tool for `with` lines leaves a hook on, also after an exception, or keeps that to itself.

    Example:
        >>> from hookscope import capture
        >>> check_removal(capture)

    """
    layers = nn.Linear(1, 2), nn.ReLU()
    model = add_foreign_hooks(nn.Sequential(*layers))
    with tool(model):
        model(torch.ones(1, 1))
    if left := count_hooks(model):
        return f"after the `with` block {format_count(left)} still on the model"
    model = nn.Sequential(*layers, BreakingLayer())
    try:
        with tool(model):
            model(torch.ones(1, 1))
    except Broken:
        left = count_hooks(model)
        return f"a layer raised, and {format_count(left)} still on; take them off in a `finally`" if left else None
    return "a layer raised an error, but your tool kept it to itself"
