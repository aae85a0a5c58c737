"""Choose the layers to capture and what to keep, and check both before any pass."""

from __future__ import annotations

import torch
from torch import nn

from hookscope.captures.options import check_options
from hookscope.captures.result import Capture
from hookscope.layers import Modules, Which, pick, refuse_unhookable

__all__ = ["capture"]


def capture(
    model: nn.Module,
    *which: Which,
    gradients: bool = False,
    inputs: bool = False,
    copy: bool = True,
    stats: bool = False,
    samples: int | slice | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    max_bytes: int | None = None,
    stop: bool | int = False,
) -> Capture:
    """Keep the outputs of chosen layers, call by call, inside a with block.

    Each output is copied when the layer returns it, so later in-place operations do not change the copy;
    `Capture.overwritten` lists the outputs that were overwritten. The hooks only watch: results, gradients, buffers
    and random numbers stay the same, bit for bit. Limits: https://hookscope.github.io/hookscope/limits/capture.html

    Args:
        model: the model.
        *which: which layers, as for `find_layers`. If you name none, all modules without children.
        gradients: also keep the gradients of the outputs; call `backward()` inside the block.
        inputs: also keep the args and kwargs of each call, as they were before the layer ran.
        copy: False keeps references to outputs and inputs, which takes less memory. If a tensor is overwritten,
            reading it raises `OverwrittenError`. Writes that torch does not count, such as NumPy's, go unnoticed.
        stats: keep only `Call.stats` and `Call.grad_stats`, and no tensors.
        samples: keep only this sample, or these, such as `slice(0, 4)`. The batch axis stays.
        dtype: convert floating-point tensors, for example to `torch.float16`.
        device: move tensors, for example to `"cpu"`.
        max_bytes: raise `MemoryError` in the pass before it keeps more.
        stop: end the pass and the block when each chosen layer has returned once, or this many times.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(inplace=True))
        >>> _ = nn.init.constant_(net[0].weight, -1.0)
        >>> with capture(net) as seen:
        ...     _ = net(torch.ones(1, 2))
        >>> seen["0"].output, seen.overwritten
        (tensor([[-2.]]), {'0': 'layer 1 (ReLU)'})

    """
    modules = Modules(model)
    layers = {module: name for name, module in pick(modules, *which, several="capture(model, *names)").items()}
    refuse_unhookable(modules, layers, "capture")
    wanted = check_options(
        modules,
        gradients=gradients,
        inputs=inputs,
        copy=copy,
        stats=stats,
        samples=samples,
        dtype=dtype,
        device=device,
        max_bytes=max_bytes,
        stop=stop,
    )
    return Capture(modules, layers, wanted)
