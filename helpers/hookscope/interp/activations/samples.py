"""Know the samples of a batch, and along which axis each output of a model has them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture
from hookscope.interp.activations.shards import can_be_written
from hookscope.interp.edits.parts import listed, tensors
from hookscope.layers.offloaded import is_offloaded
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_tensors, tree_map

__all__ = ["Place", "Run", "called_with", "count", "outputs", "places"]

Run = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Place:
    """What one tensor among the outputs is like, whatever the batch.

    Attributes:
        axis: along which the samples are.
        shape: of one sample, without that axis.
        dtype: its dtype.

    """

    axis: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """How many bytes one sample takes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def called_with(model: nn.Module, batch: Any) -> Any:
    """Run a model as a loader's batch asks for: a tensor, a tuple that begins with the inputs, keyword arguments."""
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor | Mapping):
        batch = batch[0]
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    raise TypeError(
        f"the loader yields a {type(batch).__name__}; collect takes a tensor, a tuple (inputs, ...) or a dict of "
        "keyword arguments: say what to do with others, as run=lambda model, batch: model(batch.x)"
    )


def count(batch: Any) -> int:
    """Count the samples of a batch: the first axis of its first tensor that has axes."""
    for tensor in find_tensors(batch):
        if tensor.dim():
            return len(tensor)
    raise TypeError(f"the loader yields a {type(batch).__name__} without a tensor that has axes: no samples to count")


def outputs(
    seen: Capture, part: tuple[int | str, ...] | None = None, left_out: dict[str, str] | None = None
) -> dict[str, Tensor]:
    """Name each tensor that chosen layers returned: the layer, `#2` for its second call, `/` and its part.

    Args:
        seen: what the layers returned.
        part: the way to the tensors that are meant, in what is no tensor itself; None for all.
        left_out: layers and tensors that are not meant, and why; more are put in here. None to raise instead.

    Raises:
        RuntimeError: a layer was not called, or returned nothing that can be stored.

    """
    found: dict[str, Tensor] = {}

    def refuse(name: str, error: Exception) -> None:
        if left_out is None:
            raise error
        left_out[name] = str(error)

    for name, why in seen.uncalled.items():
        refuse(name, RuntimeError(f"layer {name or '(root)'!r} {why}"))
    for call in seen.calls:
        there = False
        for path, tensor in tensors(call.output):
            if part is not None and path and path[: len(part)] != part:
                continue
            there = True
            name = "/".join([call.label, *map(str, path)])
            if name in found:
                raise RuntimeError(f"two outputs of layer {call.layer!r} are called {name!r}")
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
                said = f"{name!r} is no dense tensor ({tensor.layout}), and only such are collected"
                refuse(name, TypeError(said))
            elif left_out is None or name not in left_out:
                found[name] = tensor
        if not there and part is not None:
            refuse(
                call.layer, ValueError(f"layer {call.layer!r} has no part={part!r}; it returned {listed(call.output)}")
            )
        elif not there:
            refuse(call.layer, TypeError(f"layer {call.layer!r} returns no tensor that can be collected; leave it out"))
    return found


def places(
    model: nn.Module, watch: Callable[[nn.Module], Capture], run: Run, batch: Any,
    part: tuple[int | str, ...] | None = None, left_out: dict[str, str] | None = None,
) -> dict[str, Place]:  # fmt: skip
    """Find out along which axis each output has the samples: by running two samples, and three.

    A copy of the model runs, since a model may keep more from one pass to the next than can be put back: an
    attribute, a parameter that is set from the first batch. What cannot be copied runs itself, and gets back
    what can be.

    Args:
        model: the model, which is left as it was.
        watch: makes a capture of the chosen layers of a model.
        run: runs the model on a batch.
        batch: samples to take two and three of.
        part: which tensors of structures; None for all.
        left_out: gets what is not for so many samples each, and why. None to raise instead.

    Raises:
        ValueError: an output has no such axis, or several, or mixes samples with something else along it.
        TypeError: an output has a dtype that is not written.

    """
    with preserve_rng_state(model, batch):
        if not is_offloaded(model.modules()):  # a copy would have all weights in memory
            with suppress(Exception), _copied(model) as copied:  # if anything is wrong, the model itself says what
                return _places(copied, watch(copied), run, batch, part, left_out)
        if left_out:
            left_out.clear()
        with preserve_model(model, attributes=True):
            return _places(model, watch(model), run, batch, part, left_out)


