"""What a chapter says in words alone, because it needs machines that most have not, is run here as far as it can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lessons.build import reading


def test_what_chapter_16_says_of_dataparallel() -> None:
    text = next(path for path in reading.chapter_files() if path.parent.name.startswith("16_")).read_text()
    assert "**DataParallel**" in text
    layer, seen = nn.Linear(2, 2), list[nn.Module]()

    def keep_on_module(module: Any, args: object, output: torch.Tensor) -> None:
        module.kept = output
        seen.append(module)

    layer.register_forward_hook(keep_on_module)
    copies = []
    for _ in range(2):  # what nn.DataParallel calls for each of its GPUs
        copy = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        copy.weight, copy.bias = layer.weight, layer.bias
        copy(torch.ones(1, 2))
        copies.append(copy)
    assert seen == copies, "it fires for each of them"
    assert all(hasattr(copy, "kept") for copy in copies)
    assert not hasattr(layer, "kept"), "and what it keeps on the module is lost with the copy"
