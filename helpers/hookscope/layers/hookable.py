"""Refuse models on which hooks would not run, before anything is touched."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import nn

from hookscope.layers.find import every_module, layer_names


def refuse_unhookable(model: nn.Module, chosen: Container[nn.Module], verb: str) -> None:
    """Raise if hooks on the chosen modules would be ignored.

    Args:
        model: the model.
        chosen: the modules that are to get hooks.
        verb: what is about to happen, such as "capture"; it goes into the message.

    Raises:
        ValueError: a part of the model is compiled, or a chosen one is TorchScript; says what to do instead.

    """
    for module in every_module(model):
        wrapped = "_orig_mod" in module._modules  # made by torch.compile(module)
        scripted = isinstance(module, torch.jit.ScriptModule) and module in chosen
        if not (wrapped or scripted or module._compiled_call_impl is not None):
            continue
        name = layer_names(model)[module]
        what = f"layer {name!r}" if name else "the model"
        if wrapped:
            raise ValueError(
                f"{what} is compiled and would not notice new hooks; {verb} the model that you compiled, and run it "
                'under torch.compiler.set_stance("force_eager")'
            )
        if scripted:
            raise ValueError(f"{what} is TorchScript, which takes no hooks; {verb} the original, or leave it out")
        raise ValueError(
            f"{what} is compiled, by .compile(), and would not notice new hooks; {verb} a model that is not"
        )
