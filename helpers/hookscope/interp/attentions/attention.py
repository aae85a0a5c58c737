"""Run a model once and return the weights of every attention call in it, checked against what the call returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookscope.captures.estimate import fake_parameters
from hookscope.captures.options import check_bytes
from hookscope.compiler import run_eagerly
from hookscope.interp.attentions.maps import AttentionMaps
from hookscope.interp.attentions.watch import HeavyError, Watch, mib
from hookscope.layers import Modules
from hookscope.pictures.tokens import checked_tokens
from hookscope.pictures.words import counted
from hookscope.preserve import preserve_model, preserve_rng_state

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["attention"]

_MOST_BYTES = 4 << 30
_SIMPLE = (Tensor, int, float, str, bool, type(None))


def attention(
    model: nn.Module,
    *inputs: Any,
    tokens: Sequence[str] | None = None,
    max_bytes: float | None = _MOST_BYTES,
    **kwargs: Any,
) -> AttentionMaps:
    """Run a model once, and return the weights of every attention call in it, heads apart, each checked.

    A map is what the values are multiplied with: [batch, heads, queries, keys]. Found are

    - `F.scaled_dot_product_attention`, whichever kernel runs, with its masks, scale and grouped queries;
    - `nn.MultiheadAttention`, and the fused paths of it and of `nn.TransformerEncoderLayer`, which stay on;
    - a softmax written by hand: along the keys, of a product of two activations, whose result (after dropout or a
      change of dtype) is multiplied with values.

    For each map weights @ v is computed again and held against what the call returned: `output_error` is the largest
    difference, and a note says where it is more than rounding explains. Where torch computes all in one operation the
    weights are recomputed from queries, keys, mask and scale; else they are the model's own.

    The model runs as it is, in `train()` or `eval()`, without gradients. Nothing is registered on it; buffers, training
    flags and random numbers are put back. What a call keeps elsewhere, such as a cache that is given, it keeps.

    **What is no map.** Where channels look at channels (XCiT, squeeze-and-excitation) or classes are weighed, no tokens
    look at tokens: `notes` says so. Not found are flex attention, kernels of other packages, an exponential divided by
    its sum, scores that are no product (additive, banded), weights that something else than a product uses, and calls
    in other threads. A softmax that was met and not followed is in `notes`, also beside maps; where there are none,
    `notes` says why. A compiled model runs without its compilation, and while `edit` cuts edges, maps are from before.

    Heads are what was cut out of the features of a linear layer or a convolution; where that cannot be followed, the
    axis before the queries; `notes` say so where it may be another. Heads that share their keys may lie in the axis of
    the queries, and are told from them except where a single token asks.
    Weights that meet several values are one map. Pieces of a softmax (BigBird) are maps of their own, and said to be
    pieces; weights that meet weights, as in a pseudo-inverse (Nyströmformer), are none. A layer is the innermost module
    of the model in whose methods the call was made, so inside TorchScript it is what is around it.

    Args:
        model: any module.
        *inputs: what it is called with.
        tokens: a string for each token of one sample; they label queries and keys of which there are as many. Where
            queries and keys come from two texts, `AttentionMap.with_tokens` labels each.
        max_bytes: refuse maps that take more than this together, 4 GiB by default; None for no limit.
        **kwargs: keyword arguments it is called with.

    Returns:
        The maps in the order of the calls; they show themselves as a picture and a table.

    Raises:
        TypeError: `model` is not a module, or an option is of the wrong type; and what the model raises.
        ValueError: no map has as many queries or keys as there are tokens; `max_bytes` is negative.
        MemoryError: the maps would take more than `max_bytes`; says how many bytes.

    Example:
        >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
        >>> maps = attention(layer, x, x, x, tokens=["the", "cat", "sat"])
        >>> maps[0].weights.shape, maps[0].queries, maps[0].verified
        (torch.Size([1, 2, 3, 3]), ('the', 'cat', 'sat'), True)
        >>> attention(nn.Linear(2, 2), torch.ones(1, 2))
        Linear: 0 attention maps
        note: 0 maps: no softmax and no attention call ran where torch could be watched

    """
    modules = Modules(model)
    named = checked_tokens(tokens) if tokens is not None else ()
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    limit = float("inf") if max_bytes is None else max_bytes

    rows, again = _rows((*inputs, *kwargs.values())), _again(inputs, kwargs)
    watch = Watch(modules.names, modules.tensors, limit, rows, heavy=_forecaster(modules, limit) if again else None)
    try:
        _run(modules, watch, inputs, kwargs)
    except HeavyError:
        if (total := _forecast(modules, inputs, kwargs)) is not None and total > limit:
            raise MemoryError(
                f"the attention maps would take {mib(total)}, more than max_bytes={max_bytes:,}: give fewer samples or "
                "a shorter text, or a larger max_bytes"
            ) from None
        watch = Watch(modules.names, modules.tensors, limit, rows)
        _run(modules, watch, inputs, kwargs)
    except Exception as error:
        if not any(isinstance(module, torch.jit.ScriptModule) for module in modules.names) or not again:
            raise
        _run(modules, None, inputs, kwargs)  # raises if the model does it by itself
        said = next(iter(str(error).splitlines()), "")
        return AttentionMaps(modules, [], [f"0 maps: TorchScript cannot be watched here ({said[:120]})"], named)

    sizes = sorted({size for each in watch.found for size in each.weights.shape[2:]})
    if named and sizes and len(named) not in sizes:
        raise ValueError(
            f"tokens has {counted(len(named), 'string')}, but the maps have {', '.join(map(str, sizes))} tokens"
        )
    return AttentionMaps(modules, watch.found, _notes(modules, watch, rows), named)


def _run(
    modules: Modules,
    watch: Watch | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fake: FakeTensorMode | None = None,
) -> None:
    model = modules.model
    with ExitStack() as stack:
        stack.enter_context(preserve_model(model, modules=modules.names))
        stack.enter_context(preserve_rng_state(model, args, kwargs))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(run_eagerly())
        if fake is not None:
            stack.enter_context(fake)
            stack.enter_context(fake_parameters(model, fake.from_tensor))
        if watch is not None:
            stack.enter_context(watch)
        model(*args, **kwargs)


def _again(inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the model can be called with these inputs again: a cache would have changed."""
    return all(
        isinstance(each, _SIMPLE) or (isinstance(each, tuple | list) and all(isinstance(one, _SIMPLE) for one in each))
        for each in (*inputs, *kwargs.values())
    )


