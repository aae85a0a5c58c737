"""Find the blocks of a sequence model, which pass its residual stream from one to the next."""

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

__all__ = [
    "NoBlocksError",
    "find_blocks",
    "find_runs",
    "first_tensor",
    "is_stream",
    "is_tokens_first",
    "passes_stream_on",
]

_FIX = "Name them yourself: layers='blocks.*'"


class NoBlocksError(ValueError):
    """No layers return a residual stream, (batch, tokens, width), or the layers that you named do not return one."""


def first_tensor(value: Any, kind: type = Tensor) -> Any:
    """Return an output that is a tensor, or the first item of a tuple, list or dict; None if that is not a tensor.

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
    """Return whether a tensor is floating and has three axes: (batch, tokens, width)."""
    return tensor is not None and not tensor.is_nested and tensor.dim() == 3 and tensor.is_floating_point()


def is_tokens_first(blocks: Sequence[nn.Module]) -> bool:
    """Return whether the blocks take (tokens, batch, width), as `nn.MultiheadAttention` with batch_first=False."""
    inside = [each for each in blocks[0].modules() if isinstance(each, nn.MultiheadAttention)]
    return bool(inside) and not any(each.batch_first for each in inside)


def find_runs(modules: Modules, single: bool = False) -> list[list[nn.Module]]:
    """List the candidates for blocks: consecutive modules of one class in a ModuleList or Sequential.

    A ModuleList that mixes classes, such as attention and recurrence, is a candidate, too. Modules without children
    are not.

    Args:
        modules: the modules of a model.
        single: also list runs of one module, because a model can call it several times.

    Example:
        >>> block = lambda: nn.Sequential(nn.Linear(2, 2))
        >>> [len(run) for run in find_runs(Modules(nn.Sequential(nn.Linear(2, 2), block(), block(), nn.ReLU())))]
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


def passes_stream_on(calls: Sequence[Call], kind: type = Tensor) -> bool:
    """Return whether these calls can pass a stream on: input and output have one shape, and the inputs differ.

    Parallel modules, such as heads or experts, all get the same input.

    Args:
        calls: captured calls with their inputs.
        kind: `Stats` if the capture stored statistics only.

    """
    given = []
    for call in calls:
        came_in = next((tensor for tensor in _inputs(call, kind) if len(tensor.shape) == 3), None)
        went_out = first_tensor(call.stats if kind is Stats else call.output, kind)
        if came_in is None or went_out is None or tuple(came_in.shape) != tuple(went_out.shape):
            return False
        given.append(came_in)
    return len(given) < 2 or not all(_is_same(given[0], each) for each in given[1:])


def _inputs(call: Call, kind: type) -> list[Any]:
    if kind is Tensor:
        return find_tensors((call.args, call.kwargs))
    return [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, kind)]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Stats):
        return (one.mean, one.std, one.min, one.max) == (other.mean, other.std, other.min, other.max)
    return one.shape == other.shape and torch.equal(one, other)


def find_blocks(modules: Modules, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[nn.Module]:
    """Run the model and return the blocks: of the runs that pass a stream on, the one with the most calls.

    Of several with equally many calls it takes the last, because that one is closest to the output. A run that mixes
    classes inside another block, such as attention and MLP in T5, does not count.

    Raises:
        NoBlocksError: no run passes a stream on.

    """
    for single in (False, True):
        runs = find_runs(modules, single)
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
                if streams and passes_stream_on([call for _, call in calls], Stats):
                    found.append((len(calls), calls[-1][0], run))
        inner = {part for _, _, run in found for block in run for part in block.modules() if part is not block}
        found = [each for each in found if len(set(map(type, each[2]))) == 1 or inner.isdisjoint(each[2])]
        if found:
            return max(found, key=lambda each: each[:2])[2]
    raise NoBlocksError(
        f"could not find the blocks of {type(modules.model).__name__}: no run of layers of one class returns "
        f"(batch, tokens, width). {_FIX}"
    )


def _is_like_a_stream(call: Call) -> bool:
    stats = first_tensor(call.stats, Stats)
    return stats is not None and len(stats.shape) == 3 and bool(stats.dtype.is_floating_point)
