"""Keep what flowed through chosen layers, outputs, inputs and gradients, as it was at that moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from hookscope._keep import has_version, keep, map_tensors, readable, storage_of, tensors_in
from hookscope.layers import LayerNotFoundError, Which, find_layers, layer_names
from hookscope.picture import Table

__all__ = ["Call", "Capture", "Layer", "NotCapturedError", "capture"]


class NotCapturedError(RuntimeError):
    """What was asked for is not in the capture: the layer was not called, no gradient reached it, and so on."""


def capture(model: nn.Module, *which: Which, gradients: bool = False, inputs: bool = False) -> Capture:
    """Keep what chosen layers return, call by call, inside a with-block.

    Outputs are kept as they were when the layer returned them. An in-place operation that comes later, such as
    `nn.ReLU(inplace=True)` or `out += x`, does not reach them, and `Capture.overwritten` says where that
    happened. It costs a copy only where something is overwritten: until then torch shares the memory
    (copy-on-write).

    Hooks only look: results, gradients, buffers, random numbers and flags are bit for bit what they are without.
    Two limits, both torch's own: hooks on layers inside an `nn.TransformerEncoderLayer` in `eval()` without
    gradients switch its fused path off, which may round differently (`Capture.notes` says so); and a model that
    is compiled does not notice new hooks, so it is refused.

    Args:
        model: the model to watch.
        *which: layers, as `find_layers` takes them. Without any, all leaves.
        gradients: keep the gradients with respect to the outputs too, by a tensor hook on each output tensor.
            Unlike full backward hooks these work beside in-place operations and for outputs of any structure.
            `backward()` has to run inside the block.
        inputs: keep args and kwargs of each call too, as they were before the layer ran.

    Returns:
        A `Capture`: a context manager, and a mapping from layer names to what was kept. It can be entered again;
        it then starts afresh.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `model` is compiled or TorchScript.
        LayerNotFoundError: no such layer; names the nearest.

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
    layers = {module: name for name, module in find_layers(model, *which).items()}
    for module, name in layer_names(model).items():
        what = f"layer {name!r}" if name else "the model"
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(f"{what} is compiled and would not notice new hooks; capture it uncompiled")
        if module in layers and isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{what} is TorchScript, which takes no hooks; capture the original, or leave it out")
    return Capture(model, layers, gradients, inputs)


