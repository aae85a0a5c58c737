"""Run a model once and return the weights of every attention call in it, checked against what the call returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Never

import torch
from torch import Tensor, nn

from hookscope.captures.estimate import fake_parameters
from hookscope.captures.options import check_bytes
from hookscope.compiler import run_eagerly
from hookscope.interp.attentions.maps import AttentionMaps
from hookscope.interp.attentions.mode import AttentionMode, HeavyError, format_bytes
from hookscope.layers import Modules
from hookscope.model_inputs import check_kwargs
from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text
from hookscope.preserve import preserve_model, preserve_rng_state

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["attention"]

_MOST_BYTES = 4 << 30
_SIMPLE = (Tensor, int, float, str, bool, type(None))


def attention(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    max_bytes: float | None = _MOST_BYTES,
    **_unknown: Never,
) -> AttentionMaps:
    """Run a model once, and return the weights of every attention call in it, head by head.

    A map is what the values are multiplied with: [batch, heads, queries, keys]. `attention` finds calls of
    `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, and a softmax written by hand. It computes weights @ v
    again and compares that with what the call returned; a note says where they differ. The model runs without
    gradients, in `train()` or `eval()` as it is, and nothing stays on it. Limits: docs/limits/attention.md.

    Args:
        model: any module.
        *args: positional arguments of the model.
        kwargs: keyword arguments of the model, as ``{"attention_mask": mask}``.
        tokens: a string for each token of one sample; they label queries and keys of which there are as many.
        max_bytes: refuse maps that take more than this together, 4 GiB by default; None for no limit.

    Returns:
        The maps in the order of the calls; they show themselves as a picture and a table.

    Raises:
        TypeError: an option is unknown or of the wrong type. What the model raises is raised, too.
        ValueError: no map has as many queries or keys as there are tokens.
        MemoryError: the maps would take more than `max_bytes`.

    Example:
        >>> layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.ones(1, 3, 8)
        >>> maps = attention(layer, x, x, x, kwargs={"need_weights": False}, tokens=["the", "cat", "sat"])
        >>> maps[0].weights.shape, maps[0].queries, maps[0].verified
        (torch.Size([1, 2, 3, 3]), ('the', 'cat', 'sat'), True)

    """
    kwargs = check_kwargs(attention, kwargs, _unknown)
    modules = Modules(model)
    named = check_tokens(tokens) if tokens is not None else ()
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    limit = float("inf") if max_bytes is None else max_bytes

    rows, again = _count_samples((*args, *kwargs.values())), _again(args, kwargs)
    watch = AttentionMode(
        modules.names, modules.tensors, limit, rows, heavy=_forecaster(modules, limit) if again else None
    )
    try:
        _run_model(modules, watch, args, kwargs)
    except HeavyError:
        if (total := _forecast(modules, args, kwargs)) is not None and total > limit:
            raise MemoryError(
                f"the attention maps would take {format_bytes(total)}, more than max_bytes={max_bytes:,}: give fewer samples or "
                "a shorter text, or a larger max_bytes"
            ) from None
        watch = AttentionMode(modules.names, modules.tensors, limit, rows)
        _run_model(modules, watch, args, kwargs)
    except Exception as error:
        if not any(isinstance(module, torch.jit.ScriptModule) for module in modules.names) or not again:
            raise
        _run_model(modules, None, args, kwargs)  # raises if the model does it by itself
        said = next(iter(str(error).splitlines()), "")
        return AttentionMaps(modules, [], [f"0 maps: TorchScript cannot be watched here ({said[:120]})"], named)

    sizes = sorted({size for each in watch.found for size in each.weights.shape[2:]})
    if named and sizes and len(named) not in sizes:
        raise ValueError(
            f"tokens has {count_text(len(named), 'string')}, but the maps have {', '.join(map(str, sizes))} tokens"
        )
    return AttentionMaps(modules, watch.found, _list_notes(modules, watch, rows), named)


def _run_model(
    modules: Modules,
    watch: AttentionMode | None,
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

    watch = AttentionMode(modules.names, modules.tensors, float("inf"), counting=True)
    try:
        _run_model(modules, watch, inputs, kwargs, FakeTensorMode(allow_non_fake_inputs=True))
    except Exception:
        return None
    return watch.bytes


def _count_samples(inputs: Iterable[Any]) -> int:
    """How many samples went in, by the first tensor; 0 if none did."""
    return next((len(each) for each in inputs if isinstance(each, Tensor) and each.dim()), 0)


def _list_notes(modules: Modules, watch: AttentionMode, rows: int) -> list[str]:
    """Say what was seen that is no map, and why there is none."""
    seen, notes = watch.seen, []
    for layer in seen.channels:
        notes.append(f"{_name_layer(layer)}: channels look at channels there, which is no attention of tokens")
    for layer, what in seen.unknown:
        notes.append(f"{_name_layer(layer)}: {what} is not followed")
    for layer, what in seen.failed:
        notes.append(f"{_name_layer(layer)}: could not be followed: {what}")
    for layer in dict.fromkeys(seen.unused.values()):
        notes.append(f"{_name_layer(layer)}: a softmax of products met no values in a way that could be followed")
    for module, name in modules.names.items():
        if "forward" in (own := module.__dict__) and getattr(own["forward"], "__qualname__", "") == "hookscope.edit":
            notes.append(
                f"{_name_layer(name)}: an edit reaches into it; the map is from before that, and what the edit computes may "
                "stand beside it as another"
            )
    if modules.compiled:
        notes.append("the model is compiled; it ran without its compilation")
    others = [
        f"{', '.join(map(_name_layer, list(seen.softmaxes)[:3]))}{' and others' if len(seen.softmaxes) > 3 else ''}: the "
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


def _name_layer(name: str) -> str:
    return f"layer {name!r}" if name else "the model itself"
