"""What a sweep is to give, by one plain hook for each cell; and models to sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

import hookscope
from hookscope import SweepOptions
from hookscope.interp.sweeps import Sweep


class Gated(nn.Module):
    """Of no known family: branches, a skip connection past everything, a layer called by keyword, a dict returned."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.gate = nn.Linear(width, width)
            self.body = nn.Linear(width, width)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            inside = self.norm(x)
            x = x + self.act(self.body(inside)) * self.gate(inside).sigmoid()
            x += 0.1 * memory.mean(1, keepdim=True)  # in place, on something of its own
            return x, inside

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)
        self.blocks = nn.ModuleList([self.Block(width) for _ in range(3)])
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        first = x = self.drop(self.stem(x))
        insides = []
        for block in self.blocks:
            x, inside = block(x, memory=first)
            insides.append(inside)
        return {"scores": self.head(torch.cat([x, first], -1)) * scale, "insides": insides}


def sweep_by_hand(
    model: nn.Module,
    run: Callable[[], Any],
    layers: list[str],
    new: dict[str, Tensor],
    indices: list[Any],
    metric: Callable[[Any], Any],
) -> Tensor:
    """Run a model once for each layer and index, with one plain hook that writes new values into a copy."""
    values = torch.full((len(layers), len(indices)), float("nan"), dtype=torch.float64)
    for row, name in enumerate(layers):
        for column, index in enumerate(indices):

            def hook(module, args, output, name=name, index=index):
                tensor = (output[0] if isinstance(output, tuple) else output).clone()
                tensor[index] = new[name][index]
                return (tensor, *output[1:]) if isinstance(output, tuple) else tensor

            handle = model.get_submodule(name).register_forward_hook(hook)
            with torch.no_grad():
                values[row, column] = float(metric(run()))
            handle.remove()
    return values


def is_close(one: Tensor, other: Tensor) -> bool:
    """Whether two sweeps differ by rounding at most, which is what docs/limits/sweep.md calls 1e-5 of the scale."""
    return bool((one - other).abs().max() <= 1e-5 * other.abs().max())


def get_outputs(model: nn.Module, run: Callable[[], Any], layers: list[str]) -> dict[str, Tensor]:
    """What layers return, the first tensor of a tuple."""
    found: dict[str, Tensor] = {}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: found.update(
                {name: (out[0] if isinstance(out, tuple) else out).clone()}
            )
        )
        for name in layers
    ]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return found


class Flat(nn.Module):
    """Puts samples and tokens into one axis on the way, as experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.expert(x.flatten(0, 1) * 1).view_as(x)


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a model, of a tensor, a tuple or a dict."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def sweep(model: Any, inputs: Any, layers: Any, source: Any, *, metric: Any, **options: Any) -> Sweep:
    """Call `hookscope.sweep` with its inputs in one value, and its options beside its columns."""
    args, kwargs = split_inputs(inputs)
    how = SweepOptions(**{each.name: options.pop(each.name) for each in fields(SweepOptions) if each.name in options})
    return hookscope.sweep(
        model, *args, kwargs=kwargs, layers=layers, source=source, metric=metric, options=how, **options
    )
