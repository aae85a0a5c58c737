"""The tools that are compared, each as a function that runs a model and gives what it kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import hookscope
from hookscope.captures.result import Capture
from hookscope.pytree import find_tensors, tree_map

Kept = Mapping[str, Any]
"""What a tool kept: label -> output. Labels are `layer`, and `layer#2` from the second call of a layer on."""


class ToolRun:
    """One pass of a model under a tool.

    Attributes:
        output: what the model returned; None if the tool does not give it.
        held: whatever the tool keeps alive.
        read: turns `held` into `Kept`; not timed.

    """

    def __init__(self, output: Any, held: Any, read: Callable[[], Kept]) -> None:
        self.output, self.held, self.read = output, held, read


Pass = Callable[..., ToolRun]
Tool = Callable[[nn.Module], Pass]
"""Given a model, whatever a tool prepares once; what comes back is called with the inputs, again and again."""


def plain(model: nn.Module) -> Pass:
    """No tool: the model alone."""

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        return ToolRun(model(*args, **kwargs), None, dict)

    return run


def _label(kept: Mapping[str, Any], name: str) -> str:
    number = 1 + sum(label.split("#")[0] == name for label in kept)
    return name if number == 1 else f"{name}#{number}"


def _numbered(held: list[tuple[str, Any]]) -> Kept:
    kept: dict[str, Any] = {}
    for name, value in held:
        kept[_label(kept, name)] = value
    return kept


def _hooked(model: nn.Module, keep: Callable[[Any], Any], *args: Any, **kwargs: Any) -> ToolRun:
    """Run a model with a hook on each leaf that keeps what `keep` makes of its output."""
    held: list[tuple[str, Any]] = []
    handles = [
        layer.register_forward_hook(lambda module, args, output, name=name: held.append((name, keep(output))))
        for name, layer in hookscope.leaves(model).items()
    ]
    try:
        output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return ToolRun(output, held, lambda: _numbered(held))


def bare_references(model: nn.Module) -> Pass:
    """Hooks that keep what the layer returned."""
    return partial(_hooked, model, lambda output: output)


def bare_clones(model: nn.Module) -> Pass:
    """Hooks that clone it."""
    return partial(_hooked, model, _clone)


def _clone(value: Any) -> Any:
    return tree_map(lambda tensor: tensor.detach().clone(), value)


def warm_buffers(model: nn.Module) -> Pass:
    """The floor of repeated captures: a hook per leaf copies its output to where it was copied the last time."""
    copy_warm = _Warm()

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        copy_warm.start()
        return _hooked(model, lambda output: tree_map(copy_warm, output), *args, **kwargs)

    return run


def shared_watched(model: nn.Module) -> Pass:
    """The floor of first captures: share copy-on-write, and see writes.

    `Capture.overwritten` and "raised" need a pre-hook and a version counter at least.
    """
    return partial(_watched, model, lambda alias: alias._lazy_clone())


def warm_buffers_watched(model: nn.Module) -> Pass:
    """Copies to warm buffers, and the same."""
    copy_warm = _Warm()

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        copy_warm.start()
        return _watched(model, copy_warm, *args, **kwargs)

    return run


def _watched(model: nn.Module, keep: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> ToolRun:
    """Run a model with hooks that keep what `keep` makes of each tensor, and notice what is written to later."""
    nothing = torch.empty(0)
    counters: list[tuple[Tensor, int]] = []
    began: list[tuple[nn.Module, int]] = []

    def keep_and_count(tensor: Tensor) -> Tensor:
        counter = tensor.detach()
        kept = keep(counter)
        counter.data = nothing
        counters.append((counter, counter._version))
        return kept

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        began.append((module, sum(counter._version != version for counter, version in counters[-3:])))

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in hookscope.leaves(model).values()]
    try:
        return _hooked(model, lambda output: tree_map(keep_and_count, output), *args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()


class _Warm:
    """Copies each tensor of a pass to where it was copied in the last one."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._free: Iterator[Tensor] = iter(())

    def start(self) -> None:
        self._free = iter(list(self._buffers))

    def __call__(self, tensor: Tensor) -> Tensor:
        buffer = next(self._free, None)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            self._buffers.append(buffer := torch.empty_like(tensor))
        return buffer.copy_(tensor.detach())


def _calls(seen: Capture) -> Kept:
    return {call.label: call.output for call in seen.calls if call._returned}


def capture(**options: Any) -> Tool:
    """A new `hookscope.capture` for each pass."""

    def tool(model: nn.Module) -> Pass:
        def run(*args: Any, **kwargs: Any) -> ToolRun:
            with hookscope.capture(model, **options) as seen:
                output = model(*args, **kwargs)
                if options.get("gradients"):
                    _backward(output)
            return ToolRun(output, seen, lambda: _calls(seen))

        return run

    return tool


def capture_again(**options: Any) -> Tool:
    """One `hookscope.capture`, entered for each pass."""

    def tool(model: nn.Module) -> Pass:
        seen = hookscope.capture(model, **options)

        def run(*args: Any, **kwargs: Any) -> ToolRun:
            with seen:
                output = model(*args, **kwargs)
                if options.get("gradients"):
                    _backward(output)
            return ToolRun(output, seen, lambda: _calls(seen))

        return run

    return tool


