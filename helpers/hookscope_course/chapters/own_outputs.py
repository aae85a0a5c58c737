"""What the last cell of a chapter shows of outputs of any model: rows that compare them, and a heat map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.pictures import Picture
from hookscope.pictures.heatmap import draw_heatmap
from hookscope.pytree import Path, find_paths, keystr

__all__ = ["OutputComparison", "draw_rows", "find_first", "find_ranked", "list_tensors"]

_ROWS, _COLUMNS = 64, 200  # of a heat map


@dataclass(frozen=True)
class OutputComparison:
    """Compares two tensors of an output, in one row of a table.

    Attributes:
        classes: the names of the classes, or nothing.
        tokenizer: with a method `decode`, or None.
        mask: the attention mask of the inputs, 0 for padding, or None.
        generates: whether the last row of the logits is about the next token.

    """

    classes: Sequence[str]
    tokenizer: Any
    mask: Any
    generates: bool

    def compare(self, name: str, old: Tensor | None, new: Tensor | None, ranked: bool) -> dict[str, object]:
        """Return the row for a tensor; `ranked` if its rows are sorted by score."""
        shapes = ["missing" if tensor is None else str(tuple(tensor.shape)) for tensor in (old, new)]
        row: dict[str, object] = {"output": name or "the output", "shape": " → ".join(dict.fromkeys(shapes))}
        if old is None or new is None:
            return row
        if ranked:
            return row | _compare_ranked(name, old, new)
        if old.shape != new.shape or not old.numel():
            return row
        change = (new - old).abs()
        real = torch.ones(old.shape[:2], dtype=torch.bool)
        if isinstance(self.mask, Tensor) and self.mask.dim() == 2 and old.shape[:2] == self.mask.shape:
            real = self.mask.cpu().bool()
            change[~real] = 0
        if old.dtype == torch.float64:
            row |= {"largest change": change.max().item(), "largest value": old.abs().max().item()}
        else:
            row["different values"] = f"{int((change != 0).sum())} of {old.numel()}"
        if ("logits" in name or (old.dim() == 2 and not name)) and old.dim() in (2, 3) and old.shape[-1] > 1:
            row |= self._compare_logits(old, new, change, real, sure="logits" in name)
        return row

    def _compare_logits(self, old: Tensor, new: Tensor, change: Tensor, real: Tensor, sure: bool) -> dict[str, object]:
        """Compare the sample that changed most; of a text or a sound, its last row."""
        most = [int(at) for at in torch.unravel_index(change.argmax(), change.shape)[:-1]]
        shown, word, differ = most, f"sample {most[0]}: " * (len(old) > 1), old.argmax(-1) != new.argmax(-1)
        if old.dim() == 3:
            shown, differ = [most[0], int(real[most[0]].nonzero().max())], differ[real]
            word += "next token: " if self.generates else f"row {shown[1]}: "
        row: dict[str, object] = {
            when: word + self._name_best(tensor[tuple(shown)], sure)
            for when, tensor in (("without", old), ("with", new))
        }
        if old.dim() == 3:
            row["largest change in"] = f"sample {most[0]}, " * (len(old) > 1) + f"row {most[1]}"
        if differ.numel() > 1:
            row["rows with another highest"] = f"{int(differ.sum())} of {differ.numel()}"
        return row

    def _name_best(self, logits: Tensor, sure: bool) -> str:
        best, known = int(logits.argmax()), len(self.classes) == len(logits)
        word = self.classes[best] if known else f"index {best}"
        if self.tokenizer is not None:
            word = repr(self.tokenizer.decode([best]))
        return word + (f", {logits.softmax(0)[best].item():.1%}" if sure or known else "")


def _compare_ranked(name: str, old: Tensor, new: Tensor) -> dict[str, object]:
    rows = [Counter(each.numpy().tobytes() for each in tensor) for tensor in (old, new)]
    row: dict[str, object] = {"new rows": f"{(rows[1] - rows[0]).total()} of {len(new)}"}
    for when, tensor in (("without", old), ("with", new)):
        if name.endswith("['scores']") and tensor.numel():
            row[when] = f"best {tensor.max().item():.3f}"
        if name.endswith("['labels']") and tensor.numel():
            row[when] = ", ".join(f"{count} × {label}" for label, count in Counter(tensor.tolist()).most_common(3))
    return row


def find_first(value: Any) -> tuple[Path, Tensor] | None:
    """Find the first dense floating-point tensor of a value, and where it is."""
    for path, tensor in find_paths(value, objects=False):
        if tensor.layout is torch.strided and tensor.is_floating_point() and tensor.numel():
            return path, tensor
    return None


def find_ranked(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the tensors beside `scores` that fall from row to row, as those of a detector do."""
    ranked = set[str]()
    for name, scores in tensors.items():
        if name.endswith("['scores']") and scores.dim() == 1 and scores.numel() and bool((scores.diff() <= 0).all()):
            ranked |= {each for each in tensors if each.rpartition("[")[0] == name.rpartition("[")[0]}
    return ranked


def list_tensors(output: Any) -> dict[str, Tensor]:
    """List the dense tensors of an output by where they are in it, without the caches of language models."""
    found = {keystr(path): tensor.detach().cpu() for path, tensor in find_paths(output, objects=False)}
    real = {name: torch.view_as_real(each) if each.is_complex() else each for name, each in found.items()}
    kept = {name: each for name, each in real.items() if each.layout is torch.strided}
    return {name: each.double() if each.is_floating_point() else each for name, each in kept.items()}


def draw_rows(values: Tensor, title: str, rows: str, columns: str, names: Sequence[str] = ()) -> Picture:
    """Draw a tensor with two axes as a heat map; a few huge values do not set its scale.

    Args:
        values: the tensor; its first 64 rows are drawn.
        title: the start of the caption.
        rows: what a row is, as "token".
        columns: what a column is.
        names: of the rows; their numbers otherwise.

    """
    shown = values[:_ROWS].float().cpu()
    notes = [f"Each row is one {rows}, each column one {columns}."]
    small = shown[:, :_COLUMNS]
    if len(values) > _ROWS:
        notes.append(f"These are the first {_ROWS} of {len(values)} rows.")
    if shown.shape[1] > _COLUMNS:
        # Averages of a few columns each would hide a wave, and show one that is not there.
        notes.append(f"The picture has the first {_COLUMNS} of {shown.shape[1]} columns, the table has all.")
    finite = small[small.isfinite()]
    if finite.numel():
        quarter, three = (finite.quantile(share).item() for share in (0.25, 0.75))
        low, high = 4 * quarter - 3 * three, 4 * three - 3 * quarter  # three times their distance beyond the quartiles
        inside = finite[(finite >= low) & (finite <= high)]
        if low < high and (outside := int(((small < low) | (small > high)).sum())):
            small = small.clamp(inside.min(), inside.max())
            notes.append(f"{outside} of {small.numel()} cells lie outside the scale and have its end colors.")
    labels = [*names][:_ROWS] or [str(at) for at in range(len(shown))]
    table = [
        {rows: name, "min": row.min().item(), "max": row.max().item(), "mean": row.mean().item()}
        for name, row in zip(labels, shown, strict=True)
    ]
    drawn = draw_heatmap(small.numpy(), labels, [""] * small.shape[1])
    alt = f"{title}, as a heat map from {drawn.ends[0]} to {drawn.ends[1]}. {notes[0]}"
    return Picture(drawn.png, alt, f"{title}. {' '.join(notes)}", table)
