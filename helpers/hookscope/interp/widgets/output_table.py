"""Compare two outputs of a model in a table: the top words or classes, or the largest change of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.widgets.gradient_goal import find_goal, parts_of

__all__ = ["Labels", "OutputTable", "compare_outputs"]

_TOP = 5
_TOLERANCE = 1e-4  # values that are at least 0 and sum to 1 up to this are taken for probabilities

Labels = Sequence[str] | Mapping[int, str] | Callable[[int], str]
"""Words or classes by index: a list, a dict or a function."""


@dataclass(frozen=True)
class OutputTable:
    """A comparison of two outputs.

    Attributes:
        title: a description of the rows.
        rows: dicts with the same keys.
        samples: the number of samples in the output.
        positions: the number of positions; 0 if the output has none.

    """

    title: str
    rows: list[dict[str, object]]
    samples: int = 1
    positions: int = 0


def compare_outputs(
    before: Any, after: Any, vocabulary: Labels | None, classes: Labels | None, sample: int, position: int
) -> OutputTable:
    """Compare two outputs.

    Args:
        before: the output without the edit.
        after: the output with the edit.
        vocabulary: the words of a language model; None compares its output like any other.
        classes: the names of the classes; None shows their indices.
        sample: the index of the sample.
        position: the position in the sequence; -1 for the last.

    Raises:
        ValueError: no output tensor has one value per word or class.

    Example:
        >>> before, after = torch.tensor([[1.0, 1.0]]), torch.tensor([[99.0, 1.0]])
        >>> compare_outputs(before, after, None, ["cat", "dog"], 0, -1).rows[0]
        {'class': 'cat', 'before': 0.5, 'after': 1.0}

    """
    part, scores = _find_scores(before, vocabulary, classes)
    if part is None:
        return OutputTable("What the model returns", _list_changes(before, after))
    assert scores is not None
    now = parts_of(after).get(part)
    if not isinstance(now, Tensor) or now.shape != scores.shape:
        return OutputTable(
            "What the model returns; the edit changed the shape of its output", _list_changes(before, after)
        )
    named: Labels | None = vocabulary if vocabulary is not None else classes
    noun = "class" if vocabulary is None else "word"
    sample = min(sample, len(scores) - 1)
    positions = scores.shape[1] if scores.dim() == 3 else 0
    place = max(-positions, min(position, positions - 1))
    both = [tensor[sample, place] if positions else tensor[sample] for tensor in (scores, now)]
    both = [each.detach().cpu().double() for each in both]
    is_softmax = all(map(_are_probabilities, both))
    shares = both if is_softmax else [each.softmax(-1) for each in both]
    order = torch.stack([share.nan_to_num(-1.0) for share in shares])
    top = {int(number) for share in order for number in share.topk(min(_TOP, len(share))).indices}
    rows: list[dict[str, object]] = [
        {noun: _get_label(named, number), "before": float(shares[0][number]), "after": float(shares[1][number])}
        for number in sorted(top, key=lambda number: (-float(order[:, number].max()), number))
    ]
    where = f" at position {place % positions} of {positions}" if positions else ""
    of = f", sample {sample} of {len(scores)}" if len(scores) > 1 else ""
    nouns = "words" if noun == "word" else "classes"
    how = "as the model returns them" if is_softmax else "by softmax"
    title = f"Probabilities of the top {nouns}{where}{of}, {scores.shape[-1]} in all, {how}"
    return OutputTable(title, rows, len(scores), positions)


def _find_scores(output: Any, vocabulary: Labels | None, classes: Labels | None) -> tuple[str | None, Tensor | None]:
    """Find the tensor with one value per word or class."""
    parts = parts_of(output)
    if vocabulary is None:
        goal = find_goal(output)
        if goal is not None and goal.classes > 1:
            if isinstance(classes, Sequence) and len(classes) != goal.classes:
                raise ValueError(
                    f"classes has {len(classes)} names, but the model returns {goal.classes} scores. Name each class"
                )
            return goal.part, parts[goal.part]
        if classes is not None:
            raise ValueError(
                f"classes= needs an output of shape (samples, classes), but the model returns {_format_parts(parts)}. "
                "Leave out classes="
            )
        return None, None
    count = len(vocabulary) if isinstance(vocabulary, Sequence) else None  # a dict can have gaps
    fits = {
        part: tensor
        for part, tensor in parts.items()
        if tensor.is_floating_point() and tensor.dim() in (2, 3) and count in (None, tensor.shape[-1])
    }
    if not fits:
        words = "one value per word" if count is None else f"{count} values, one per word of vocabulary="
        raise ValueError(f"the model returns {_format_parts(parts)}, but no tensor (…, words) with {words}")
    longest = [part for part, tensor in fits.items() if tensor.dim() == 3] or list(fits)
    chosen = next((part for part in longest if "logits" in part), longest[0])
    return chosen, fits[chosen]


def _are_probabilities(scores: Tensor) -> bool:
    """Return whether values are already probabilities. Log probabilities need no check: softmax turns them back."""
    return bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < _TOLERANCE


def _get_label(names: Labels | None, number: int) -> str:
    if names is None:
        return str(number)
    if isinstance(names, Mapping):
        return str(names.get(number, number))
    return str(names(number) if callable(names) else names[number])


def _list_changes(before: Any, after: Any) -> list[dict[str, object]]:
    """List the shape and the largest change of each tensor."""
    then, now, rows = parts_of(before), parts_of(after), []
    for part in dict.fromkeys([*then, *now]):
        old, new = then.get(part), now.get(part)
        row: dict[str, object] = {"output": part or "the output"}
        if old is None or new is None or old.shape != new.shape:
            shapes = [tuple(each.shape) if each is not None else "none" for each in (old, new)]
            row |= {"shape": f"{shapes[0]}, then {shapes[1]}", "largest change": None}
        else:
            row |= {"shape": str(tuple(old.shape)), "largest change": _find_largest_change(old, new)}
        rows.append(row)
    return rows or [{"output": "no tensor", "shape": "", "largest change": None}]


def _find_largest_change(old: Tensor, new: Tensor) -> float:
    if not old.numel():
        return 0.0
    old, new = (each.detach().cpu() for each in (old, new))
    old, new = (each if each.is_complex() else each.double() for each in (old, new))
    same = (old == new) | (old.isnan() & new.isnan())
    return float(torch.where(same, torch.zeros_like((new - old).abs()), (new - old).abs()).max())


def _format_parts(parts: Mapping[str, Tensor]) -> str:
    texts = [f"{part or 'a tensor'} {tuple(tensor.shape)}" for part, tensor in parts.items()]
    return ", ".join([*texts[:4], *([f"{len(texts) - 4} more"] if len(texts) > 4 else [])]) or "no tensor"
