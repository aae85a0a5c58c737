"""Count the passes of a model, and refuse to copy it while it is edited."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Passes", "Uncopied"]


class Uncopied:
    """An object whose methods are hooks of a model while it is edited, so that the model cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # copy.deepcopy(model) and torch.save(model) come here.
        raise RuntimeError("the model is being edited, and a copy would keep the hooks; copy it outside the block")


class Passes(Uncopied):
    """The hook on a model that counts how often it runs: that says why an edit did not happen.

    Attributes:
        count: how often it has run.

    """

    count = 0

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Count a pass, unless it recomputes what a checkpoint did not keep."""
        self.count += torch._C._current_graph_task_id() < 0

    before.__qualname__ = "hookscope.edit"  # what a census shows
