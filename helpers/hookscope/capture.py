"""Keep what flowed through chosen layers, outputs, inputs and gradients, as it was at that moment."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hookscope._call import Call, Layer, NotCapturedError, Slot, Wanted, why_uncalled
from hookscope._form import Form, Stats, stats_of
from hookscope._keep import has_version, map_tensors, shares_memory, storage_of, tensors_in
from hookscope.layers import LayerNotFoundError, Which, find_layers, layer_names
from hookscope.picture import Table

__all__ = ["Call", "Capture", "Layer", "NotCapturedError", "Stats", "capture"]


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
) -> Capture:
    """Keep what chosen layers return, call by call, inside a with-block.

    Outputs are kept as they were when the layer returned them. An in-place operation that comes later, such as
    `nn.ReLU(inplace=True)` or `out += x`, does not reach them, and `Capture.overwritten` says where that
    happened. It costs a copy only where something is overwritten: until then torch shares the memory
    (copy-on-write).

    Hooks only look: results, gradients, buffers, random numbers and flags are bit for bit what they are without.
    The limits are torch's own:

    - Hooks on layers inside an `nn.TransformerEncoderLayer` in `eval()` without gradients switch its fused path off,
      which may round differently; `Capture.notes` says so.
    - A model that is compiled does not notice new hooks, so it is refused.
    - Copy-on-write does not see a NumPy array, or another alias outside torch, that a layer made of its output
      *before* returning it; and torch (2.15) fails with an internal error in COW.cpp where such an output is resized
      later. For such a layer take `keep="copies"`, which copies every tensor at once.
    - Do not copy or save the model inside the block: the copy would keep the hooks.

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

    Returns:
        A `Capture`: a context manager, and a mapping from layer names to what was kept. It can be entered again;
        it then starts afresh.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `model` is compiled or TorchScript, or the options contradict each other.
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
    layers = {module: name for name, module in find_layers(model, *which).items()}
    for module, name in layer_names(model).items():
        what = f"layer {name!r}" if name else "the model"
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(f"{what} is compiled and would not notice new hooks; capture it uncompiled")
        if module in layers and isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{what} is TorchScript, which takes no hooks; capture the original, or leave it out")
    if keep not in ("tensors", "copies", "stats"):
        raise ValueError(f"keep={keep!r}: give 'tensors', 'copies' or 'stats'")
    if isinstance(sample, int):
        if sample < 0:
            raise ValueError(f"sample={sample}: count samples from 0")
        sample = slice(sample, sample + 1)
    form = Form(sample, dtype, None if device is None else torch.device(device), at_once=keep == "copies")
    if keep == "stats" and form != Form():
        raise ValueError("keep='stats' keeps no tensors: leave out sample, dtype and device")
    return Capture(model, layers, Wanted(gradients, inputs, stats_of if keep == "stats" else form, max_bytes))


class _Watched:
    """An output that may still be written to: what was returned, and how often it had been written to by then."""

    __slots__ = ("label", "tensor", "version")

    def __init__(self, label: str, tensor: Tensor, shared: bool) -> None:
        self.label, self.version = label, tensor._version
        # While the kept tensor shares its memory, holding on to it here costs nothing; else it must be free to go.
        alias = tensor.detach()
        self.tensor: Callable[[], Tensor | None] = (lambda: alias) if shared else weakref.ref(tensor)

    def written(self) -> bool:
        """Whether it has been written to since."""
        tensor = self.tensor()
        return tensor is not None and tensor._version != self.version