class Call:
    """One call of one layer.

    Attributes:
        layer: the layer's dotted name, `""` for the root.
        number: which call of this layer it is within the capture, from 1.
        type: class name of the module.

    """

    __slots__ = ("_args", "_grads", "_needs_grad", "_output", "_returned", "_wanted", "layer", "number", "type")

    def __init__(self, layer: str, number: int, type_name: str, gradients: bool, inputs: bool) -> None:
        self.layer, self.number, self.type = layer, number, type_name
        self._wanted = (gradients, inputs)
        self._returned = self._needs_grad = False
        self._output: Any = None
        self._args: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._grads: dict[int, Tensor | None] = {}  # by id of the kept output tensor

    @property
    def label(self) -> str:
        """The layer's name, with `#number` from the second call on."""
        name = self.layer or "(root)"
        return f"{name}#{self.number}" if self.number > 1 else name

    @property
    def output(self) -> Any:
        """What the layer returned, in its own structure, every tensor detached.

        Raises:
            NotCapturedError: the layer raised, so it returned nothing.

        """
        if not self._returned:
            raise NotCapturedError(f"call {self.label} raised an exception and returned nothing")
        return map_tensors(readable, self._output)

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, in the output's structure; None for tensors none reached.

        After several backward passes it is their sum, as in `Tensor.grad`.

        Raises:
            NotCapturedError: gradients were not asked for, the output does not require grad, or no backward pass
                has reached it inside the block.

        """
        if not self._wanted[0]:
            raise NotCapturedError("gradients were not kept; write capture(model, ..., gradients=True)")
        output = self.output
        if not self._needs_grad:
            raise NotCapturedError(
                f"the output of {self.label} does not require grad: neither an input nor a parameter before it does, "
                "or it ran under no_grad"
            )
        if not any(grad is not None for grad in self._grads.values()):
            raise NotCapturedError(
                f"no gradient has reached {self.label}; call backward() inside the with-block, on something that "
                "depends on it"
            )
        del output
        return map_tensors(lambda kept: self._grads.get(id(kept)), self._output)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as they were before the layer ran.

        Raises:
            NotCapturedError: inputs were not asked for.

        """
        return self._inputs()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, as they were before the layer ran.

        Raises:
            NotCapturedError: inputs were not asked for.

        """
        return self._inputs()[1]

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._wanted[1]:
            raise NotCapturedError("inputs were not kept; write capture(model, ..., inputs=True)")
        args, kwargs = map_tensors(readable, self._args)
        return args, kwargs

    def __repr__(self) -> str:
        shapes = [tuple(tensor.shape) for tensor in tensors_in(self._output)]
        what = f"output {', '.join(map(str, shapes)) or 'without tensors'}" if self._returned else "raised"
        return f"Call {self.label} ({self.type}): {what}"


class Layer:
    """All calls of one layer; for a layer that was called once, also that call's `output`, `grad`, `args`, `kwargs`.

    Attributes:
        name: the layer's dotted name, `""` for the root.
        calls: the calls in the order in which they began.

    """

    def __init__(self, name: str, calls: tuple[Call, ...]) -> None:
        self.name = name
        self.calls = calls

    def _only(self, what: str) -> Call:
        if len(self.calls) != 1:
            raise NotCapturedError(
                f"layer {self.name!r} was called {len(self.calls)} times; say which call you mean: "
                f"seen[{self.name!r}].calls[0].{what}"
            )
        return self.calls[0]

    @property
    def output(self) -> Any:
        """What the layer returned, see `Call.output`; an error if it was called more than once."""
        return self._only("output").output

    @property
    def grad(self) -> Any:
        """The gradient with respect to the output, see `Call.grad`; an error if it was called more than once."""
        return self._only("grad").grad

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, see `Call.args`; an error if the layer was called more than once."""
        return self._only("args").args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, see `Call.kwargs`; an error if the layer was called more than once."""
        return self._only("kwargs").kwargs

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.calls))


class _Watched:
    """An output that may still be written to: what was returned, and how often it had been written to by then."""

    __slots__ = ("alias", "label", "version")

    def __init__(self, label: str, tensor: Tensor) -> None:
        self.label, self.alias, self.version = label, tensor.detach(), tensor._version


class Capture(Mapping[str, Layer]):
    """What `capture` returns: a context manager, and a mapping from layer names to what was kept.

    Iterating gives the layers that were called, in the order of their first calls.
    """

    def __init__(self, model: nn.Module, layers: dict[nn.Module, str], gradients: bool, inputs: bool) -> None:
        self._model = weakref.ref(model)
        self._title = type(model).__name__
        self._layers = layers
        self._gradients, self._inputs = gradients, inputs
        self._open = False
        self._reset()

    def _reset(self) -> None:
        self._calls: dict[str, list[Call]] = {}
        self._order: list[Call] = []
        self._overwritten: dict[str, str] = {}
        self._notes: dict[str, None] = {}
        self._handles: list[Any] = []
        self._running: list[tuple[nn.Module, Call | None]] = []  # calls that have not returned, innermost last
        self._watched: list[_Watched] = []
        self._own: frozenset[int] = frozenset()  # storages of parameters and buffers
        self._given: set[int] = set()  # storages of what the caller passed in
        self._last = ""

    # -- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Layer:
        if name in self._calls:
            return Layer(name, tuple(self._calls[name]))
        if name in self._layers.values():
            raise NotCapturedError(f"layer {name!r} {self.uncalled.get(name, 'was not called')}")
        near = get_close_matches(str(name), self._layers.values())
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise LayerNotFoundError(f"no layer {name!r} in this capture{hint}", str(name), near)

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, name: object) -> bool:
        return name in self._calls

    def get(self, name: str, default: Any = None) -> Any:
        """Return the layer of that name, or `default` if it was not called."""
        return self[name] if name in self else default  # noqa: SIM401 (self[name] is an error with a reason)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of every chosen layer, in the order in which they began."""
        return tuple(self._order)

    @property
    def order(self) -> list[str]:
        """The names of the layers in the order in which they were called, one per call."""
        return [call.layer for call in self._order]

    @property
    def uncalled(self) -> dict[str, str]:
        """The chosen layers that were not called, each with why that may be."""
        return {name: _why_uncalled(module) for module, name in self._layers.items() if name not in self._calls}

    @property
    def overwritten(self) -> dict[str, str]:
        """The outputs that were written to after their layer had returned them, each with by what.

        Keys are labels of calls. The outputs in this capture are as they were before.
        """
        return dict(self._overwritten)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to know about this capture."""
        return tuple(self._notes)

    def __repr__(self) -> str:
        return "\n".join([repr(self._table()), *(f"note: {note}" for note in self._notes)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        from html import escape

        notes = "".join(f"\n<p>note: {escape(note)}</p>" for note in self._notes)
        return {"text/plain": repr(self), "text/html": self._table().to_html() + notes}

    def _table(self) -> Table:
        rows = [
            {
                "call": call.label,
                "type": call.type,
                "output": ", ".join(str(tuple(t.shape)) for t in tensors_in(call._output))
                if call._returned
                else "raised",
                "overwritten later by": self._overwritten.get(call.label, ""),
            }
            for call in self._order
        ]
        uncalled = len(self.uncalled)
        missing = f"; {uncalled} of the chosen layers not called, see .uncalled" if uncalled else ""
        return Table(rows, f"{self._title}: {len(rows)} calls of {len(self._calls)} layers{missing}")

    # -- capturing ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this capture is already open; make another one with capture(...)")
        model = self._model()
        if model is None:
            raise RuntimeError("the model of this capture no longer exists")
        self._reset()
        self._own = frozenset(
            storage for tensor in (*model.parameters(), *model.buffers()) if (storage := storage_of(tensor)) is not None
        )
        self._open = True
        try:
            # The root is hooked in any case: what it is called with belongs to the caller.
            for module in dict.fromkeys([model, *self._layers]):
                self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._after))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if error is not None:
            last = f", the last one {self._order[-1].label}" if self._order else ""
            error.add_note(f"hookscope: {len(self._order)} calls were captured{last}; they are in the error's .capture")
            error.capture = self  # type: ignore[attr-defined]

    def _close(self) -> None:
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()
        self._look_for_writes(f"an in-place operation after {self._last}", everywhere=True)
        self._watched.clear()
        self._given.clear()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._running:
            self._given = {s for t in tensors_in((args, kwargs)) if (s := storage_of(t)) is not None}
        if (name := self._layers.get(module)) is None:
            self._running.append((module, None))
            return
        calls = self._calls.setdefault(name, [])
        call = Call(name, len(calls) + 1, type(module).__name__, self._gradients, self._inputs)
        self._look_for_writes(f"an in-place operation between {self._last} and {call.label}")
        if self._inputs:
            call._args = map_tensors(self._keep, (args, kwargs))
        if isinstance(module, nn.TransformerEncoderLayer) and not (module.training or torch.is_grad_enabled()):
            self._notes[f"hooks switch off the fused path of layer {name!r}"] = None
        calls.append(call)
        self._order.append(call)
        self._running.append((module, call))

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        place = next((i for i in reversed(range(len(self._running))) if self._running[i][0] is module), None)
        if place is None:
            return  # the call began before the block
        call = self._running[place][1]
        # What was called further in and is still here was left by an exception that the model caught.
        del self._running[place:]
        if call is None:
            return
        label = call.label
        self._look_for_writes(f"layer {label} ({call.type})")

        def take(tensor: Tensor) -> Tensor:
            kept = self._keep(tensor)
            if has_version(tensor):
                self._watched.append(_Watched(label, tensor))
            if tensor.requires_grad:
                call._needs_grad = True
                if self._gradients:
                    handle = tensor.register_hook(_adds_up(call._grads, id(kept)))  # type: ignore[no-untyped-call]
                    self._handles.append(handle)
            return kept

        call._output = map_tensors(take, output)
        call._returned = True
        self._last = label

    def _keep(self, tensor: Tensor) -> Tensor:
        return keep(tensor, self._own if not self._given else self._own | self._given)

    def _look_for_writes(self, by: str, everywhere: bool = False) -> None:
        """Note which outputs have been written to since the last look; the latest ones unless `everywhere`."""
        recent = self._watched if everywhere else self._watched[-16:]
        hit = [watched for watched in recent if watched.alias._version != watched.version]
        for watched in hit:
            self._overwritten.setdefault(watched.label, by)
            self._watched.remove(watched)


def _adds_up(grads: dict[int, Tensor | None], key: int) -> Callable[[Tensor], None]:
    """Make a tensor hook that adds what it gets to `grads[key]`, as `Tensor.grad` does."""

    def hook(grad: Tensor) -> None:
        before = grads.get(key)
        grads[key] = keep(grad) if before is None else before + grad.detach()

    return hook


def _why_uncalled(module: nn.Module) -> str:
    """Say why a layer may not have been called."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return "was not called: torch never calls a ModuleList or ModuleDict, only what is in it"
    if isinstance(module, (nn.ParameterList, nn.ParameterDict)):
        return "was not called: it only holds parameters"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "was not called: nn.MultiheadAttention uses its weight, but never calls it"
    return (
        "was not called: this pass did not reach it, or reached it through .forward(...), or used its weight in a "
        "function, none of which runs hooks"
    )
