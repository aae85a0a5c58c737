"""Models to sweep, among them such where a batch, a loop or a reference goes wrong, and what has to come out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from tests.shared.language_models import gpt2, small_vit
from tests.shared.sweep_helpers import Gated, get_outputs, sweep_by_hand

__all__ = ["CASES", "SweepCase"]


@dataclass
class SweepCase:
    """One sweep: every layer at every position, or channel, patched from another run, one at a time.

    Attributes:
        make: makes the model.
        inputs: what it is run on.
        others: what patches come from.
        layers: which layers.
        numbers: which positions or channels.
        scores: picks what the metric looks at from what the model returns, (samples, scores).
        axis: along which axis they count.
        part: which of several tensors that each of the layers returns.
        refused: whether only an error is right.

    """

    make: Callable[[], nn.Module]
    inputs: Tensor
    others: Tensor
    layers: list[str]
    numbers: range
    scores: Callable[[Any], Tensor] = lambda output: output
    axis: int = 1
    part: int | None = None
    refused: bool = False

    def made(self) -> nn.Module:
        """Make the model from the same random numbers; they go on the same, too."""
        torch.manual_seed(0)
        model = self.make()
        torch.manual_seed(1)
        return model

    def index(self, number: int) -> tuple[Any, ...]:
        """Where a position or channel is."""
        return (*[slice(None)] * self.axis, number)

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Layer and number of each cell, row by row."""
        return [(layer, number) for layer in self.layers for number in self.numbers]

    def number(self, scores: Tensor) -> Tensor:
        """The number that is swept: by how much the first score exceeds the second, all samples together."""
        return (scores[:, 0] - scores[:, 1]).sum()

    def metric(self, output: Any) -> Tensor:
        """The same, of what the model returns."""
        return self.number(self.scores(output))

    def table(self, values: list[float]) -> Tensor:
        """Put the values of all cells, in their order, into rows and columns."""
        return torch.tensor(values, dtype=torch.float64).reshape(len(self.layers), -1)

    def truth(self) -> Tensor:
        """What has to come out: each cell from a model of its own, all with the same random numbers."""
        source = self.made()
        new = get_outputs(source, lambda: source(self.others), self.layers)
        model, values = self.made(), []
        for layer, number in self.cells:
            torch.manual_seed(1)
            run = partial(copied := copy.deepcopy(model), self.inputs)
            values.append(float(sweep_by_hand(copied, run, [layer], new, [self.index(number)], self.metric)))
        return self.table(values)

    def baseline(self) -> float:
        """The metric with nothing changed."""
        model = self.made()
        with torch.no_grad():
            return float(self.metric(model(self.inputs)))


class _Averaged(nn.Sequential):
    """Takes the mean over the samples away, in `eval()`, too."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        found: Tensor = self[1]((x - x.mean(0)).relu())
        return found


class _Deciding(nn.Sequential):
    """Goes on as its values say."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        found: Tensor = self[1](x) if x.mean() > 0 else self[2](x)
        return found


class _Remembering(nn.Sequential):
    """Compares with what it saw before, which it keeps in a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        seen: Tensor = self[1].running_mean  # type: ignore[assignment]
        with torch.no_grad():
            seen.lerp_(x.mean(0), 0.5)
        found: Tensor = self[2](x - seen)
        return found


class _Skipping(nn.Sequential):
    """Has a skip connection past a dropout, which in `eval()` returns what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        found: Tensor = self[2](x + self[1](x).tanh())
        return found


class _Spare(nn.Sequential):
    """Has a layer that it never calls."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self[2](self[0](x).relu())
        return found


def _dense(kind: type[nn.Sequential], *more: nn.Module) -> nn.Module:
    return kind(nn.Linear(4, _WIDE), *more, nn.Linear(_WIDE, 2)).eval()


def _pair(*shape: int) -> tuple[Tensor, Tensor]:
    """Two inputs; the samples of a batch differ."""
    drawn = torch.randn(2, *shape, generator=torch.Generator().manual_seed(2))
    return drawn[0], drawn[1]


_IDS = torch.tensor([[5, 3, 9, 1, 7]])
_WIDE = 12
_ALL = range(_WIDE)
_BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


def _scores(output: Any) -> Tensor:
    found: Tensor = output["scores"].mean(1)
    return found


CASES: dict[str, SweepCase] = {
    "GPT-2, positions": SweepCase(
        gpt2, _IDS, (_IDS * 3 + 1) % 20, ["transformer.h.0", "transformer.h.0.attn", "transformer.h.1.mlp"], range(5),
        lambda output: output.logits[:, -1],
    ),
    "ViT, positions": SweepCase(
        small_vit, *_pair(1, 3, 32, 32),
        [f"encoder.layers.encoder_layer_{place}" for place in ("0", "0.self_attention", "1.mlp")], range(5),
    ),
    "resnet18, channels, before a ReLU in place": SweepCase(
        lambda: resnet18(num_classes=2).eval(), *_pair(1, 3, 64, 64), ["layer1.0.bn1", "layer2.0.conv1", "layer3.1"],
        range(4),
    ),
    "a model of no known family": SweepCase(
        lambda: Gated().eval(), *_pair(1, 5, 8), _BLOCKS, range(3), _scores, part=0
    ),
    "the same, several samples": SweepCase(
        lambda: Gated().eval(), *_pair(3, 5, 8), _BLOCKS, range(3), _scores, part=0
    ),
    "dropout in eval() beside a skip": SweepCase(
        lambda: _dense(_Skipping, nn.Dropout(0.5)), *_pair(2, 4), ["0", "1"], _ALL
    ),
    "dropout in train()": SweepCase(
        lambda: _dense(nn.Sequential, nn.Dropout(0.5)).train(), *_pair(2, 4), ["0", "1"], _ALL
    ),
    "batch norm in train()": SweepCase(
        lambda: _dense(nn.Sequential, nn.BatchNorm1d(_WIDE), nn.ReLU()).train(), *_pair(4, 4), ["0", "1"], _ALL
    ),
    "subtracting the mean over samples": SweepCase(lambda: _dense(_Averaged), *_pair(3, 4), ["0"], _ALL),
    "a branch that depends on the values": SweepCase(
        lambda: _dense(_Deciding, nn.Linear(_WIDE, 2)), *_pair(1, 4), ["0"], _ALL
    ),
    "a buffer that each pass changes": SweepCase(
        lambda: _dense(_Remembering, nn.BatchNorm1d(_WIDE)), *_pair(2, 4), ["0"], _ALL
    ),
    "a layer that is never called": SweepCase(
        lambda: _dense(_Spare, nn.Linear(_WIDE, _WIDE)), *_pair(1, 4), ["0", "1"], _ALL, refused=True
    ),
}  # fmt: skip
"""What is swept."""
