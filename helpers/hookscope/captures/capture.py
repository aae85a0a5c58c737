"""Choose layers of a model and what to keep of them, and check that before any pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from hookscope.captures.options import checked
from hookscope.captures.result import Capture
from hookscope.layers import Modules, Which, pick, refuse_unhookable

__all__ = ["capture"]


def capture(
    model: nn.Module,
    *which: Which,
    gradients: bool = False,
    inputs: bool = False,
    keep: Literal["tensors", "copies", "stats"] = "tensors",
    sample: int | slice | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    max_bytes: int | None = None,
    stop: bool | int = False,
) -> Capture:
    """Keep what chosen layers return, call by call, inside a with-block.

    Outputs are kept as they were when the layer returned them. An in-place operation that comes later, such as
    `nn.ReLU(inplace=True)` or `out += x`, does not reach them, and `Capture.overwritten` says where that
    happened. It costs a copy only where something is overwritten: until then torch shares the memory
    (copy-on-write).

    Hooks only look: results, gradients, buffers, random numbers and flags are bit for bit what they are without.
    The limits are torch's own:

    - Hooks on layers inside an `nn.TransformerEncoderLayer` in `eval()` without gradients switch its fused path off,
      which may round differently; a warning and `Capture.notes` say so.
    - A compiled model goes on without the hooks that are put on layers inside it later, so it is refused. Where
      you give the original and call its compiled form, its layers are missing, with the reason; if it is compiled only
      inside the block, they are captured at the price of graph breaks, which torch refuses under `fullgraph=True`.
    - Copy-on-write does not see a NumPy array, or another alias outside torch, that a layer made of its output
      *before* returning it; and torch (2.15) fails with an internal error in COW.cpp where such an output is resized
      later. For such a layer take `keep="copies"`, which copies every tensor at once.
    - Calls that other threads, or tasks of asyncio, make inside the block are kept, too; `Call.by` says whose one is.
    - A layer that returns the very tensor that it was given, as `nn.Identity` and dropout in `eval()` do, has no
      gradient of its own: it is that of the tensor, wherever else that is used.
    - A kind of tensor that torch cannot slice or convert is kept whole, and what refuses to be rebuilt is kept as a
      dict, tuple or namespace: `Capture.notes` and a warning say where. Neither stops the model.
    - Memory into which a capture has copied waits for the next capture of the model as soon as nobody holds it, up to
      1 GiB; `hookscope.captures.release_memory()` gives it back.
    - Inside the block the model cannot be deep-copied or saved whole: the copy would keep the hooks, as that of
      `copy.copy` does.
    - A leaf that comes into the model inside the block, as `self.fc = nn.Linear(...)` in a `forward`, is captured where
      all leaves are, or one of its name was chosen, and a note says so. What is called there without being in the
      model, such as `nn.ReLU()(x)` or the layers in a plain list, is not seen; `record` shows it, and of modules in a
      plain list, tuple or dict `Capture.notes` tells, where all leaves are captured.
    - Under the transforms of `torch.func`, such as `vmap`, the tensors kept are those of all samples at once.

    Args:
        model: the model to watch.
        *which: layers, as `find_layers` takes them. Without any, all leaves.
        gradients: keep the gradients with respect to the outputs too, by a tensor hook on each output tensor.
            Unlike full backward hooks these work beside in-place operations and for outputs of any structure.
            `backward()` has to run inside the block.
        inputs: keep args and kwargs of each call too, as they were before the layer ran.
        keep: `"tensors"`; `"copies"` to copy each tensor at once; or `"stats"` to keep no tensor at all, only
            `Call.stats` and `Call.grad_stats`: mean, std, mean of absolute values, min, max, zeros, NaN and inf
            counts. Then a whole training run fits in memory.
        sample: keep only this sample, or this slice of samples, of every tensor that has axes. The batch axis stays:
            `sample=0` keeps (1, C, H, W) of (N, C, H, W).
        dtype: convert floating tensors to this dtype, for example `torch.float16` for half the memory.
        device: move to this device, for example `"cpu"`.
        max_bytes: refuse to keep more than this; see `Capture.estimate` for a forecast.
        stop: end the pass, and with it the block, as soon as each chosen layer has returned; `stop=2`: twice, for
            layers that are called in a loop or shared, of which later calls do not come. An exception that the block
            swallows leaves the model, so lines of the block after the call do not run, and the pass has no output;
            `Capture.stopped` names the last call. What the layers until there change, as batch norm does in `train()`,
            is changed. If a layer is not called so often, the pass goes on to its end, and `stopped` is "".

    Returns:
        A `Capture`: a context manager, and a mapping from layer names to what was kept. It can be entered again;
        it then starts afresh.

    Raises:
        TypeError: `model` is not a module, or an option is of the wrong type.
        ValueError: `model` is compiled or TorchScript, or the options contradict each other, as `stop` and
            `gradients` do, or `stop` and an `nn.DataParallel`.
        LayerNotFoundError: no such layer; names the nearest.
        MemoryError: from inside the pass, before more than `max_bytes` are kept; names the layer and ways out.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(inplace=True))
        >>> _ = nn.init.constant_(net[0].weight, -1.0)
        >>> with capture(net, gradients=True) as seen:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> seen["0"].output, seen["1"].output, seen["1"].grad
        (tensor([[-2.]]), tensor([[0.]]), tensor([[1.]]))
        >>> seen.order
        ['0', '1']
        >>> seen.overwritten
        {'0': 'layer 1 (ReLU)'}

    """
    modules = Modules(model)
    layers = {module: name for name, module in pick(modules, *which).items()}
    refuse_unhookable(modules, layers, "capture")
    wanted = checked(
        modules,
        gradients=gradients,
        inputs=inputs,
        keep=keep,
        sample=sample,
        dtype=dtype,
        device=device,
        max_bytes=max_bytes,
        stop=stop,
    )
    return Capture(modules, layers, wanted)