def _forecaster(modules: Modules, limit: float) -> Any:
    """Guess from the first map, and how many modules are of the kind that made it, whether all may be too many."""

    def heavy(size: int, module: nn.Module) -> bool:
        # First as if all were of that kind, which nearly always says it.
        return size * len(modules.names) > limit and size * [*map(type, modules.names)].count(type(module)) > limit

    return heavy


def _forecast(modules: Modules, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Count the bytes of all maps by a pass on fake tensors; None if the model does not run on them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    watch = Watch(modules.names, modules.tensors, float("inf"), counting=True)
    try:
        _run(modules, watch, inputs, kwargs, FakeTensorMode(allow_non_fake_inputs=True))
    except Exception:
        return None
    return watch.bytes


def _rows(inputs: Iterable[Any]) -> int:
    """How many samples went in, by the first tensor; 0 if none did."""
    return next((len(each) for each in inputs if isinstance(each, Tensor) and each.dim()), 0)


def _notes(modules: Modules, watch: Watch, rows: int) -> list[str]:
    """Say what was seen that is no map, and why there is none."""
    seen, notes = watch.seen, []
    for layer in seen.channels:
        notes.append(f"{_layer(layer)}: channels look at channels there, which is no attention of tokens")
    for layer, what in seen.unknown:
        notes.append(f"{_layer(layer)}: {what} is not followed")
    for layer, what in seen.failed:
        notes.append(f"{_layer(layer)}: could not be followed: {what}")
    for layer in dict.fromkeys(seen.unused.values()):
        notes.append(f"{_layer(layer)}: a softmax of products met no values in a way that could be followed")
    for module, name in modules.names.items():
        if "forward" in (own := module.__dict__) and getattr(own["forward"], "__qualname__", "") == "hookscope.edit":
            notes.append(
                f"{_layer(name)}: an edit reaches into it; the map is from before that, and what the edit computes may "
                "stand beside it as another"
            )
    if modules.compiled:
        notes.append("the model is compiled; it ran without its compilation")
    others = [
        f"{', '.join(map(_layer, list(seen.softmaxes)[:3]))}{' and others' if len(seen.softmaxes) > 3 else ''}: the "
        "softmax there is of no product of two activations that could be followed: it weighs classes, channels or "
        "gates, or is an attention of another kind"
    ] * bool(seen.softmaxes)
    if watch.found:
        batches = [size for each in watch.found if (size := each.weights.shape[0]) > rows > 0]
        if batches:
            maps = "a map has" if len(batches) == 1 else f"{len(batches)} maps have up to"
            notes.append(
                f"{rows} {'samples' if rows > 1 else 'sample'} went in, and {maps} {max(batches)} in the batch: "
                "windows, or heads that could not be told apart"
            )
        return notes + others
    if others:
        return [f"0 maps: {others[0]}", *notes]
    if notes:
        return ["0 maps: what ran is no attention of tokens, or not one that can be followed", *notes]
    return ["0 maps: no softmax and no attention call ran where torch could be watched"]


def _layer(name: str) -> str:
    return f"layer {name!r}" if name else "the model itself"
