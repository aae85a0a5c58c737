"""What a gradient is of: the scores of classes where a model returns some, else the sum of what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Goal", "goal_of", "parts_of"]

# How models name the tensor that holds a score for each class; the first that is there is taken.
_NAMES = ("logits", "scores", "out", "output", "outputs", "prediction", "predictions")


@dataclass(frozen=True)
class Goal:
    """The tensor in a model's output that a gradient is taken of.

    Attributes:
        part: where it is in the output, as `parts_of` names it.
        shape: its shape.
        classes: how many scores it has for each sample; 0 if it does not look like scores.
        others: how many other tensors the model returned.

    """

    part: str
    shape: tuple[int, ...]
    classes: int
    others: int

    def score(self, output: Any, target: int | None) -> Tensor:
        """Return the number to go backward from.

        Args:
            output: what the model returned.
            target: the class; None for the highest score of each sample. Without classes, the sum is taken.

        Raises:
            IndexError: there is no such class.

        """
        tensor: Tensor = parts_of(output)[self.part]
        if not self.classes:
            return tensor.sum()
        if target is None:
            return tensor.max(dim=1).values.sum()
        if not 0 <= target < self.classes:
            raise IndexError(f"no class {target}: the model returns {self.classes}, so 0 to {self.classes - 1}")
        return tensor[:, target].sum()

    def random_score(self, output: Any) -> Tensor:
        """Return another number of the same tensor: each value times a random factor, summed up."""
        tensor: Tensor = parts_of(output)[self.part]
        factors = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        return (tensor * factors.to(tensor)).sum()

    def in_words(self, target: int, name: str) -> str:
        """Say what the gradient is of.

        Args:
            target: the class; -1 for the highest score of each sample.
            name: what that class is called.

        """
        where = f"output{self.part}" if self.part else "the output"
        if self.classes and target >= 0:
            return f"the score of class {name}, one of {self.classes} in {where}"
        if self.classes:
            return f"the highest of the {self.classes} scores of each sample in {where}"
        if not self.shape:
            return f"{where}, a single number"
        return f"the sum of {where}: its shape {self.shape} is not that of class scores, which is (N, classes)"


def goal_of(output: Any) -> Goal | None:
    """Choose the tensor that a gradient is of, None if there is no floating one.

    A tensor (N, classes) comes first; among several the one that is called `logits`, else by another name usual for
    scores, else the first.

    Example:
        >>> goal_of({"features": torch.zeros(2, 64), "logits": torch.zeros(2, 10)})
        Goal(part="['logits']", shape=(2, 10), classes=10, others=1)
        >>> goal_of(torch.zeros(2, 5, 8)).classes
        0

    """
    parts = parts_of(output)
    floating = {part: tensor for part, tensor in parts.items() if tensor.is_floating_point()}
    if not floating:
        return None
    scores = {part: tensor for part, tensor in floating.items() if tensor.dim() == 2}
    among = scores or floating
    part = min(among, key=_rank)  # min keeps the first of equals
    tensor = among[part]
    return Goal(part, tuple(tensor.shape), tensor.shape[1] if scores else 0, len(parts) - 1)


def _rank(part: str) -> int:
    name = part.replace("'", "").replace("]", "").replace("[", ".").rpartition(".")[2].lower()
    return _NAMES.index(name) if name in _NAMES else len(_NAMES)


def parts_of(value: Any, kind: type = Tensor) -> dict[str, Any]:
    """Name the tensors (or other `kind` of objects) in an output: `""` for only one, else `[0]`, `['low']`, `.logits`.

    Example:
        >>> parts_of((torch.zeros(1), {"low": torch.zeros(2)})).keys()
        dict_keys(['[0]', "[1]['low']"])

    """
    found: dict[str, Any] = {}

    def walk(value: Any, path: str, depth: int) -> None:
        if isinstance(value, kind):
            found[path] = value
        elif depth > 8 or value is None or isinstance(value, (str, bytes, int, float)):
            return
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for name in value._fields:
                walk(getattr(value, name), f"{path}.{name}", depth + 1)
        elif isinstance(value, (tuple, list)):
            for index, item in enumerate(value):
                walk(item, f"{path}[{index}]", depth + 1)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{path}[{key!r}]", depth + 1)
        else:
            for name, item in getattr(value, "__dict__", {}).items():
                walk(item, f"{path}.{name}", depth + 1)

    walk(value, "", 0)
    return found
