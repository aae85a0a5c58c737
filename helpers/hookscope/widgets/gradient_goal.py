"""The value whose gradient is computed: class scores if the model returns some, else the sum of an output."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.stats import shape_of
from hookscope.pytree import find_paths, keystr

__all__ = ["Goal", "find_goal", "parts_of", "select_goal"]

# Usual names of a tensor of class scores, best first.
_NAMES = ("logits", "scores", "out", "output", "outputs", "prediction", "predictions")
# Usual names of tensors of shape (N, features), which are not scores.
_FEATURES = ("pooler_output", "pooled_output", "features", "embeds", "embeddings", "image_embeds", "text_embeds")


@dataclass(frozen=True)
class Goal:
    """The tensor in a model's output whose gradient is computed.

    Attributes:
        part: its position in the output, as in `parts_of`.
        shape: its shape.
        classes: the number of scores per sample; 0 if it does not look like scores.
        others: the number of other tensors in the output.
        function: the user's function that turns the output into a scalar, instead of a part.
        fixed: whether the user chose it.

    """

    part: str
    shape: tuple[Any, ...]
    classes: int
    others: int
    function: Callable[[Any], Tensor] | None = field(default=None, repr=False)
    fixed: bool = field(default=False, repr=False)

    def score(self, output: Any, target: int | None) -> Tensor:
        """Return the scalar to call backward on.

        Args:
            output: the output of the model.
            target: the class; None for the highest score of each sample. Without classes, it is the sum.

        Raises:
            ValueError: the user's function did not return a single number.
            IndexError: the class does not exist.

        """
        if self.function is not None:
            number = self.function(output)
            if not isinstance(number, Tensor) or number.numel() != 1:
                what = f"a tensor of shape {tuple(number.shape)}" if isinstance(number, Tensor) else repr(number)[:80]
                raise ValueError(
                    f"gradient_of returned {what}. Return one number, as gradient_of=lambda output: output.sum()"
                )
            return number.sum()
        tensor: Tensor = parts_of(output)[self.part]
        if not self.classes:
            return tensor.sum()
        if target is None:
            return tensor.max(dim=1).values.sum()
        if not 0 <= target < self.classes:
            raise IndexError(
                f"no class {target}: the model returns {self.classes} scores. Pass 0 to {self.classes - 1}"
            )
        return tensor[:, target].sum()

    def random_score(self, output: Any) -> Tensor:
        """Return the sum of the same tensor with a random weight for each value."""
        if self.function is not None:
            return self.function(output).sum()
        tensor: Tensor = parts_of(output)[self.part]
        factors = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        return (tensor * factors.to(tensor)).sum()

    def describe(self, target: int, name: str) -> str:
        """Describe the value whose gradient is computed.

        Args:
            target: the class; -1 for the highest score of each sample.
            name: the name of that class.

        """
        if self.function is not None:
            return "what gradient_of returns"
        where = f"output{self.part}" if self.part else "the output"
        if self.classes and target >= 0:
            return f"the score of class {name}, one of {self.classes} in {where}"
        if self.classes:
            return f"the highest of the {self.classes} scores of each sample in {where}"
        if not self.shape:
            return f"{where}, a single number"
        if len(self.shape) == 2:
            return f"the sum of {where}, because its {self.shape[1]} values are not class scores"
        return f"the sum of {where}, because its shape {self.shape} is not that of class scores, (N, classes)"


def find_goal(output: Any, among: Container[str] | None = None, classes: int | None = None) -> Goal | None:
    """Choose the output tensor whose gradient is computed; None if no tensor is floating-point.

    A tensor of shape (N, classes) wins. If there are several, the best has as many classes as the user named, then the
    name `logits`, then another usual name for scores. Otherwise it is the first.

    Args:
        output: the output of the model.
        among: the parts that can have a gradient; None for all.
        classes: the number of class names that the user gave; None without names.

    Example:
        >>> find_goal({"features": torch.zeros(2, 64), "logits": torch.zeros(2, 10)})
        Goal(part="['logits']", shape=(2, 10), classes=10, others=1)
        >>> find_goal(torch.zeros(2, 5, 8)).classes
        0

    """
    parts = parts_of(output)
    floating = {
        part: tensor
        for part, tensor in parts.items()
        if tensor.is_floating_point() and (among is None or part in among)
    }
    if not floating:
        return None
    scores = {part: t for part, t in floating.items() if t.dim() == 2 and _get_key(part) not in _FEATURES}
    those = scores or floating
    # min returns the first of equals.
    part = min(those, key=lambda part: (bool(scores) and those[part].shape[1] != classes, _rank_name(part)))
    tensor = those[part]
    return Goal(part, shape_of(tensor), tensor.shape[1] if scores else 0, len(parts) - 1)


def select_goal(output: Any, gradient_of: str | Callable[[Any], Tensor]) -> Goal:
    """Return the goal that the user asked for.

    Args:
        output: the output of the model.
        gradient_of: a part of the output, as in `parts_of`, or a function that turns it into a scalar.

    Raises:
        ValueError: the part does not exist or is not floating-point.

    """
    parts = parts_of(output)
    if callable(gradient_of):
        return Goal("", (), 0, len(parts), gradient_of, True)
    floating = [part for part, tensor in parts.items() if tensor.is_floating_point()]
    if gradient_of not in floating:
        names = ", ".join(map(repr, floating)) or "none"
        why = "is not a floating-point tensor" if gradient_of in parts else "is not in the output"
        raise ValueError(
            f"gradient_of={gradient_of!r} {why}, which has {names}. Pass one of these, or a function of the output"
        )
    tensor = parts[gradient_of]
    classes = tensor.shape[1] if tensor.dim() == 2 and _get_key(gradient_of) not in _FEATURES else 0
    return Goal(gradient_of, shape_of(tensor), classes, len(parts) - 1, fixed=True)


def _get_key(part: str) -> str:
    return part.replace("'", "").replace("]", "").replace("[", ".").rpartition(".")[2].lower()


def _rank_name(part: str) -> int:
    return _NAMES.index(name) if (name := _get_key(part)) in _NAMES else len(_NAMES)


def parts_of(value: Any, kind: type = Tensor) -> dict[str, Any]:
    """Name the tensors (or other `kind` of objects) in an output: `""` for only one, else `[0]`, `['low']`, `.logits`.

    Example:
        >>> parts_of((torch.zeros(1), {"low": torch.zeros(2)})).keys()
        dict_keys(['[0]', "[1]['low']"])

    """
    return {keystr(path): found for path, found in find_paths(value, kind)}
