"""Count the samples of a batch, and find the sample axis of each output of a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture
from hookscope.captures.call import RAISED
from hookscope.interp.activations.shards import can_be_written
from hookscope.interp.edits.nested_values import listed, tensors
from hookscope.layers.offloaded import is_offloaded
from hookscope.model_inputs import explain_no_grad
from hookscope.preserve import preserve_model, preserve_rng_state
from hookscope.pytree import find_paths, find_tensors, keystr, tree_map

__all__ = ["OutputSpec", "RunBatch", "call_model", "count_samples", "find_sample_axes", "name_outputs"]

RunBatch = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class OutputSpec:
    """The properties of one output tensor that are the same for every batch.

    Attributes:
        axis: the sample axis.
        shape: the shape of one sample, without that axis.
        dtype: its dtype.

    """

    axis: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of one sample in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def call_model(model: nn.Module, batch: Any) -> Any:
    """Run a model on a batch: a tensor, a tuple that begins with the input, or a dict of keyword arguments."""
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor | Mapping):
        batch = batch[0]
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    raise TypeError(
        f"the loader yields a {type(batch).__name__}, and collect can pass on only a tensor, a tuple (inputs, ...) or "
        "a "
        "dict of keyword arguments. Pass a function that runs the model: run=lambda model, batch: model(batch.x)"
    )


def count_samples(batch: Any) -> int:
    """Return the length of the first axis of the first tensor in a batch that has an axis."""
    for tensor in find_tensors(batch):
        if tensor.dim():
            return len(tensor)
    raise TypeError(
        f"the loader yields a {type(batch).__name__} without a tensor that has a batch axis, so collect cannot count "
        "its "
        "samples"
    )


def name_outputs(
    seen: Capture, part: tuple[int | str, ...] | None = None, left_out: dict[str, str] | None = None
) -> dict[str, Tensor]:
    """Name each output tensor: its layer, `#2` for a second call, then `/` and its position in the output.

    Args:
        seen: the captured outputs.
        part: the path to the wanted tensors in a nested output; None for all.
        left_out: maps skipped layers and tensors to the reason; this call adds to it. None to raise instead.

    Raises:
        RuntimeError: a layer was not called, or two outputs have the same name.
        TypeError: a layer returned no dense tensor.
        ValueError: an output has no such part.

    """
    found: dict[str, Tensor] = {}

    def refuse(name: str, error: Exception) -> None:
        if left_out is None:
            raise error
        left_out[name] = str(error)

    for name, why in seen.uncalled.items():
        refuse(name, RuntimeError(f"layer {name or '(root)'!r} {why}"))
    for call in seen.calls:
        if not call.returned:
            refuse(call.label, RuntimeError(f"layer {call.label!r} {RAISED}"))
            continue
        there = False
        for path, tensor in tensors(call.output):
            if part is not None and path and path[: len(part)] != part:
                continue
            there = True
            name = "/".join([call.label, *map(str, path)])
            if name in found:
                raise RuntimeError(
                    f"two outputs of layer {call.layer!r} have the same name, {name!r}. Choose one of them with part="
                )
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
                said = (
                    f"{name!r} is a {_describe_kind(tensor)} tensor, and collect stores dense tensors only. Leave it "
                    "out"
                )
                refuse(name, TypeError(said))
            elif left_out is None or name not in left_out:
                found[name] = tensor
        if not there and part is not None:
            refuse(
                call.layer, ValueError(f"layer {call.layer!r} has no part={part!r}. It returned {listed(call.output)}")
            )
        elif not there:
            refuse(
                call.layer,
                TypeError(f"layer {call.layer!r} returned no tensor, so there is nothing to collect. Leave it out"),
            )
    return found


def _describe_kind(tensor: Tensor) -> str:
    kinds = {"quantized": tensor.is_quantized, "nested": tensor.is_nested, "meta": tensor.is_meta}
    return next((kind for kind, holds in kinds.items() if holds), str(tensor.layout).removeprefix("torch."))


def find_sample_axes(
    model: nn.Module, watch: Callable[[nn.Module], Capture], run: RunBatch, batch: Any,
    part: tuple[int | str, ...] | None = None, left_out: dict[str, str] | None = None,
) -> dict[str, OutputSpec]:  # fmt: skip
    """Find the sample axis of each output, by running the model on two samples and on three.

    A copy of the model runs, because a pass can change state that cannot be restored. If the model cannot be copied,
    the model itself runs, and its buffers, flags and attributes are restored.

    Args:
        model: the model.
        watch: returns a capture of the chosen layers of a model.
        run: runs the model on a batch.
        batch: the batch from which two and three samples are taken.
        part: the path to the wanted tensors in a nested output; None for all.
        left_out: maps outputs without a sample axis to the reason; this call adds to it. None to raise instead.

    Raises:
        ValueError: an output has no sample axis, several of them, or one that holds more than samples.
        TypeError: safetensors cannot write the dtype of an output.

    """
    way = "Pass run=lambda model, batch: torch.enable_grad()(model)(batch)"
    with preserve_rng_state(model, batch), explain_no_grad("collect", way):
        if not is_offloaded(model.modules()):  # a copy would load all weights into memory
            with suppress(Exception):  # the run of the model itself raises the error
                copied = copy.deepcopy(model)
                return _run_two_and_three(copied, watch(copied), run, batch, part, left_out)
        if left_out:
            left_out.clear()
        with preserve_model(model, attributes=True):
            return _run_two_and_three(model, watch(model), run, batch, part, left_out)


def _run_two_and_three(
    model: nn.Module, seen: Capture, run: RunBatch, batch: Any, part: tuple[int | str, ...] | None,
    left_out: dict[str, str] | None,
) -> dict[str, OutputSpec]:  # fmt: skip
    some = []
    for number in (2, 3):
        with seen:
            try:
                run(model, _take_samples(batch, number))
            except Exception as error:
                if _can_run(model, run, batch):
                    raise ValueError(
                        f"the model runs on the first batch, but not on its first {number} samples "
                        f"({type(error).__name__}). "
                        f"{_describe_samples(batch)} {_ROWS}"
                    ) from error
                error.add_note(
                    f"hookscope: collect ran the model on {number} samples to find the sample axis of each output"
                )
                raise
        some.append(
            {name: (tuple(each.shape), each.dtype) for name, each in name_outputs(seen, part, left_out).items()}
        )
    two, three = some
    found = {}
    for name in {**two, **three}:
        try:
            if name not in two or name not in three:
                raise ValueError(
                    f"{name!r} exists for two samples or for three, but not for both, so it has no fixed place among "
                    "the "
                    "outputs. Leave this layer out"
                )
            found[name] = _find_axis(name, *two[name], three[name][0])
        except (TypeError, ValueError) as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
    return found


_ROWS = (
    "If the rows of a batch are not samples, as in batches of graphs, let the loader yield sample numbers and build "
    "the "
    "batch in run=: run=lambda model, numbers: model(batch_of(numbers))"
)


def _can_run(model: nn.Module, run: RunBatch, batch: Any) -> bool:
    with suppress(Exception):
        run(model, batch)
        return True
    return False


def _describe_samples(batch: Any) -> str:
    """Describe which tensors of a batch collect split into samples."""
    shapes = {f"batch{keystr(path)}": tuple(tensor.shape) for path, tensor in find_paths(batch)}
    samples = count_samples(batch)
    cut = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape and shape[0] == samples)
    left = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if not shape or shape[0] != samples)
    rest = f", and passed {left} whole" if left else ""
    return (
        f"The first tensor has length {samples}, so collect assumed {samples} samples. It took the first rows of "
        f"{cut or 'each tensor of that length'}{rest}."
    )


def _find_axis(name: str, two: tuple[int, ...], dtype: torch.dtype, three: tuple[int, ...]) -> OutputSpec:
    shapes = f"two samples give shape {two}, three give {three}"
    if len(two) != len(three):
        raise ValueError(
            f"the number of axes of {name!r} depends on the number of samples: {shapes}. Leave this layer out"
        )
    axes = [axis for axis, sides in enumerate(zip(two, three, strict=True)) if sides[0] != sides[1]]
    if not axes:
        raise ValueError(
            f"{name!r} has no sample axis: {shapes}. Leave this layer out, or choose a part of its output: part=0. "
            + _ROWS
        )
    if len(axes) > 1:
        raise ValueError(f"several axes of {name!r} grow with the number of samples: {shapes}. Leave this layer out")
    if (two[axes[0]], three[axes[0]]) != (2, 3):
        raise ValueError(
            f"axis {axes[0]} of {name!r} grows with the number of samples, but is not the number of samples: {shapes}. "
            "Choose the layer around it instead"
        )
    if not can_be_written(dtype):
        raise TypeError(
            f"{name!r} is {dtype}, which safetensors cannot write. Run the model in another dtype, or leave this layer "
            "out"
        )
    return OutputSpec(axes[0], two[: axes[0]] + two[axes[0] + 1 :], dtype)


def _take_samples(batch: Any, number: int) -> Any:
    there = count_samples(batch)
    if not there:
        raise ValueError("the first batch of the loader has no samples, so collect cannot find the sample axes")
    which = [index % there for index in range(number)]
    return tree_map(lambda each: each[which] if each.dim() and len(each) == there else each, batch)
