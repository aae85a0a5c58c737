"""Report what edits did: the rows of their table, and which edits did not happen, with the probable reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from hookscope.captures.call import is_never_called, why_uncalled
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
    """Explain why an edit of a layer did not happen, or not in all calls.

    Args:
        modules: the modules of the model.
        layer_edit: the edit.
        layer: the layer.
        runs: how often the model was called.

    """
    spec, module = layer_edit.spec, layer.module
    what = f"edit {spec.number}, {spec.text}: layer {layer_edit.layer!r}"
    times = "once" if layer.seen == 1 else f"{layer.seen} times"
    if runs and layer_edit.late == runs and not layer_edit.done:
        yield f"{what}: the model ran only before this edit was written. Write edits before you run the model"
        return
    if not layer.seen:
        yield f"{what} {why_not_called(modules, module, runs)}"
        return
    meant = spec.calls or frozenset()
    absent = sorted(meant - set(range(1, layer.seen + 1)))
    if absent:
        yield f"{what} was called {times}, so there was no call {', '.join(map(str, absent))}"
    elif layer_edit.missing_positions():
        places = ", ".join(map(str, layer_edit.missing_positions()[:8]))
        yield f"{what} was called {times}, but never with position {places}{layer_edit.came()}"
    elif layer_edit.done and (layer_edit.done >= meant or spec.positions is not None):
        return
    elif spec.to == "heads":
        yield f"{what} was called {times}, but {UNSEEN_HEADS}"
    elif layer_edit.missed:
        came = "was called with" if spec.to == "input" else "returned"
        yield f"{what} was called {times}, but it has no such part: it {came} {layer_edit.missed}"
    elif spec.to == "grad" and layer_edit.hooked:
        yield (
            f"{what} was called {times}, but got no gradient: backward() was not called inside the block, or the loss "
            "does not depend on this output, or the output was overwritten in place"
        )
    elif spec.to == "grad":
        yield f"{what} was called {times}, but its output does not require grad, or it ran under no_grad"
    else:
        yield f"{what} was called {times}, but raised an exception that the model caught"


def missing_gradients(layer_edit: LayerEdit) -> Iterator[str]:
    """Name the calls that got no gradient, if other calls got one."""
    if absent := sorted(layer_edit.hooked - layer_edit.done) if layer_edit.done else []:
        calls = f"{', '.join(map(str, absent[:8]))}{', …' if len(absent) > 8 else ''}"
        yield (
            f"edit {layer_edit.spec.number} of layer {layer_edit.layer!r}: call {calls} got no gradient. The loss does "
            "not depend on its output, or the output was overwritten in place"
        )


def notes_about(modules: Modules, layer: LayerHooks) -> Iterator[str]:
    """Yield notes on an edited layer: its other names, and whether a checkpoint will run it again."""
    if not any(layer.layer_edits.values()):
        return
    if layer.seen > 1 and layer.module in modules.names:  # it may have gone since
        others = [repr(other) for other in modules.names_of(layer.module) if other != layer.name]
        if others:
            yield f"layer {layer.name!r} is also named {', '.join(others)}; calls under any of its names count"
    if layer.checkpointed and not layer.again:
        yield (
            f"layer {layer.name!r} ran in a checkpoint, which runs it again in backward(). Call backward() inside the "
            "block, because outside it the layer runs without the edit"
        )


def table_row(layer_edit: LayerEdit, layer: LayerHooks) -> dict[str, object]:
    """Return the table row of one edit of one layer."""
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


UNSEEN_HEADS = "it did not call torch's F.multi_head_attention_forward, which computes its heads"

_COMPILED = (
    ". Compiled code ignores new hooks, so if torch.compile compiled it before the block, run it under "
    'torch.compiler.set_stance("force_eager")'
)


class NotEditedError(RuntimeError):
    """An edit did not happen. The message names the edit, the calls that hookscope saw, and the probable reason.

    Attributes:
        reasons: one sentence for each edit and layer.

    """

    __module__ = "hookscope"  # what a traceback calls it, and where to import it from

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(append_page("\n".join(reasons), "not_edited"))
        self.reasons = tuple(reasons)


def check_hookable(ways: Mapping[str, Sequence[nn.Module]]) -> FusedLayer | None:
    """Refuse a layer that is compiled, sharded or copied; return the fused layer that it is, or is in.

    The check covers every name of the layer.

    Args:
        ways: for each name of the layer, the modules from the model to the layer.

    Raises:
        ValueError: the layer cannot be edited. The message says what to edit instead.

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
                    f"{repr('.'.join(outer)) if outer else 'the model'} is sharded (FSDP). FSDP gathers and frees its "
                    "parameters in hooks around each call, and edits would interfere with them. Edit the model "
                    "before you shard it"
                )
            if isinstance(module, nn.TransformerEncoderLayer):
                fused = fused or FusedLayer(".".join(outer), module)
            if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
                raise ValueError(
                    f"nn.DataParallel runs copies of each layer on {len(module.device_ids)} devices at once, each with "
                    "a part of the batch, so hookscope cannot count calls and samples. Edit "
                    f"{'.'.join([*outer, 'module'])!r} itself, on one device"
                )
    return fused


@lru_cache(1024)  # each edit asks it of all modules around its layer
def _is_ordinary(kind: type) -> bool:
    return not issubclass(kind, (nn.DataParallel, nn.TransformerEncoderLayer, *_sharded()))


def _sharded() -> tuple[Any, ...]:
    """Return the classes of modules that are sharded among processes, if they have been imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = getattr(fsdp, "FSDPModule", None), getattr(fsdp, "FullyShardedDataParallel", None)
    return () if None in kinds else kinds  # another thread may be importing them


def why_not_called(modules: Modules, module: nn.Module, runs: int) -> str:
    """Explain why a layer was probably not called.

    Args:
        modules: the modules of the model.
        module: the layer.
        runs: how often the model was called.

    """
    if all(each is not module for each in modules.model.modules()):
        return "was not called: it was removed from the model or replaced after the edit was written"
    generic = why_uncalled(module)
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return f"{generic}. Edit the attention layer itself; heads= changes the input of this projection"
    if is_never_called(module):
        return generic
    compiled = _COMPILED if _was_compiled() else ""
    if not runs:
        return (
            "was not called, and neither was the model. Call model(...) inside the block. Hooks do not run with "
            f"model.forward(...) or in a compiled, traced or exported copy{compiled}"
        )
    return generic + compiled


def _was_compiled() -> bool:
    """Return whether torch.compile has compiled anything in this process since its last reset."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))
