"""Run the model before a sweep: keep the tensors at all sites, and find out whether variants can share a batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.captures.functorch import is_under_vmap
from hookscope.interp.edits.batch_first import AxisOrderCheck
from hookscope.interp.sweeps.memory import PeakBytes
from hookscope.interp.sweeps.mixing import MixingDetector
from hookscope.interp.sweeps.outputs import BatchMismatchError, BatchOutput, measure_gap
from hookscope.interp.sweeps.passes import Inputs, Patch, register_patches
from hookscope.interp.sweeps.sites import Site
from hookscope.layers import Modules
from hookscope.preserve import ModelState, preserve_rng_state
from hookscope.pytree import find_tensors
from hookscope.wrong_inputs import explain_input_errors

__all__ = ["Baseline", "collect_tensors", "summarize_error"]


class Baseline:
    """The first passes of a sweep: one that is kept, perhaps one that is measured, and one with two variants.

    Args:
        modules: those of the model.
        inputs: the model's arguments.
        sites: the tensors that the sweep changes.
        before: the model's state, restored after each pass.
        max_bytes: the limit of the user; None without one.
        by_sample: the option that needs samples along the first axis, such as "positions="; "" without one.

    Attributes:
        output: the output of the model.
        tensors: a copy of the tensor at each site.
        ways: the keys that lead to it from the layer's output or inputs.
        alone: why variants cannot share a batch; "" if they can.
        random: whether a pass draws random numbers.
        writes: whether a pass changes a buffer, or an attribute of a module.
        notes: notes about memory.
        order: notes about the order of axes, as keys.
        tolerance: the largest error, as a share of the scale, that counts as rounding.

    Raises:
        NotEditedError: a layer was not called, or several times.
        ValueError: a layer returned several tensors, and no part is named; or tokens come before samples.
        RuntimeError: the model returns different values each time.
        MemoryError: a single run takes more than `max_bytes`.

    """

    def __init__(
        self,
        modules: Modules,
        inputs: Inputs,
        sites: Sequence[Site],
        before: ModelState,
        max_bytes: float | None,
        by_sample: str = "",
    ) -> None:
        self.modules, self.inputs, self.sites, self.before = modules, inputs, sites, before
        self.order: dict[str, None] = {}
        mixing: list[str] = []
        buffers = {name: buffer.clone() for name, buffer in _list_buffers(modules).items()}
        rng_states = _get_rng_states()
        with ExitStack() as stack:
            if by_sample:
                instead = "Sweep a model that is called with samples first"
                AxisOrderCheck(modules, lambda: inputs.samples, by_sample, instead, self.order).register(stack)
            _watch_mixing_layers(modules, mixing, stack)
            found = collect_tensors(modules, inputs, sites, "in the run on inputs")
        self.tensors, self.ways, self.output = found
        self.tolerance = _choose_tolerance([self.output, *self.tensors.values()])
        self.random = _get_rng_states() != rng_states
        changed, changed_attributes = _find_changed_buffer(modules, buffers), before.attributes.restore()
        self.writes = bool(changed) or changed_attributes
        # Kept during the whole sweep: the model's state, its output, and at each site the tensor and its replacement.
        at_sites = [tensor.nbytes for tensor in self.tensors.values()]
        self._output_bytes, self._largest = _count_bytes(self.output), max(at_sites)
        state_bytes = _count_bytes([*buffers.values()]) + before.attributes.nbytes
        self._kept_bytes = state_bytes + self._output_bytes + 2 * sum(at_sites)
        del buffers
        self.notes: list[str] = []
        self._pass_bytes = 0 if max_bytes is None else self._measure_pass()  # for one variant
        if max_bytes is not None and (needed := self._kept_bytes + self._alone_bytes) > max_bytes:
            raise MemoryError(
                f"one run takes about {needed:,} bytes, including what the sweep keeps, and max_bytes={max_bytes:,}. "
                "Pass fewer layers or samples, or a larger max_bytes"
            )
        self.alone = mixing[0] if mixing else ""
        if not self.alone and self.random:
            self.alone = "a pass draws random numbers"
        if not self.alone and changed:
            self.alone = f"a pass changes the buffer {changed!r}"
        if not self.alone and not inputs.rows:
            self.alone = "the inputs have no tensor with samples along its first axis"
        if max_bytes is not None:
            self.limit_variants(max_bytes)
        if not self.alone:
            try:
                with before.preserve():
                    self._run_two()
            except BatchMismatchError as error:
                self.alone = str(error)
            except Exception as error:
                self.alone = f"a batch of two raised {summarize_error(error)}"
        if self.alone and not self.random and not changed:
            self._check_repeats()

    @property
    def _alone_bytes(self) -> int:
        """The bytes for one variant that runs alone, or for comparing its output with another one."""
        return max(self._pass_bytes + self._largest, 3 * self._output_bytes)

    def limit_variants(self, max_bytes: float) -> int:
        """Return how many variants can share a batch; set `alone` if there is no room for three."""
        # One more variant runs alone, for the comparison, while the output of the batch is in memory.
        kept, each = self._kept_bytes + self._alone_bytes, max(self._pass_bytes + self._largest, 1)
        count = int((min(max_bytes, sys.maxsize) - kept) // each)
        if count <= 2:  # two variants do not show whether they mix
            needed = f"three variants in a batch can take {kept + 3 * each:,} bytes"
            self.alone = self.alone or f"{needed}, more than the {max_bytes:,} allowed"
        return count

    def _measure_pass(self) -> int:
        """Return the peak memory of a pass; 0, with a note, if it cannot be measured."""
        model, inputs = self.modules.model, self.inputs
        same = preserve_rng_state(model, inputs.args, inputs.kwargs)
        # With hooks, as in each cell: they switch off fused paths, which take less memory.
        patches = [Patch(site, lambda tensor: None) for site in self.sites]
        counted = PeakBytes()
        try:
            with same, self.before.preserve(), counted, register_patches(patches):
                inputs.run(model)
        except Exception as error:
            why = summarize_error(error)
            self.notes.append(f"max_bytes was ignored, because the pass that measures the memory raised {why}")
            return 0
        return counted.peak

    def _check_repeats(self) -> None:
        """Refuse a model that returns different values in each pass, because cells would differ even without a change.

        Raises:
            RuntimeError: the values differ.

        """
        with self.before.preserve():
            again = self.inputs.run(self.modules.model)
        if measure_gap(again, self.output) > self.tolerance:
            raise RuntimeError(
                f"{type(self.modules.model).__name__} returned different values for the same inputs, so cells would "
                "differ even without a change. It keeps a state, or draws random numbers, that hookscope cannot "
                "restore. Reset the state in its forward, or sweep a part of the model without it"
            )

    def _run_two(self) -> None:
        """Run all samples twice in one batch, and compare shapes, values and memory with one run."""
        found: dict[Site, torch.Size] = {}
        self._two = detector = MixingDetector(self.modules.names, 2)

        def look(site: Site, tensor: Tensor) -> None:
            found[site] = tensor.shape
            detector.begin(tensor)

        patches = [Patch(site, partial(look, site)) for site in self.sites]
        with PeakBytes() as counted, detector.follow(), register_patches(patches):
            output = self.inputs.run(self.modules.model, 2)
        self._pass_bytes = max(self._pass_bytes, counted.peak // 2 + 1)
        for site, shape in found.items():
            single = self.tensors[site]
            if not single.dim() or shape != (2 * len(single), *single.shape[1:]):
                raise BatchMismatchError(
                    f"layer {site.label!r} has shape {tuple(single.shape)} for one variant and {tuple(shape)} for two"
                )
        outputs = BatchOutput(output, self.output, 2)
        if any(measure_gap(outputs.select(variant), self.output) > self.tolerance for variant in (0, 1)):
            raise BatchMismatchError("samples are not independent: the same sample twice in a batch changes the output")
        if detector.why:
            raise BatchMismatchError(detector.why)

    def find_mixing(self) -> str:
        """Run three variants with a change in the middle one, and say how it reaches the others; "" if it does not."""
        detector = MixingDetector(self.modules.names, 3, self._two)

        def change(site: Site, tensor: Tensor) -> None:
            alone = self.tensors[site]
            middle = slice(len(alone), 2 * len(alone))
            detector.pausing = True
            if tensor.is_floating_point():
                with suppress(RuntimeError):  # an expanded tensor cannot be written to
                    tensor[middle] = alone * -10 - 1  # larger than all others, and smaller
            detector.pausing = False
            detector.begin(tensor)

        patches = [Patch(site, partial(change, site)) for site in self.sites]
        try:
            with self.before.preserve(), detector.follow(), register_patches(patches):
                output = self.inputs.run(self.modules.model, 3)
            outputs = BatchOutput(output, self.output, 3)
        except BatchMismatchError as error:
            return str(error)
        except Exception as error:
            return f"a batch of three raised {summarize_error(error)}"
        if not detector.why and any(measure_gap(outputs.select(n), self.output) > self.tolerance for n in (0, 2)):
            return "samples are not independent: a change in one sample changes the others"
        return detector.why


def collect_tensors(
    modules: Modules, inputs: Inputs, sites: Sequence[Site], runs: str
) -> tuple[dict[Site, Tensor], dict[Site, tuple[tuple[str, Any], ...]], Any]:
    """Run a model, and return a copy of the tensor at each site, the keys that lead to it, and the model's output.

    Raises:
        NotEditedError: a layer was not called, or several times.

    """
    found: dict[Site, Tensor] = {}
    patches = [Patch(site, partial(_copy_tensor, found, site)) for site in sites]
    with register_patches(patches), explain_input_errors(modules.model, inputs.args, inputs.kwargs):
        output = inputs.run(modules.model)
    for patch in patches:
        patch.check_calls(modules, runs)
    return found, {patch.site: patch.way for patch in patches}, output


def _copy_tensor(found: dict[Site, Tensor], site: Site, tensor: Tensor) -> None:
    if is_under_vmap(tensor):
        raise ValueError(
            f"layer {site.label!r} runs under torch.vmap, which hides the batch axis (the layer sees the shape "
            f"{tuple(tensor.shape)}), so samples cannot be told apart. Please choose a layer outside torch.vmap"
        )
    if tensor.is_nested:
        raise TypeError(
            f"layer {site.label!r} has a nested tensor, which has no fixed shape to sweep over. Make the "
            "nn.TransformerEncoder with enable_nested_tensor=False"
        )
    found[site] = tensor.clone()


def summarize_error(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}{f': {first[:160]}' if first else ''}"


def _watch_mixing_layers(modules: Modules, reasons: list[str], stack: ExitStack) -> None:
    """Register hooks on layers that mix samples or draw random numbers; a call of one adds a reason."""
    for module, name in modules.names.items():
        reason = ""
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            reason = "computes mean and variance over all samples of a batch"
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
            reason = "draws random numbers in training mode"
        if reason:
            text = f"layer {name!r} ({type(module).__name__}) {reason}"
            hook = partial(_note_call, reasons, text)
            stack.callback(module.register_forward_pre_hook(hook).remove)


def _note_call(reasons: list[str], text: str, module: nn.Module, args: Any) -> None:
    reasons.append(text)


def _count_bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(value))


def _choose_tolerance(values: list[Any]) -> float:
    """Return 1e-5, or more if a tensor has half precision."""
    coarse = [torch.finfo(dtype).eps for each in find_tensors(values) if (dtype := each.dtype).is_floating_point]
    return 1e-5 if max(coarse, default=0) < 1e-6 else 4 * max(coarse)


def _list_buffers(modules: Modules) -> dict[str, Tensor]:
    """Return dotted name -> buffer; faster than `named_buffers`, which searches each module separately."""
    return {
        f"{name}.{key}" if name else key: buffer
        for module, name in modules.names.items()
        for key, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer) and not buffer.is_meta
    }


def _find_changed_buffer(modules: Modules, before: dict[str, Tensor]) -> str:
    """Return the name of a buffer whose value has changed; "" if none has."""
    now = _list_buffers(modules)
    for name, value in before.items():
        if name not in now or now[name].shape != value.shape or not torch.equal(now[name], value):
            return name
    return ""


def _get_rng_states() -> tuple[object, ...]:
    """Return the states of all random number generators, to compare."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # else nothing is on a GPU
        states += torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    numpys = (numpy.random.get_state()[1].tobytes(), *numpy.random.get_state()[2:]) if numpy else ()
    return (*(state.numpy().tobytes() for state in states), numpys, random.getstate())
