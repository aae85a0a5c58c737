"""Find the blocks of a sequence model: the layers one after the other whose outputs are its residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures.call import Call
from hookscope.captures.capture import capture
from hookscope.captures.stats import Stats
from hookscope.layers import Modules
from hookscope.pytree import find_tensors

__all__ = ["NoBlocksError", "first_tensor", "follows", "is_stream", "probed_run", "runs_of", "tokens_first"]

_WAY_OUT = "name them with layers=, for example layers='blocks.*'"


class NoBlocksError(ValueError):
    """No layers, or not the ones that were named, return a stream: (batch, tokens, width)."""


def first_tensor(value: Any, kind: type = Tensor) -> Any:
    """Return the tensor that an output is or begins with: a tuple, list, dict or ModelOutput; None if there is none.

    Example:
        >>> first_tensor((torch.ones(1, 2, 3), None)).shape
        torch.Size([1, 2, 3])

    """
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value and isinstance(value[0], kind):
        return value[0]
    return None


def is_stream(tensor: Tensor | None) -> bool:
    """Whether it is a floating (batch, tokens, width)."""
    return tensor is not None and not tensor.is_nested and tensor.dim() == 3 and tensor.is_floating_point()


def tokens_first(blocks: Sequence[nn.Module]) -> bool:
    """Whether the blocks take (tokens, batch, width), as `nn.MultiheadAttention` does without batch_first."""
    inside = [each for each in blocks[0].modules() if isinstance(each, nn.MultiheadAttention)]
    return bool(inside) and not any(each.batch_first for each in inside)


def runs_of(modules: Modules, single: bool = False) -> list[list[nn.Module]]:
    """List the runs of modules of one class, side by side in a ModuleList or Sequential, that have children.

    A ModuleList with modules of several classes, as attention and recurrence in turn, is a run, too.

    Args:
        modules: those of a model.
        single: list single modules, too, which may be called several times.

    Example:
        >>> block = lambda: nn.Sequential(nn.Linear(2, 2))
        >>> [len(run) for run in runs_of(Modules(nn.Sequential(nn.Linear(2, 2), block(), block(), nn.ReLU())))]
        [2]

    """
    runs = []
    for holder in modules.names:
        if not isinstance(holder, nn.ModuleList | nn.Sequential):
            continue
        run: list[nn.Module] = []
        for child in [*(child for child in holder._modules.values() if child is not None), None]:
            if run and type(child) is not type(run[-1]):
                runs.append(run)
                run = []
            if child is not None:
                run.append(child)
        children = [child for child in holder._modules.values() if child is not None]
        if isinstance(holder, nn.ModuleList) and len(set(map(type, children))) > 1:
            runs.append(children)
    least = 1 if single else 2
    return [run for run in runs if len(run) >= least and all(each._modules for each in run)]


def follows(calls: Sequence[Call], kind: type = Tensor) -> bool:
    """Whether calls may pass a stream on: what comes out has the shape of what came in, and they stand in a row.

    Heads or experts in a list stand side by side: all are given the same.

    Args:
        calls: with their inputs.
        kind: `Stats` for calls of which only those were kept.

    """
    given = []
    for call in calls:
        came_in = next((tensor for tensor in _inputs(call, kind) if len(tensor.shape) == 3), None)
        went_out = first_tensor(call.stats if kind is Stats else call.output, kind)
        if came_in is None or went_out is None or tuple(came_in.shape) != tuple(went_out.shape):
            return False
        given.append(came_in)
    return len(given) < 2 or not all(_same(given[0], each) for each in given[1:])


def _inputs(call: Call, kind: type) -> list[Any]:
    if kind is Tensor:
        return find_tensors((call.args, call.kwargs))
    return [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, kind)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Stats):
        return (one.mean, one.std, one.min, one.max) == (other.mean, other.std, other.min, other.max)
    return one.shape == other.shape and torch.equal(one, other)


def probed_run(modules: Modules, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[nn.Module]:
    """Run the model, keeping statistics only, and return the run that is called most often and passes a stream on.

    Where several are called as often it is the last of them, which is nearest to what the model returns. Layers of
    several classes inside of a block, as attention and MLP in T5, are no run beside the blocks.

    Raises:
        NoBlocksError: there is none.

    """
    for single in (False, True):
        runs = runs_of(modules, single)
        if not runs:
            continue
        with capture(modules.model, *{each for run in runs for each in run}, inputs=True, stats=True) as seen:
            modules.model(*args, **kwargs)
        found: list[tuple[int, int, list[nn.Module]]] = []
        for run in runs:
            names = {modules.names[each] for each in run}
            calls = [(place, call) for place, call in enumerate(seen.calls) if call.layer in names]
            if len(calls) >= 2 - single and len({call.layer for _, call in calls}) == len(names):
                streams = all(_is_like_a_stream(call) for _, call in calls)
                if streams and follows([call for _, call in calls], Stats):
                    found.append((len(calls), calls[-1][0], run))
        inner = {part for _, _, run in found for block in run for part in block.modules() if part is not block}
        found = [each for each in found if len(set(map(type, each[2]))) == 1 or inner.isdisjoint(each[2])]
        if found:
            return max(found, key=lambda each: each[:2])[2]
    raise NoBlocksError(
        f"{type(modules.model).__name__} has no layers whose outputs are (batch, tokens, width), of one class and one "
        f"after the other; {_WAY_OUT}"
    )


def _is_like_a_stream(call: Call) -> bool:
    stats = first_tensor(call.stats, Stats)
    return stats is not None and len(stats.shape) == 3 and bool(stats.dtype.is_floating_point)
