"""Check the keyword arguments of a model, and separate them from the options of the function that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["check_inputs", "check_kwargs", "explain_no_grad"]


def check_inputs(tool: str, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that a tool that runs the model got inputs, if the model needs some.

    Raises:
        TypeError: it got none.

    """
    if args or kwargs or isinstance(model, torch.jit.ScriptModule):  # whose forward has no signature for Python
        return
    needed = [
        each.name
        for each in inspect.signature(model.forward).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        raise TypeError(f"{tool} runs the model, so pass its inputs, too: {tool}(model, {', '.join(needed)})")


@contextmanager
def explain_no_grad(tool: str, way: str) -> Iterator[None]:
    """Add a note to the error of a model that computes gradients in its forward, in a tool that runs it without them.

    Args:
        tool: the name of the tool.
        way: what to type instead.

    """
    try:
        yield
    except RuntimeError as error:
        if "does not require grad" in str(error):
            error.add_note(
                f"hookscope: {tool} runs the model without gradients, but its forward seems to compute some. {way}"
            )
        raise


def check_kwargs(
    function: Callable[..., Any], kwargs: object, unknown: Iterable[str] = (), more: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the keyword arguments of the model.

    Args:
        function: the public function or widget that runs the model; its keyword-only parameters are its options.
        kwargs: the value of `kwargs=`.
        unknown: keywords that are not options.
        more: options that are not in the signature.

    Raises:
        TypeError: there is an unknown keyword, or `kwargs` is not a mapping with strings as keys.

    """
    name = function.__name__
    for option in unknown:
        parameters = inspect.signature(function).parameters.values()
        options = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        raise TypeError(
            f"{name} has no option {option!r}. Its options are {', '.join((*options, *more))}. If {option!r} is an "
            f"argument of the model, pass kwargs={{{option!r}: ...}}"
        )
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise TypeError(
            f"kwargs is of type {type(kwargs).__name__}. Pass a dict of the model's keyword arguments, such as "
            "kwargs={'name': ...}"
        )
    if wrong := [key for key in kwargs if not isinstance(key, str)]:
        raise TypeError(
            f"kwargs has the key {wrong[0]!r}. Its keys must be strings, the names of the model's arguments"
        )
    return dict(kwargs)
