"""Run a model once and return the weights of every attention call in it, checked against the result of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from hookscope.captures.options import check_bytes
from hookscope.compiler import run_eagerly
from hookscope.interp.attentions.attention_calls import AttentionMode
from hookscope.interp.attentions.maps import AttentionMaps
from hookscope.layers import Modules
from hookscope.model_inputs import check_inputs, check_kwargs, explain_no_grad
from hookscope.pictures.tokens import check_tokens
from hookscope.pictures.words import count_text
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors
from hookscope.wrong_inputs import explain_input_errors

__all__ = ["attention"]

_MAX_BYTES = 4 << 30
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def attention(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    max_bytes: float | None = _MAX_BYTES,
    **_unknown: Never,
) -> AttentionMaps:
    """Run a model once, and return the weights of every attention call in it, head by head.

    A map holds the attention weights, with axes [batch, heads, queries, keys]. `attention` finds calls of
    `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, and a softmax between two matrix products. It computes
    weights @ v again and compares that with the result of the call; a note says if they differ. The model runs
    without gradients, in its current mode, and nothing stays on it. Limits: https://hookscope.github.io/hookscope/limits/attention.html

    Args:
        model: any module.
        *args: positional arguments for the model.
        kwargs: keyword arguments for the model, such as ``{"attention_mask": mask}``.
        tokens: a string for each token of one sample; they label the queries and keys if their number is the same.
        max_bytes: raise an error if all maps together take more than this, 4 GiB by default; None for no limit.

    Returns:
        The maps in the order of the calls; a notebook shows them as a picture and a table.

    Raises:
        TypeError: an option is unknown or has the wrong type.
        ValueError: no map has as many queries or keys as there are tokens.
        MemoryError: the maps take more than `max_bytes`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.ones(1, 3, 8)
        >>> maps = attention(layer, x, x, x, kwargs={"need_weights": False}, tokens=["the", "cat", "sat"])
        >>> maps[0].weights.shape, maps[0].queries, maps[0].verified
        (torch.Size([1, 2, 3, 3]), ('the', 'cat', 'sat'), True)

    """
    kwargs = check_kwargs(attention, kwargs, _unknown)
    modules = Modules(model)
    check_inputs("attention", model, args, kwargs)
    labels = check_tokens(tokens) if tokens is not None else ()
    if max_bytes is not None:
        check_bytes("max_bytes", max_bytes)
    samples = next((len(each) for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.dim()), 0)
    mode = AttentionMode(modules.names, modules.tensors, float("inf") if max_bytes is None else max_bytes, samples)
    try:
        _run_model(modules, mode, args, kwargs)
    except RuntimeError as error:
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules.names):
            error.add_note(
                "hookscope: the model has TorchScript inside, and some of it cannot run during attention(). If "
                "the model runs by itself, pass the Python module that was traced or scripted"
            )
        raise
    sizes = sorted({size for call in mode.calls for size in call.weights.shape[2:]})
    if labels and sizes and len(labels) not in sizes:
        raise ValueError(
            f"tokens has {count_text(len(labels), 'string')}, but the maps have {', '.join(map(str, sizes))} tokens. "
            "Pass one string for each token of a sample"
        )
    return AttentionMaps(modules, mode.calls, _list_notes(modules, mode, samples), labels)


def _run_model(modules: Modules, mode: AttentionMode, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    model = modules.model
    with ExitStack() as stack:
        stack.enter_context(preserve_model(model, modules=modules.names))
        stack.enter_context(preserve_rng_state(model, args, kwargs))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(run_eagerly())
        nested = any(tensor.is_nested for tensor in find_tensors((args, kwargs)))
        if not nested and any(isinstance(module, _FUSED) for module in modules.names):
            # Any function mode makes torch compute these layers step by step, which shows their attention.
            stack.enter_context(BaseTorchFunctionMode())
        stack.enter_context(mode)
        stack.enter_context(explain_input_errors(model, args, kwargs))
        stack.enter_context(explain_no_grad("attention", "Pass the part of the model that attends"))
        model(*args, **kwargs)


def _list_notes(modules: Modules, mode: AttentionMode, samples: int) -> list[str]:
    """Say which operations gave no map, and why."""
    other = mode.other
    notes = [f"{_name_layer(layer)}: channels attend to channels, not tokens to tokens" for layer in other.channels]
    notes += [f"{_name_layer(layer)}: hookscope cannot read the weights of {name}" for layer, name in other.unknown]
    notes += [f"{_name_layer(layer)}: could not be followed: {error}" for layer, error in other.failed]
    for layer in dict.fromkeys(other.unused.values()):
        notes.append(
            f"{_name_layer(layer)}: found a softmax of query-key products, but could not trace it to the values it "
            "weights, so it has no map"
        )
    for module, name in modules.names.items():
        if "forward" in (own := module.__dict__) and getattr(own["forward"], "__qualname__", "") == "hookscope.edit":
            notes.append(
                f"{_name_layer(name)}: an edit changes its attention. The map shows the weights before the edit; the "
                "edit's own computation can appear as another map"
            )
    if modules.compiled:
        notes.append("the model is compiled; attention() ran its uncompiled version")
    softmaxes = [
        f"{', '.join(map(_name_layer, list(other.softmaxes)[:3]))}{' and others' if len(other.softmaxes) > 3 else ''}: "
        "found a softmax, but not of query-key products: probably class scores, channel weights or gates"
    ] * bool(other.softmaxes)
    if mode.calls:
        batches = [size for call in mode.calls if (size := call.weights.shape[0]) > samples > 0]
        if batches:
            maps = "a map has" if len(batches) == 1 else f"{len(batches)} maps have up to"
            notes.append(
                f"the model got {count_text(samples, 'sample')}, but {maps} {max(batches)} in the batch: probably "
                "windows, or heads that could not be told from samples"
            )
        return notes + softmaxes
    if softmaxes:
        return [f"0 maps: {softmaxes[0]}", *notes]
    if notes:
        return ["0 maps: found no attention between tokens that could be followed in this pass", *notes]
    return [
        "0 maps: no softmax and no attention call ran in this pass. If a layer computes its weights in another way, "
        "name it: with hookscope.capture(model, 'its name') as seen: model(...)"
    ]


def _name_layer(name: str) -> str:
    return f"layer {name!r}" if name else "the model itself"