def _shared_until_written(parameter: nn.Parameter) -> torch.Tensor | None:
    try:
        return parameter.detach()._lazy_clone()
    except (AttributeError, RuntimeError):  # torch does not own this memory, or it is not dense
        return None


@contextmanager
def _copied(model: nn.Module) -> Iterator[nn.Module]:
    """Give a copy of a model whose parameters share their memory with the model's until somebody writes to them."""
    shared: dict[int, Any] = {}
    for parameter in model.parameters():
        data = _shared_until_written(parameter) if type(parameter) is nn.Parameter else None
        shared[id(parameter)] = parameter if data is None else nn.Parameter(data, parameter.requires_grad)
    ours = {id(each) for each in shared.values()} - shared.keys()
    copied = copy.deepcopy(model, shared)
    try:
        yield copied
    finally:
        # At once, not when the copy is collected: until then a write to the model would move its memory.
        for parameter in copied.parameters():
            if id(parameter) in ours:
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


def _places(
    model: nn.Module, seen: Capture, run: Run, batch: Any, part: tuple[int | str, ...] | None,
    left_out: dict[str, str] | None,
) -> dict[str, Place]:  # fmt: skip
    some = []
    for number in (2, 3):
        with seen:
            try:
                run(model, _only(batch, number))
            except Exception as error:
                if _runs(model, run, batch):
                    raise ValueError(
                        f"the first batch runs, and its first {number} samples do not ({type(error).__name__}). "
                        f"{_cut(batch)} {_ROWS}"
                    ) from error
                error.add_note(f"hookscope: on {number} samples, to find along which axis outputs have them")
                raise
        some.append({name: (tuple(each.shape), each.dtype) for name, each in outputs(seen, part, left_out).items()})
    two, three = some
    found = {}
    for name in {**two, **three}:
        try:
            if name not in two or name not in three:
                raise ValueError(f"{name!r} is there for some numbers of samples only; leave the layer out")
            found[name] = _place(name, *two[name], three[name][0])
        except (TypeError, ValueError) as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
    return found


_ROWS = (
    "If the rows of a batch are not samples, as for graphs or bags of tokens, let the loader yield the numbers of the "
    "samples, and make the batch in run=, as run=lambda model, numbers: model(batch_of(numbers))"
)


def _runs(model: nn.Module, run: Run, batch: Any) -> bool:
    with suppress(Exception):
        run(model, batch)
        return True
    return False


def _cut(batch: Any) -> str:
    """Say which tensors of a batch are taken for samples."""
    if isinstance(batch, tuple | list):
        batch = {f"[{number}]": item for number, item in enumerate(batch)}
    held = batch if isinstance(batch, Mapping) else getattr(batch, "__dict__", {"the tensor": batch})
    shapes = {name: tuple(item.shape) for name, item in held.items() if isinstance(item, Tensor)}
    samples = count(batch)
    cut = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape and shape[0] == samples)
    left = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if not shape or shape[0] != samples)
    said = f"collect took {samples} for the number of samples, the length of the first tensor, and the first rows of "
    return f"{said}{cut or 'each tensor of that length'}{f', and left {left} whole' if left else ''}."


def _place(name: str, two: tuple[int, ...], dtype: torch.dtype, three: tuple[int, ...]) -> Place:
    shapes = f"two samples give {two}, three give {three}"
    if len(two) != len(three):
        raise ValueError(f"{name!r} has another number of axes for another number of samples: {shapes}")
    axes = [axis for axis, sides in enumerate(zip(two, three, strict=True)) if sides[0] != sides[1]]
    if not axes:
        raise ValueError(
            f"{name!r} has no axis of samples: {shapes}; leave the layer out, or say which part of it, as part=0. "
            + _ROWS
        )
    if len(axes) > 1:
        raise ValueError(f"{name!r} has several axes that grow with the samples: {shapes}; leave the layer out")
    if (two[axes[0]], three[axes[0]]) != (2, 3):
        raise ValueError(f"axis {axes[0]} of {name!r} holds more than samples: {shapes}; choose a layer around it")
    if not can_be_written(dtype):
        raise TypeError(
            f"{name!r} is {dtype}, which safetensors does not write; run the model in another dtype, or leave the "
            "layer out"
        )
    return Place(axes[0], two[: axes[0]] + two[axes[0] + 1 :], dtype)


def _only(batch: Any, number: int) -> Any:
    there = count(batch)
    if not there:
        raise ValueError("the loader's first batch has no samples")
    which = [index % there for index in range(number)]
    return tree_map(lambda each: each[which] if each.dim() and len(each) == there else each, batch)
