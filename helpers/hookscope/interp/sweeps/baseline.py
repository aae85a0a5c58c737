"""Find out before a sweep what a model does in a pass, and whether samples go their own way in it."""

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

from hookscope.captures.functorch import is_wrapped
from hookscope.interp.edits.batch_first import AxisOrderCheck
from hookscope.interp.sweeps.memory import PeakBytes
from hookscope.interp.sweeps.mixing import MixingDetector
from hookscope.interp.sweeps.outputs import BatchMismatchError, BatchOutput, OutputShapes, measure_gap
from hookscope.interp.sweeps.passes import CallLog, Inputs, Look, Patch, Span, register_patches
from hookscope.interp.sweeps.replays import Replays
from hookscope.interp.sweeps.sites import Site
from hookscope.layers import Modules
from hookscope.preserve import ModelState, preserve_rng_state
from hookscope.pytree import find_tensors

__all__ = ["Baseline", "collect_tensors", "summarize_error"]


class Baseline:
    """One pass that is watched, one that is measured if there is a limit, and one with all samples twice.

    Args:
        modules: those of the model.
        inputs: what it is called with.
        places: where the sweep is to change something.
        before: the model's state, to be put back after each pass.
        room: how many bytes the sweep may take; None where nobody says.
        by_sample: what takes the first axis for that of samples, such as "positions="; "" if nothing does.

    Attributes:
        before: the state that the model had before the sweep.
        output: what the model returned.
        whole: what is to be known of that, to find it again in what a batch returns.
        tensors: the tensor at each place.
        ways: how one gets to it from what the layer returned or was given.
        times: when it was there.
        replays: the layers that need not run again, and what they returned.
        alone: why variants cannot share a batch; "" if nothing speaks against it.
        random: whether a pass draws random numbers.
        writes: whether a pass changes a buffer, or an attribute of a module.
        notes: what there is to know of the memory.
        order: what there is to know of the order of axes, as keys.
        tolerance: how far a result may be off, as a share of its scale: 1e-5, or what half precision lets one hope for.

    Raises:
        NotEditedError: a layer was not called, or several times.
        ValueError: a layer returned several tensors, and nothing says which is meant; or tokens come before samples.
        RuntimeError: the model gives something else each time.
        MemoryError: one run alone takes more than `room`.

    """

    def __init__(
        self,
        modules: Modules,
        inputs: Inputs,
        places: Sequence[Site],
        before: ModelState,
        room: float | None,
        by_sample: str = "",
    ) -> None:
        self.modules, self.inputs, self.places, self.before = modules, inputs, places, before
        self._watched = [m for m in modules.names if not isinstance(m, torch.jit.ScriptModule)]
        owned = self._list_hooked()
        watch = CallLog(lambda module, output: _list_sizes(output))
        buffers = {name: buffer.clone() for name, buffer in _list_buffers(modules).items()}
        drawn = _get_rng_states()
        self.order: dict[str, None] = {}
        instead = "sweep a model that is called with samples first"
        order = AxisOrderCheck(modules, lambda: inputs.samples, by_sample, instead, self.order)
        with ExitStack() as handles:
            if by_sample:
                order.register(handles)
            found = collect_tensors(modules, inputs, places, "in the run on inputs", watch, self._watched)
        self.tensors, self.ways, self.output = found
        self.whole = OutputShapes(self.output)
        owned |= self._list_hooked()  # the model may register hooks of its own in its first pass
        self.tolerance = _choose_tolerance([self.output, *self.tensors.values()])
        self.random = _get_rng_states() != drawn
        changed, keeps = _find_changed_buffer(modules, buffers), before.attributes.restore()
        self.writes = bool(changed) or keeps
        self.times = {place: _find_time(place, watch.spans) for place in places}
        self.replays = Replays(watch.spans, owned)
        # What is kept all the time: the model's state, what it returned, and what is at each place and is to be there.
        at = [tensor.nbytes for tensor in self.tensors.values()]
        self._returned, self._largest = _list_sizes(self.output)[1], max(at)
        self._held = _list_sizes([*buffers.values()])[1] + before.attributes.nbytes + self._returned + 2 * sum(at)
        del buffers
        self.notes: list[str] = []
        self._pass = 0 if room is None else self._measure_pass()  # bytes for one variant
        if room is not None and (one := self._held + self._alone) > room:
            raise MemoryError(
                f"one run takes about {one:,} bytes, what is kept for it included, and max_bytes={room:,}; choose "
                "fewer layers or samples, or allow more"
            )
        self.alone = _find_mixing_layer(watch.spans, modules)
        if not self.alone and self.random:
            self.alone = "a pass draws random numbers"
        if not self.alone and changed:
            self.alone = f"a pass changes the buffer {changed!r}"
        if not self.alone and not inputs.rows:
            self.alone = "inputs has no tensor with samples along its first axis"
        if room is not None:
            self.limit_variants(room, sum(watch.kept[module][1] for module in self._list_skipped()))
        if not self.alone:
            try:
                with before.preserve():
                    self._run_twice(watch.kept)
            except BatchMismatchError as error:
                self.alone = str(error)
            except Exception as error:
                self.alone = f"a batch of two raised {summarize_error(error)}"
        if self.alone:
            self.replays.forget()
            if not self.random and not changed:
                self._check_repeats()

    @property
    def _alone(self) -> int:
        """How many bytes one variant takes that is run alone, or its comparison with another output."""
        return max(self._pass + self._largest, 3 * self._returned)

    def limit_variants(self, room: float, replayed: int) -> int:
        """Return how many variants may share a batch; rather than one alone, several without replays.

        Args:
            room: how many bytes the sweep may take.
            replayed: how many of them are kept for replays.

        """
        # One more is run alone, while what the batch returned is there, to be compared.
        kept, each = self._held + self._alone, max(self._pass + self._largest, 1)
        for more in (replayed, 0):
            found = int((min(room, sys.maxsize) - kept - more) // each)
            if found > 2:
                return found
            self.replays.forget()
        needed = kept + 3 * each  # fewer do not show whether they mix
        self.alone = (
            self.alone or f"three variants in a batch may take {needed:,} bytes, more than the {room:,} allowed"
        )
        return found

    def _list_skipped(self) -> set[nn.Module]:
        return {module for time in set(self.times.values()) for module in self.replays.before(time)}

    def _list_hooked(self) -> set[nn.Module]:
        return {module for module in self._watched if module._forward_hooks or module._forward_pre_hooks}

    def _measure_pass(self) -> int:
        """Return what a pass needs at its peak; 0, and a note, where it cannot be watched, as with flex attention."""
        model, inputs = self.modules.model, self.inputs
        same = preserve_rng_state(model, inputs.args, inputs.kwargs)
        # With hooks on, as there are in each cell: they keep layers from fused paths, which take less.
        patches = [Patch(place, lambda tensor: None) for place in self.places]
        counted = PeakBytes()
        try:
            with same, self.before.preserve(), counted, register_patches(patches):
                inputs.run(model)
        except Exception as error:
            self.notes.append(
                f"max_bytes could not be kept to: a pass that was measured raised {summarize_error(error)}"
            )
            return 0
        return counted.peak

    def _check_repeats(self) -> None:
        """Refuse a model of which every pass gives something else: its cells would differ for that reason alone.

        Raises:
            RuntimeError: it does.

        """
        with self.before.preserve():
            again = self.inputs.run(self.modules.model)
        if measure_gap(again, self.output) > self.tolerance:
            raise RuntimeError(
                f"{type(self.modules.model).__name__} gives something else when it runs again on the same inputs: it "
                "keeps a state, or takes random numbers, that cannot be put back, so that cells would differ for that "
                "reason alone; reset it in its forward, or sweep a part of it that does not"
            )

    def _run_twice(self, sizes: dict[nn.Module, Any]) -> None:
        """Run all samples twice in one batch: what grows, what stays, and how many bytes that takes."""
        found: dict[Site, torch.Size] = {}
        self._two = reach = MixingDetector(self.modules.names, 2)

        def look(place: Site, tensor: Tensor) -> None:
            found[place] = tensor.shape
            reach.begin(tensor)

        patches = [Patch(place, partial(look, place)) for place in self.places]

        def keep(module: nn.Module, output: Any) -> None:
            # At once: somebody may write to it later.
            counted.pausing = reach.pausing = True  # what is kept for replays does not grow with the batch
            self.replays.keep(module, sizes[module][0], output)
            counted.pausing = reach.pausing = False

        counted = PeakBytes()
        with counted, reach.follow(), register_patches(patches, Look(keep), self._list_skipped()):
            output = self.inputs.run(self.modules.model, 2)
        self._pass = max(self._pass, counted.peak // 2 + 1)
        for place, shape in found.items():
            single = self.tensors[place]
            if not single.dim() or shape != (2 * len(single), *single.shape[1:]):
                raise BatchMismatchError(
                    f"layer {place.label!r} has shape {tuple(single.shape)} for one variant and {tuple(shape)} for two"
                )
        shares = BatchOutput(output, self.whole, 2)
        if any(measure_gap(shares.select(variant), self.output) > self.tolerance for variant in (0, 1)):
            raise BatchMismatchError("samples are not independent: twice the same in one batch gives something else")
        if reach.why:
            raise BatchMismatchError(reach.why)

    def find_mixing(self) -> str:
        """Run three variants, the one in the middle changed: how does that reach the others? "" if it does not."""
        reach = MixingDetector(self.modules.names, 3, self._two)

        def change(place: Site, tensor: Tensor) -> None:
            alone = self.tensors[place]
            middle = slice(len(alone), 2 * len(alone))
            reach.pausing = True
            if tensor.is_floating_point():
                with suppress(RuntimeError):  # it has its elements several times
                    tensor[middle] = alone * -10 - 1  # larger than all others, and smaller
            reach.pausing = False
            reach.begin(tensor)

        patches = [Patch(place, partial(change, place)) for place in self.places]
        try:
            with self.before.preserve(), reach.follow(), register_patches(patches):
                output = self.inputs.run(self.modules.model, 3)
            shares = BatchOutput(output, self.whole, 3)
        except BatchMismatchError as error:
            return str(error)
        except Exception as error:
            return f"a batch of three raised {summarize_error(error)}"
        if not reach.why and any(measure_gap(shares.select(number), self.output) > self.tolerance for number in (0, 2)):
            return "samples are not independent: another one in the batch gives something else"
        return reach.why


def _list_sizes(output: Any) -> tuple[list[torch.Size] | None, int]:
    """List the shapes of tensors, None if one has none, as nested tensors do not; and count their bytes."""
    found = find_tensors(output)
    shapes = None if any(tensor.is_nested for tensor in found) else [tensor.shape for tensor in found]
    return shapes, sum(tensor.numel() * tensor.element_size() for tensor in found)


def _choose_tolerance(values: list[Any]) -> float:
    coarse = [torch.finfo(dtype).eps for each in find_tensors(values) if (dtype := each.dtype).is_floating_point]
    return 1e-5 if max(coarse, default=0) < 1e-6 else 4 * max(coarse)


def collect_tensors(
    modules: Modules,
    inputs: Inputs,
    places: Sequence[Site],
    runs: str,
    watch: CallLog | None = None,
    watched: Sequence[nn.Module] = (),
) -> tuple[dict[Site, Tensor], dict[Site, tuple[tuple[str, Any], ...]], Any]:
    """Run a model, and return a copy of what is at each place, how one gets there, and what the model returns.

    Raises:
        NotEditedError: a layer was not called, or several times.

    """
    found: dict[Site, Tensor] = {}
    patches = [Patch(place, partial(_copy_tensor, found, place)) for place in places]
    with register_patches(patches, watch, watched):
        output = inputs.run(modules.model)
    for patch in patches:
        patch.check_calls(modules, runs)
    return found, {patch.place: patch.way for patch in patches}, output


def _copy_tensor(found: dict[Site, Tensor], place: Site, tensor: Tensor) -> None:
    inside = tensor
    while is_wrapped(inside):
        if torch._C._functorch.is_batchedtensor(inside):
            raise ValueError(
                f"layer {place.label!r} runs under torch.vmap, which hides an axis from it (it sees the shape "
                f"{tuple(tensor.shape)}), so its samples cannot be told apart; choose a layer outside of torch.vmap"
            )
        inside = torch._C._functorch.get_unwrapped(inside)
    if tensor.is_nested:
        raise TypeError(
            f"layer {place.label!r} has a nested tensor, which has no shape to sweep over; make an "
            "nn.TransformerEncoder with enable_nested_tensor=False"
        )
    found[place] = tensor.clone()


def summarize_error(error: Exception) -> str:
    """Say an error in one line."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}{f': {first[:160]}' if first else ''}"


def _find_time(place: Site, spans: list[Span]) -> float:
    """Return when a place is reached; 0 where the layer has several calls, which cannot be told apart in a replay."""
    calls = [span for span in spans if span.module is place.module]
    if len(calls) != 1:
        return 0.0
    return calls[0].end if place.to == "output" else calls[0].begin


def _find_mixing_layer(spans: list[Span], modules: Modules) -> str:
    """Name a layer that is known to mix samples or to draw random numbers."""
    for span in spans:
        module = span.module
        what = f"layer {modules.names[module]!r} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            return f"{what} takes mean and variance from all samples of a batch"
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
            return f"{what} draws random numbers in training mode"
    return ""


def _list_buffers(modules: Modules) -> dict[str, Tensor]:
    """Dotted name -> buffer that modules hold now; quicker than `named_buffers`, which asks each by itself."""
    return {
        f"{name}.{key}" if name else key: buffer
        for module, name in modules.names.items()
        for key, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer) and not buffer.is_meta
    }


def _find_changed_buffer(modules: Modules, before: dict[str, Tensor]) -> str:
    """Name a buffer that is not as it was; "" if all are."""
    now = _list_buffers(modules)
    for name, value in before.items():
        if name not in now or now[name].shape != value.shape or not torch.equal(now[name], value):
            return name
    return ""


def _get_rng_states() -> tuple[object, ...]:
    """Return what tells whether random numbers were drawn."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # else nothing is on a GPU
        states += torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    numpys = (numpy.random.get_state()[1].tobytes(), *numpy.random.get_state()[2:]) if numpy else ()
    return (*(state.numpy().tobytes() for state in states), numpys, random.getstate())
