"""Report what edits did: the rows of their table, what did not happen, and why that may be."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from hookscope.captures.call import why_uncalled
from hookscope.error_pages import append_page
from hookscope.interp.edits.layer_edit import LayerEdit
from hookscope.interp.edits.layer_hooks import LayerHooks
from hookscope.layers import FusedLayer, Modules, refuse_compiled

__all__ = [
    "UNSEEN_HEADS",
    "NotEditedError",
    "check_hookable",
    "diagnose",
    "missing_gradients",
    "notes_about",
    "table_row",
    "why_not_called",
]  # fmt: skip


def diagnose(modules: Modules, layer_edit: LayerEdit, layer: LayerHooks, runs: int) -> Iterator[str]:
    """Say why one edit on one layer did not happen, or not in all calls.

    Args:
        modules: those of the model.
        layer_edit: the edit.
        layer: the layer.
        runs: how often the model was called.

    """
    spec, module = layer_edit.spec, layer.module
    what = f"edit {spec.number}, {spec.text}: layer {layer_edit.layer!r}"
    times = "once" if layer.seen == 1 else f"{layer.seen} times"
    if runs and layer_edit.late == runs and not layer_edit.done:
        yield f"{what}: the model has not run since the edit was written, only before; write edits first"
        return
    if not layer.seen:
        yield f"{what} {why_not_called(modules, layer_edit.layer, module, runs)}"
        return
    meant = spec.calls or frozenset()
    if first := layer_edit.held.get("first"):  # the call that `freeze` took its values from stays as it is
        meant -= {first[0]}
    absent = sorted((spec.calls or set()) - set(range(1, layer.seen + 1)))
    if absent:
        yield f"{what} was called {times}, so call {', '.join(map(str, absent))} never came"
    elif layer_edit.missing_positions():
        places = ", ".join(map(str, layer_edit.missing_positions()[:8]))
        yield f"{what} was called {times}, but position {places} never came{layer_edit.came()}"
    elif layer_edit.done and (layer_edit.done >= meant or spec.positions is not None or spec.to == "edges"):
        return
    elif spec.operation.verb == "freeze":
        yield f"{what} was called {times}. freeze repeats the first call in later ones, and there was none"
    elif spec.to in ("heads", "edges"):
        yield f"{what} was called {times}, but {_not_seen(spec.to)}"
    elif layer_edit.missed:
        came = "was called with" if spec.to == "input" else "returned"
        yield f"{what} was called {times}, but the part never came: it {came} {layer_edit.missed}"
    elif spec.to == "grad" and layer_edit.hooked:
        yield (
            f"{what} was called {times}, but no gradient came: backward() was not run inside the block, or not "
            "from what depends on it, or the output was overwritten in place"
        )
    elif spec.to == "grad":
        yield f"{what} was called {times}, but what it returned does not require grad, or it ran under no_grad"
    else:
        yield f"{what} was called {times}, but raised an exception, which the model caught"


def missing_gradients(layer_edit: LayerEdit) -> Iterator[str]:
    """Say of which calls no gradient came, where those of others did."""
    if absent := sorted(layer_edit.hooked - layer_edit.done) if layer_edit.done else []:
        calls = f"{', '.join(map(str, absent[:8]))}{', …' if len(absent) > 8 else ''}"
        yield (
            f"edit {layer_edit.spec.number} of layer {layer_edit.layer!r}: no gradient came of call {calls}: nothing "
            "that was run backward depends on it, or it was overwritten in place"
        )


def notes_about(modules: Modules, layer: LayerHooks) -> Iterator[str]:
    """Say what there is to know about an edited layer: its other names, and whether it is still to run again."""
    if not any(layer.layer_edits.values()):
        return
    if layer.seen > 1 and layer.module in modules.names:  # it may have gone since
        others = [repr(other) for other in modules.names_of(layer.module) if other != layer.name]
        if others:
            yield f"layer {layer.name!r} is also {', '.join(others)}: calls under each name count"
    if layer.checkpointed and not layer.again:
        yield (
            f"layer {layer.name!r} ran in a checkpoint, which runs it again in backward(): outside the block that is "
            "without the edit, so run backward() inside"
        )


def _not_seen(to: str) -> str:
    if to == "heads":
        return UNSEEN_HEADS
    return (
        "it computed no F.scaled_dot_product_attention that was seen: transformers' models are made for it with "
        'attn_implementation="sdpa", and nn.MultiheadAttention calls it with need_weights=False'
    )


def table_row(layer_edit: LayerEdit, layer: LayerHooks) -> dict[str, object]:
    """Make the table's row of one edit on one layer."""
    row: dict[str, object] = {
        "edit": layer_edit.spec.number,
        "layer": layer_edit.layer or "(root)",
        "change": layer_edit.spec.text,
        "calls seen": layer.seen,
        **layer_edit.sizes.row(),
    }
    if layer_edit.places:
        calls = (
            f"call {number}: {', '.join(map(str, places))}" for number, places in sorted(layer_edit.places.items())
        )
        row["positions"] = "; ".join(calls)
    return row


