"""Refuse models on which hooks would not run, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Container

import torch
from torch import nn

from hookscope.compiler import skip_our_hooks
from hookscope.layers.modules import Modules

__all__ = ["is_write_to_hooked", "refuse_compiled", "refuse_unhookable"]

_VIEW = re.compile(r"Output \d+ of (\w+) is a view and is being modified inplace")


def is_write_to_hooked(error: BaseException) -> bool:
    """Whether torch refused a write in place since a full backward hook had made a view of what was written.

    A full backward hook hands on what its layer receives and returns as a view, `BackwardHookFunction`, which must not
    be written, nor a view of it. Of that one torch names the operation that made it, such as `Select` for `y[:, 0]`.
    A view that an autograd function of the user's own returned is named after that function.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or (found := _VIEW.search(text)) is None:
        return False
    if found[1] == "BackwardHookFunction":
        return True
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1].rstrip("0123456789")).lower()  # AsStrided: as_strided
    return "created inside a custom Function" in text and hasattr(torch.ops.aten, operation)


def refuse_unhookable(modules: Modules, chosen: Container[nn.Module], verb: str) -> None:
    """Raise if hooks on the chosen modules would be ignored.

    Args:
        modules: those of the model.
        chosen: the ones that are to get hooks.
        verb: what is about to happen, such as "capture"; it goes into the message.

    Raises:
        ValueError: a part of the model is compiled, or a chosen one is TorchScript; says what to do instead.

    """
    skip_our_hooks()
    for module in modules.compiled:
        refuse_compiled(module, modules.names[module], verb)
    if any(issubclass(kind, torch.jit.ScriptModule) for kind in modules.kinds):
        for module, name in modules.names.items():
            if isinstance(module, torch.jit.ScriptModule) and module in chosen:
                what = f"layer {name!r}" if name else "the model"
                raise ValueError(f"{what} is TorchScript, which takes no hooks; {verb} the original, or leave it out")


def refuse_compiled(module: nn.Module, name: str, verb: str) -> None:
    """Raise if a module is compiled: hooks on it and in it would be ignored.

    Args:
        module: the module.
        name: its name in the model.
        verb: what is about to happen.

    Raises:
        ValueError: it is; says what to do instead.

    """
    what = f"layer {name!r}" if name else "the model"
    if "_orig_mod" in module._modules:  # made by torch.compile(module)
        raise ValueError(
            f"{what} is compiled and would not notice new hooks; {verb} the model that you compiled, and run it "
            'under torch.compiler.set_stance("force_eager")'
        )
    if module._compiled_call_impl is not None:
        raise ValueError(
            f"{what} is compiled, by .compile(), and would not notice new hooks; {verb} a model that is not"
        )
