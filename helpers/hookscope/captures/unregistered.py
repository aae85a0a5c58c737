"""Find modules that a model stores without registering them, so a capture of all layers does not include them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from hookscope.layers import Modules

__all__ = ["unregistered_modules"]


def unregistered_modules(modules: Modules) -> Iterator[str]:
    """Yield a sentence for each attribute with unregistered modules, such as the modules in a plain list.

    Modules that are created in `forward` and not stored are not found.

    Args:
        modules: the modules of the model.

    Example:
        >>> net = nn.Identity()
        >>> net.blocks = [nn.Linear(2, 2), nn.ReLU()]
        >>> list(unregistered_modules(Modules(net)))[0].partition(":")[0]
        "layer (root) keeps 2 modules in its attribute 'blocks' that are not in the model"

    """
    torch_own = vars(nn.Module()).keys()
    for module, name in modules.names.items():
        for attribute, value in vars(module).items():
            found = () if attribute in torch_own else {id(e): e for e in _modules_in(value)}.values()
            if count := sum(each not in modules.names for each in found):
                held = "a module" if count == 1 else f"{count} modules"
                yield (
                    f"layer {name or '(root)'} keeps {held} in its attribute {attribute!r} that "
                    f"{'is' if count == 1 else 'are'} not in the model: their calls are not captured. To register "
                    "them, use nn.ModuleList or nn.ModuleDict; hookscope.record shows such calls"
                )


def _modules_in(value: Any) -> Iterator[nn.Module]:
    """Yield a module, or those in a plain container."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, nn.Module):
            yield each
