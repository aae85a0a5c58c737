"""What a gradient is of: the scores of classes where a model returns some, else the sum of what it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.captures.stats import shape_of
from hookscope.pytree import get_attributes

__all__ = ["Goal", "find_goal", "parts_of", "select_goal"]

# How models name the tensor that holds a score for each class; the first that is there is taken.
_NAMES = ("logits", "scores", "out", "output", "outputs", "prediction", "predictions")
# How they name tensors of shape (N, features), which hold no scores.
_FEATURES = ("pooler_output", "pooled_output", "features", "embeds", "embeddings", "image_embeds", "text_embeds")
_DEEP = 20  # levels of structure that are followed, as many as a capture follows
_SINGLE = (str, bytes, int, float, complex, type(None))


@dataclass(frozen=True)
class Goal:
    """The tensor in a model's output that a gradient is taken of.

    Attributes:
        part: where it is in the output, as `parts_of` names it.
        shape: its shape.
        classes: how many scores it has for each sample; 0 if it does not look like scores.
        others: how many other tensors the model returned.
        function: what the user gave instead of a tensor: it returns the number to go backward from.
        fixed: whether the user chose it.

    """

    part: str
    shape: tuple[Any, ...]
    classes: int
    others: int
    function: Callable[[Any], Tensor] | None = field(default=None, repr=False)
    fixed: bool = field(default=False, repr=False)

    def score(self, output: Any, target: int | None) -> Tensor:
        """Return the number to go backward from.

        Args:
            output: what the model returned.
            target: the class; None for the highest score of each sample. Without classes, the sum is taken.

        Raises:
            IndexError: there is no such class.

        """
        if self.function is not None:
            number = self.function(output)
            if not isinstance(number, Tensor) or number.numel() != 1:
                what = f"a tensor of shape {tuple(number.shape)}" if isinstance(number, Tensor) else repr(number)[:80]
                raise ValueError(
                    f"gradient_of returned {what}; return one number, as gradient_of=lambda output: output.sum()"
                )
            return number.sum()
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
        if self.function is not None:
            return self.function(output).sum()
        tensor: Tensor = parts_of(output)[self.part]
        factors = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        return (tensor * factors.to(tensor)).sum()

    def in_words(self, target: int, name: str) -> str:
        """Say what the gradient is of.

        Args:
            target: the class; -1 for the highest score of each sample.
            name: what that class is called.

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
            return f"the sum of {where}: its {self.shape[1]} values are not class scores"
        return f"the sum of {where}: its shape {self.shape} is not that of class scores, which is (N, classes)"


def find_goal(output: Any, among: Container[str] | None = None, classes: int | None = None) -> Goal | None:
    """Choose the tensor that a gradient is of, None if there is no floating one.

    A tensor (N, classes) comes first; among several the one with as many classes as were named, then the one that is
    called `logits`, else by another name usual for scores, else the first.

    Args:
        output: what the model returned.
        among: the parts that can have a gradient; None for all.
        classes: how many classes the user has named; None if none were.

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
    # min keeps the first of equals.
    part = min(those, key=lambda part: (bool(scores) and those[part].shape[1] != classes, _rank_name(part)))
    tensor = those[part]
    return Goal(part, shape_of(tensor), tensor.shape[1] if scores else 0, len(parts) - 1)


def select_goal(output: Any, gradient_of: str | Callable[[Any], Tensor]) -> Goal:
    """Return what the user wants the gradient of.

    Args:
        output: what the model returned.
        gradient_of: a part of it, as `parts_of` names it, or a function that makes a number of it.

    Raises:
        ValueError: there is no such part, or it holds no floating-point numbers.

    """
    parts = parts_of(output)
    if callable(gradient_of):
        return Goal("", (), 0, len(parts), gradient_of, True)
    floating = [part for part, tensor in parts.items() if tensor.is_floating_point()]
    if gradient_of not in floating:
        there = ", ".join(map(repr, floating)) or "none"
        why = "holds no floating-point values" if gradient_of in parts else "is not in the output"
        raise ValueError(f"gradient_of={gradient_of!r} {why}; there are {there}, or give a function of the output")
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
    found: dict[str, Any] = {}
    around: list[int] = []  # what contains itself is not followed again

    def walk(value: Any, path: str) -> None:
        if isinstance(value, kind):
            found[path] = value
        elif len(around) <= _DEEP and id(value) not in around and not isinstance(value, _SINGLE):
            around.append(id(value))
            for key, item in _items(value):
                walk(item, path + key)
            around.pop()

    walk(value, "")
    return found


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in a container or an object, each with how it is written behind the name of the whole."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, (tuple, list, deque, set, frozenset)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    else:
        yield from ((f".{name}", item) for name, item in get_attributes(value).items())