class Capture(Mapping[str, Layer]):
    """What `capture` returns: a context manager, and a mapping from layer names to what was kept.

    Iterating gives the layers that were called, in the order of their first calls.

    Attributes:
        title: class name of the model.

    """

    def __init__(self, model: nn.Module, layers: dict[nn.Module, str], wanted: Wanted) -> None:
        self._model = model
        self.title = type(model).__name__
        self._layers = layers
        self._wanted = wanted
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
        self._foreign = self._own  # and of what the caller passed in
        self._last = ""
        self._bytes = 0

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
        return {name: why_uncalled(module) for module, name in self._layers.items() if name not in self._calls}

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
        return Table(rows, f"{self.title}: {len(rows)} calls of {len(self._calls)} layers{missing}")

    # -- capturing ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this capture is already open; make another one with capture(...)")
        model = self._model
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
            if "COW.cpp" in str(error):
                error.add_note(
                    "hookscope: a captured output was resized, which torch's copy-on-write does not bear; "
                    "write capture(model, ..., keep='copies')"
                )
            error.capture = self  # type: ignore[attr-defined]

    def _close(self) -> None:
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()
        self._look_for_writes(f"an in-place operation after {self._last}", everywhere=True)
        self._watched.clear()
        self._foreign = self._own

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._running:
            given = (storage_of(tensor) for tensor in tensors_in((args, kwargs)))
            self._foreign = self._own.union(storage for storage in given if storage is not None)
        if (name := self._layers.get(module)) is None:
            self._running.append((module, None))
            return
        calls = self._calls.setdefault(name, [])
        call = Call(name, len(calls) + 1, type(module).__name__, self._wanted)
        self._look_for_writes(f"an in-place operation between {self._last} and {call.label}")
        if self._wanted.inputs:
            call._args = map_tensors(self._take, (args, kwargs))
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

        def take(tensor: Tensor) -> Slot:
            slot = self._take(tensor)
            if not self._wanted.stats_only and has_version(tensor):
                self._watched.append(_Watched(label, tensor, shares_memory(slot.value)))
            if self._wanted.gradients and tensor.requires_grad:
                form = self._wanted.form
                handle = tensor.register_hook(lambda grad: slot.add(grad, form))  # type: ignore[no-untyped-call]
                self._handles.append(handle)
            return slot

        call._output = map_tensors(take, output)
        call._returned = True
        self._last = label

    def estimate(self, *args: Any, **kwargs: Any) -> int:
        """Forecast how many bytes one pass will keep at most, without computing anything.

        The model runs on fake tensors, which have shapes and no values: parameters, buffers, random numbers and the
        inputs stay as they are. What copy-on-write saves is not known before and is counted in.

        Args:
            *args: the inputs of the pass, as the model is called with.
            **kwargs: likewise.

        Returns:
            Bytes for outputs, for inputs if they are kept, and for gradients if they are kept and the output
            requires grad; 0 with `keep="stats"`.

        Raises:
            RuntimeError: the model's path depends on values, so that it cannot run without them.

        Example:
            >>> net = nn.Sequential(nn.Linear(4, 100), nn.ReLU())
            >>> capture(net).estimate(torch.ones(8, 4))
            6400

        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        form, wanted = self._wanted.form, self._wanted
        if not isinstance(form, Form):
            return 0
        total = 0

        def count(tensor: Tensor) -> Stats:
            nonlocal total
            twice = wanted.gradients and tensor.requires_grad
            total += form.bytes_of(tensor) * (2 if twice else 1)
            return Stats(tuple(tensor.shape), tensor.dtype, *(0.0,) * 5, 0, 0, 0)

        counting = Capture(self._model, self._layers, replace(wanted, form=count, gradients=False))
        try:
            with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True) as fake, counting:
                # Fakes take the place of parameters and buffers: one written to in place would be really written to.
                state: dict[str, Tensor] = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
                stand_ins: dict[str, Tensor] = {name: fake.from_tensor(tensor) for name, tensor in state.items()}
                functional_call(self._model, stand_ins, args, kwargs)
        except Exception as error:
            raise RuntimeError(
                f"no forecast: {self.title} does not run on fake tensors ({type(error).__name__}); its path may depend "
                "on values. Capture with keep='stats' or max_bytes=... instead"
            ) from error
        return total

    def _take(self, tensor: Tensor) -> Slot:
        form = self._wanted.form
        if isinstance(form, Form):
            if (limit := self._wanted.max_bytes) is not None:
                self._bytes += form.bytes_of(tensor)
                if self._bytes > limit:
                    raise MemoryError(
                        f"this capture would keep more than max_bytes={limit:,}; reached at call "
                        f"{self._order[-1].label}. Choose fewer layers, or sample=0, dtype=torch.float16, keep='stats'"
                    )
            return Slot(tensor, form(tensor, self._foreign))
        return Slot(tensor, form(tensor))

    def _look_for_writes(self, by: str, everywhere: bool = False) -> None:
        """Note which outputs have been written to since the last look; the latest ones unless `everywhere`."""
        recent = self._watched if everywhere else self._watched[-8:]
        hit = [watched for watched in recent if watched.written()]
        for watched in hit:
            self._overwritten.setdefault(watched.label, by)
            self._watched.remove(watched)
