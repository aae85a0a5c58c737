"""Raise an error for models on which hooks would not run."""

from __future__ import annotations

import re
from collections.abc import Container

import torch
from torch import nn

from hookscope.compiler import skip_our_hooks
from hookscope.error_pages import append_page
from hookscope.layers.modules import Modules

__all__ = ["is_write_to_hooked", "refuse_compiled", "refuse_unhookable"]

_VIEW = re.compile(r"Output \d+ of (\w+) is a view and is being modified inplace")


def is_write_to_hooked(error: BaseException) -> bool:
    """Return whether an error means that torch refused an in-place write because of a full backward hook.

    A full backward hook turns the inputs and outputs of its layer into views by `BackwardHookFunction`. torch forbids
    in-place writes to them, and to views of them; then it names the operation, such as `Select` for `y[:, 0]`. A view
    that a custom autograd function returned has the name of that function instead.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or (found := _VIEW.search(text)) is None:
        return False
    if found[1] == "BackwardHookFunction":
        return True
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1].rstrip("0123456789")).lower()  # AsStrided -> as_strided
    return "created inside a custom Function" in text and hasattr(torch.ops.aten, operation)


def refuse_unhookable(modules: Modules, chosen: Container[nn.Module], verb: str) -> None:
    """Raise an error if torch would ignore hooks on the chosen modules.

    Args:
        modules: the modules of the model.
        chosen: the modules that will get hooks.
        verb: the verb for the message, such as "capture".

    Raises:
        ValueError: a part of the model is compiled, or a chosen module is TorchScript.

    """
    skip_our_hooks()
    for module in modules.compiled:
        refuse_compiled(module, modules.names[module], verb)
    if any(issubclass(kind, torch.jit.ScriptModule) for kind in modules.kinds):
        for module, name in modules.names.items():
            if isinstance(module, torch.jit.ScriptModule) and module in chosen:
                what = f"layer {name!r}" if name else "the model"
                text = (
                    f"{what} is TorchScript, which runs only some hooks. {verb.capitalize()} the original module, or "
                    "leave it out"
                )
                raise ValueError(append_page(text, "compiled"))


def refuse_compiled(module: nn.Module, name: str, verb: str) -> None:
    """Raise an error if a module is compiled, because torch can ignore hooks that are added to it later.

    Args:
        module: the module.
        name: its name in the model.
        verb: the verb for the message, such as "capture".

    Raises:
        ValueError: the module is compiled.

    """
    what = f"layer {name!r}" if name else "the model"
    if "_orig_mod" in module._modules:  # a wrapper from torch.compile(module)
        text = (
            f"{what} is compiled, so torch can ignore hooks that are added now. {verb.capitalize()} the model that you "
            'passed to torch.compile, and run it under torch.compiler.set_stance("force_eager")'
        )
        raise ValueError(append_page(text, "compiled"))
    if module._compiled_call_impl is not None:
        text = (
            f"{what} is compiled by .compile(), so torch can ignore hooks that are added now. {verb.capitalize()} a "
            "model that is not compiled"
        )
        raise ValueError(append_page(text, "compiled"))
