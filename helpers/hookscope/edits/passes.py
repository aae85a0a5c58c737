"""Count the passes of a model, and refuse to copy it while it is edited."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hookscope.layers import put_before, take_off

__all__ = ["Passes", "Uncopied"]


class Uncopied:
    """What hooks of a model are bound to while it is edited."""

    _off = False  # whether the hooks have gone; some may still be called

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Reached by copy.deepcopy(model) and torch.save(model).
        if not self._off:
            raise RuntimeError("the model is being edited, and a copy would keep the hooks; copy it outside the block")
        return super().__reduce_ex__(protocol)


class Passes(Uncopied):
    """The hook on a model that counts how often it runs: that says why an edit did not happen.

    Attributes:
        model: the model.
        count: how often it has run.

    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.count = 0

    def put_on(self) -> None:
        """Count from now on."""
        put_before(self.model, self.before, with_kwargs=False)

    def take_off(self) -> None:
        """Count no longer; as often as you like."""
        self._off = True
        take_off(self, self.model)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Count a pass, unless it recomputes what a checkpoint did not keep."""
        self.count += torch._C._current_graph_task_id() < 0

    before.__qualname__ = "hookscope.edit"  # what a census shows