def _backward(output: Any) -> None:
    loss: Any = sum(tensor.sum() for tensor in find_tensors(output) if tensor.requires_grad)
    loss.backward()


def trace_dict(model: nn.Module) -> Pass:
    """As baukit's TraceDict does with clone and detach: one record per layer, which the last call wins."""

    @contextmanager
    def traced() -> Iterator[dict[str, Any]]:
        records: dict[str, Any] = {}

        def hook(name: str) -> Callable[..., None]:
            def keep(module: nn.Module, args: Any, output: Any) -> None:
                records[name] = _clone(output)

            return keep

        handles = [layer.register_forward_hook(hook(name)) for name, layer in hookscope.leaves(model).items()]
        try:
            yield records
        finally:
            for handle in handles:
                handle.remove()

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        with traced() as records:
            output = model(*args, **kwargs)
        return ToolRun(output, records, lambda: records)

    return run


def torchlens(model: nn.Module) -> Pass:
    """`torchlens.trace`, which logs every operation."""
    from torchlens import trace

    layers = hookscope.leaves(model)

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        held = trace(model, args, kwargs)

        def read() -> Kept:
            kept: dict[str, Any] = {}
            for call in held.module_calls:
                if (name := "" if call.address == "self" else call.address) in layers:
                    outs = list(call.outs)
                    kept[_label(kept, name)] = outs[0] if len(outs) == 1 else outs
            return kept

        return ToolRun(None, held, read)

    return run


@contextmanager
def at_work(label: str) -> Iterator[None]:
    """Set up what a tool changes in torch itself, and take it back afterwards; around a pass, and not timed.

    torchlens puts wrappers around torch's functions and leaves them there. They made `copy_` 40 times slower for
    every other tool in the process.

    Raises:
        RuntimeError: torch is not as it was before.

    """
    before = _torch_functions()
    if "torchlens" in label:
        from torchlens.backends.torch.wrappers import unwrap_torch, wrap_torch

        wrap_torch()
        try:
            yield
        finally:
            unwrap_torch()
    else:
        yield
    if changed := [name for name, function in _torch_functions().items() if before.get(name, function) is not function]:
        raise RuntimeError(f"{label} has left other functions in torch: {', '.join(changed[:5])}")


def _torch_functions() -> dict[str, object]:
    places = {"Tensor": torch.Tensor, "TensorBase": torch._C.TensorBase, "torch": torch, "F": nn.functional}
    return {f"{name}.{key}": value for name, place in places.items() for key, value in vars(place).items()}


def nnsight(model: nn.Module) -> Pass:
    """`tracer.cache()` of nnsight."""
    from nnsight import NNsight

    traced = NNsight(model)
    layers = hookscope.leaves(model)

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        with traced.trace(*args, **kwargs) as tracer:
            cache = tracer.cache().save()
            output = traced.output.save()

        def read() -> Kept:
            kept: dict[str, Any] = {}
            for name in layers:
                path = f"model.{name}".rstrip(".")
                if path in cache:
                    entries = cache[path]
                    for entry in entries if isinstance(entries, list) else [entries]:
                        kept[_label(kept, name)] = entry.output
            return kept

        return ToolRun(output, (cache, output), read)

    return run


def captum(model: nn.Module) -> Pass:
    """`LayerActivation` of captum on all leaves at once."""
    from captum.attr import LayerActivation

    layers = hookscope.leaves(model)
    activation = LayerActivation(model, list(layers.values()))

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        if kwargs:
            raise TypeError("LayerActivation takes no keyword arguments")
        held = activation.attribute(args)
        return ToolRun(None, held, lambda: dict(zip(layers, held, strict=True)))

    return run


def extractor(model: nn.Module) -> Pass:
    """`create_feature_extractor` of torchvision, traced once, with the same names where it knows them."""
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    _, names = get_graph_node_names(model)
    layers = hookscope.leaves(model)
    # A node is called like its layer, and `layer_1` when the layer is called for the second time.
    labels = {name: re.sub(r"_(\d+)$", lambda found: f"#{int(found[1]) + 1}", name) for name in names}
    picked = {
        name: name if name in layers else labels[name]
        for name in names
        if name in layers or labels[name].split("#")[0] in layers
    }
    features = create_feature_extractor(model, list(picked))
    features.train(model.training)

    def run(*args: Any, **kwargs: Any) -> ToolRun:
        held = features(*args, **kwargs)
        return ToolRun(None, held, lambda: {picked[name]: value for name, value in held.items()})

    return run


TOOLS: dict[str, Tool] = {
    "plain forward": plain,
    "plain forward, once more": plain,
    "hooks that keep references": bare_references,
    "hooks that clone": bare_clones,
    "hooks that share copy-on-write and see writes": shared_watched,
    "hooks that copy to warm buffers": warm_buffers,
    "hooks that copy to warm buffers and see writes": warm_buffers_watched,
    "**hookscope**, first capture": capture(),
    "**hookscope**, same capture again": capture_again(),
    "**hookscope**, `stats=True`": capture_again(stats=True),
    "**hookscope**, `gradients=True`, again": capture_again(gradients=True),
    "torchlens trace": torchlens,
    "nnsight cache": nnsight,
    "TraceDict, cloning": trace_dict,
    "captum LayerActivation": captum,
    "torchvision extractor": extractor,
}