UNSEEN_HEADS = "it did not call torch's F.multi_head_attention_forward, in which its heads lie"

_COMPILED = (
    ". If torch.compile compiled it before the block, compiled code does not notice new hooks: run it under "
    'torch.compiler.set_stance("force_eager")'
)


class NotEditedError(RuntimeError):
    """An edit was asked for and did not happen: the message says which one, what was seen, and why that may be.

    Attributes:
        reasons: one sentence for each edit and layer.

    """

    __module__ = "hookscope"  # what a traceback calls it, and where to import it from

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(append_page("\n".join(reasons), "not_edited"))
        self.reasons = tuple(reasons)


def check_hookable(ways: Mapping[str, Sequence[nn.Module]]) -> FusedLayer | None:
    """Refuse a layer that runs compiled, in parts or as copies; return the fused layer that it is, or is in.

    It is asked under each of the names that the layer has.

    Args:
        ways: by each name of the layer, it and the modules that it is in, from the model inward.

    Raises:
        ValueError: says what to edit instead.

    Example:
        >>> net = nn.Sequential(nn.TransformerEncoderLayer(4, 2))
        >>> check_hookable({"0.linear1": [net, net[0], net[0].linear1]}).name
        '0'

    """
    fused = None
    for name, way in ways.items():
        for depth, module in enumerate(way):
            if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
                refuse_compiled(module, ".".join(name.split(".")[:depth]), "edit")
            if _is_ordinary(type(module)):  # type: ignore[arg-type]  # a class can be hashed
                continue
            outer = name.split(".")[:depth]
            if isinstance(module, _sharded()):
                raise ValueError(
                    f"{repr('.'.join(outer)) if outer else 'the model'} is sharded (FSDP): parts of it are put "
                    "together and let go around each call, by hooks that edits would come between; edit the model "
                    "before it is sharded"
                )
            if isinstance(module, nn.TransformerEncoderLayer):
                fused = fused or FusedLayer(".".join(outer), module)
            if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
                raise ValueError(
                    f"nn.DataParallel runs a copy of each layer on each of {len(module.device_ids)} devices, at once "
                    "and with a part of the batch, so hookscope cannot count calls and samples; edit "
                    f"{'.'.join([*outer, 'module'])!r} itself, on one device"
                )
    return fused


@lru_cache(1024)  # each edit asks it of all modules around its layer
def _is_ordinary(kind: type) -> bool:
    return not issubclass(kind, (nn.DataParallel, nn.TransformerEncoderLayer, *_sharded()))


def _sharded() -> tuple[Any, ...]:
    """Return the classes of modules of which each process has a part, if anybody has imported them."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = getattr(fsdp, "FSDPModule", None), getattr(fsdp, "FullyShardedDataParallel", None)
    return () if None in kinds else kinds  # another thread may be importing them


def why_not_called(modules: Modules, name: str, module: nn.Module, runs: int) -> str:
    """Say why a layer may not have been called.

    Args:
        modules: those of the model.
        name: the layer's name.
        module: the layer.
        runs: how often the model was called.

    """
    if all(each is not module for each in modules.model.modules()):
        return "was not called: it has been taken out of the model, or replaced, since the edit was written"
    generic = why_uncalled(module)
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return f"{generic}; edit the attention layer itself, with heads= for what goes into this one"
    if "did not reach it" not in generic:
        return generic
    around = [each for each in reversed(modules.path_to(name)) if each is not module]
    compiled = _COMPILED if _was_compiled() else ""
    if not runs:
        return (
            "was not called, nor was the model: run it inside the block, by model(...), not by model.forward(...), "
            f"which runs no hooks, and not a compiled, traced or exported copy of it{compiled}"
        )
    last = name.rpartition(".")[2]
    access = r"\[[^\]]*\]" if last.isdigit() else rf"\.{re.escape(last)}"
    for each in around:
        source, kind = _source(each), type(each).__name__
        if re.search(rf"{access}\.forward\(", source):
            return (
                f"was not called: {kind}.forward calls its .forward(...), which runs no hooks; call the module itself"
            )
        if re.search(rf"{access}\.(weight|bias)\b", source):
            if re.search(rf"{access}\(", _source(each, whole=True)):
                break  # it is called, too: so the forward took another path, or did not run
            return f"was not called: {kind}.forward uses only its weight, in a function of its own"
    return generic + compiled


def _was_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process since its last reset."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))


def _source(module: nn.Module, whole: bool = False) -> str:
    """Return the source of a module's forward, or of its whole class; "" if there is none."""
    try:
        return inspect.getsource(type(module) if whole else type(module).forward)
    except (OSError, TypeError):
        return ""
