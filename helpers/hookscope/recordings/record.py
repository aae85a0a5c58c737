"""Choose what to record, run a pass inside a with-block, and name the tensors in it that are to be watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from hookscope.compiler import note_traced_hooks
from hookscope.layers import Modules, Which, pick, refuse_unhookable
from hookscope.recordings.event import GIVEN, Event
from hookscope.recordings.event_buffer import EventBuffer
from hookscope.recordings.log import EventLog
from hookscope.recordings.recorder import KINDS, Recorder, has_forward
from hookscope.recordings.watcher import PARAMETER_KINDS

__all__ = ["KINDS", "Event", "FullBackwardHookError", "Recording", "record"]

_TensorT = TypeVar("_TensorT", bound=torch.Tensor)


class FullBackwardHookError(RuntimeError):
    """torch's full backward hooks cannot work on this model; the error they led to is the cause."""


def record(
    model: nn.Module,
    *which: Which,
    kinds: str | Iterable[str] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    parameters: bool = False,
    optimizers: Optimizer | Iterable[Optimizer] = (),
    values: bool = False,
    max_events: int = 10_000,
) -> Recording:
    """Log every hook that fires inside a with-block, in the order in which torch fires it.

    hookscope registers a real torch hook of each kind on each chosen layer, and takes them off at the end of
    the block, however it ends. Hooks that were there before, global ones too, are logged by the name of their
    callable as each fires; so are those on parameters, tensors and optimizers that are recorded. hookscope's own
    hooks are registered last and without `prepend`. So they fire last of their kind: the args of its `forward_pre` are
    what `forward` receives, the output of its `forward` is what every other forward hook has made of it.

    **What is logged** is what fires inside the block.

    - A hook registered inside the block is not logged; `Recording.notes` names it.
    - torch takes up the full backward hooks of a layer when it is called. A graph built before the block logs
      none of them. One built inside and run backward after it logs nothing, and adds a note.
    - Several threads, or tasks of asyncio, may run the model at once: `Event.by` says whose an event is, the table has
      a column for it where there are several, and `Recording.call_tree` shows a tree of each. Where two begin a call of
      one layer at the same moment, the full backward hooks of both calls may have the number of one.
    - Each backward pass logs: twice over one graph (`retain_graph`) logs twice, and in a double backward a
      layer logs again if the second pass runs through its output.
    - `torch.autograd.grad` logs what it fires: never `post_accumulate_grad`, and `full_backward` only of
      layers the gradient of whose input is computed.
    - A module that comes into the model inside the block is logged from then on, as `self.fc = nn.Linear(...)` in a
      `forward`. What is called there without being in the model, `nn.ReLU()(x)` or the layers in a plain list, is
      logged as `ReLU (in forward of block)` where all layers are recorded, its full backward hooks from the second
      call on. hookscope finds it by a global hook.
    - The step hooks of an optimizer fire around `step`: after `step_pre`, a closure may run the model. An error in
      `step` leaves its `step_post` out. Global step hooks come first before a step, and last after it.
    - A layer whose input does not require grad fires `full_backward` early, before anything inside it, with
      None for grad_input. A layer that returns no Tensor, alone or directly in a tuple, never fires it. torch
      warns of both, but not of tuples inside tuples; where that is about hookscope's hooks only, the warning
      is kept from view and becomes a note.

    **What recording changes.** The hooks return nothing, so outputs, buffers, random numbers, gradients and
    flags are what they are without. What is not is the doing of torch's full backward hooks, and does not
    happen with `kinds=("forward_pre", "forward")`:

    - What a layer receives and returns are views, new objects that must not be changed in place: see Raises.
    - A layer that uses an input several times adds up the gradients of these uses first. With further uses
      outside, the order of the sum, and with it the last bits of gradients, may differ; no note tells of it.
    - A layer that is given one tensor several times gets as many views of it. One that asks whether they are the
      same, as `nn.MultiheadAttention` does in every transformer of torch's, goes another way, and the last bits of its
      output may differ: a note says where.
    - An input that requires grad and is not used has a gradient of zeros, not None.
    - If a layer returns a tuple and only part of it is used, backward visits the rest as well and calls the
      hooks there with None for the gradient.

    Recording an `nn.TransformerEncoderLayer`, or a layer inside it, keeps it from its fused path (in `eval()`, without
    gradients), in which nothing inside it fires: a note says so. While a legacy backward hook is on the model, or is
    global, hookscope registers no full backward hooks, which would change what that hook receives. Inside the
    block a model cannot be deep-copied or saved, and a legacy backward hook cannot be registered.

    Args:
        model: the model to watch.
        *which: layers, as `find_layers` takes them. Without any, every module with a `forward`: the root,
            containers and leaves.
        kinds: some of `KINDS`; None is all, those of parameters if `parameters` is true. Optimizers, and
            tensors named with `tensors`, `Recording.watch` or `watch_all`, are logged in any case.
        tensors: name -> tensor that requires grad, to log when its tensor hook fires.
        parameters: log the hooks of the parameters of the chosen layers too, kinds `tensor` and
            `post_accumulate_grad`. Those that do not require grad are left out.
        optimizers: an optimizer or several, to log the hooks around each `step`, kinds `step_pre` and
            `step_post`, phase `"step"`. They are called by class, `SGD`, or `SGD 1` and `SGD 2`.
        values: keep in `Event.values` the numbers that each hook was given, of tensors with more than 16 elements
            the mean, min and max. Takes time: numbers on an accelerator must come from there.
        max_events: log no more than this many and say so in `notes`.

    Returns:
        A `Recording` to be used once as a context manager.

    Raises:
        TypeError: `model` is not a module, something in `tensors` not a tensor, or in `optimizers` no optimizer.
        ValueError: unknown or contradictory `kinds`, a tensor that does not require grad, a compiled model.
        LayerNotFoundError: no such layer; names the nearest.
        FullBackwardHookError: when the block ends with an error that full backward hooks lead to, with that
            error as its cause. It comes of an in-place operation on what a layer received or returned
            (`nn.ReLU(inplace=True)`, `out += x`), of a layer that returns a `torch.return_types`, or of a
            `torch.func` transform. Names the place and the way out.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 2))
        >>> x = torch.ones(1, 4, requires_grad=True)
        >>> with record(model, "0") as recording:
        ...     y = recording.watch(model(x), "y")
        ...     y.sum().backward()
        >>> recording.order()
        ['forward_pre 0', 'forward 0', 'tensor y', 'full_backward_pre 0', 'full_backward 0']
        >>> recording.events[1].shapes
        (1, 2)

    """
    modules = Modules(model)
    if which:
        layers = {module: name for name, module in pick(modules, *which).items()}
    else:  # what has no forward, such as nn.ModuleList, is never called
        layers = {module: name for module, name in modules.names.items() if has_forward(module)}
    refuse_unhookable(modules, layers, "record")
    if tensors is not None and not isinstance(tensors, Mapping):
        raise TypeError(f"tensors={tensors!r}: give names and tensors, as tensors={{'y': y}}")
    for name, tensor in (tensors or {}).items():
        _check_tensor(tensor, name)
    for name, flag in {"parameters": parameters, "values": values}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}={flag!r}: give True or False")
    if isinstance(max_events, bool) or not isinstance(max_events, int):
        raise TypeError(f"max_events={max_events!r}: give a whole number of events")
    if max_events < 1:
        raise ValueError(f"max_events must be 1 or more, not {max_events}")
    chosen = _check_kinds(kinds, parameters)
    named = _name_optimizers(optimizers)
    return Recording(modules, layers, chosen, dict(tensors or {}), parameters, named, values, max_events)


class Recording(EventLog):
    """What `record` returns: a context manager, and afterwards the log of what fired inside it.

    Shows itself as a table with the `notes` below. `record` says what is in it and what is not.
    """

    def __init__(
        self,
        modules: Modules,
        layers: dict[nn.Module, str],
        kinds: frozenset[str],
        tensors: Mapping[str, torch.Tensor],
        parameters: bool,
        optimizers: Mapping[Optimizer, str],
        values: bool,
        max_events: int,
    ) -> None:
        self._buffer = EventBuffer(max_events, values)
        self._recorder = Recorder(layers, kinds, self._buffer)
        super().__init__(type(modules.model).__name__, kinds, self._buffer.events, self._buffer.notes)
        self._names = tuple(layers.values())
        self._to_start = [(modules, dict(tensors), parameters, dict(optimizers))]

    @property
    def uncalled(self) -> tuple[str, ...]:
        """Names of the chosen layers that were not called inside the block."""
        return tuple(name for name in self._names if name not in self._recorder.ran)

    def watch(self, tensor: _TensorT, name: str, *, retain_grad: bool = False, nodes: bool = False) -> _TensorT:
        """Log when the tensor hook of `tensor` fires, and what else happens to its gradient.

        In a backward pass come the tensor hooks, then what `retain_grad` does, then the pre-hooks of the node, the
        node itself, and its post-hooks. `torch.autograd.grad(loss, y)` does not run the node of `y`.

        Args:
            tensor: a tensor that requires grad, usually made inside the block.
            name: what its events are called.
            retain_grad: call `tensor.retain_grad()`, and log, as kind `retain_grad`, that `.grad` has been filled.
                torch calls no hook then: hookscope looks before it logs anything else, and when the pass is over.
                It stays on after the block, since torch cannot switch it off. In a leaf it is
                `post_accumulate_grad` that says so: backward fills its `.grad` without being asked.
            nodes: log the hooks `node_pre` and `node_post` around `tensor.grad_fn`, with the node's name as type;
                around the `AccumulateGrad` of a leaf. hookscope's own only: torch does not list a node's hooks.
                In-place operations give a tensor a new node; the one watched is that of now.

        Returns:
            `tensor` itself: `y = recording.watch(model(x), "y")`.

        Raises:
            RuntimeError: called outside the with-block.
            TypeError: `tensor` is not a tensor.
            ValueError: `tensor` does not require grad.

        Example:
            >>> x = torch.ones(2, requires_grad=True)
            >>> with record(nn.Identity(), kinds="forward") as recording:
            ...     y = recording.watch(x * 3, "y", retain_grad=True, nodes=True)
            ...     y.sum().backward()
            >>> recording.order()
            ['tensor y', 'retain_grad y', 'node_pre y', 'node_post y']
            >>> recording.events[-1].type
            'MulBackward0'

        """
        self._check_running(name)
        _check_tensor(tensor, name)
        self._recorder.watcher.add_tensor(tensor, name, ["tensor"])
        if retain_grad:
            self._recorder.watcher.add_grad(tensor, name)
        if nodes:
            self._recorder.watcher.add_node(tensor, name)
        return tensor

    def watch_all(self, tensors: Mapping[str, torch.Tensor], mode: Literal["all", "any"] = "all") -> None:
        """Log when torch's multi-grad hook on several tensors fires, as kind `multi_grad`.

        It is a tensor hook of each of them and fires in its place among those: with `"all"` once in a backward
        pass, when the last gradient is there that this pass computes, with None for the others; with `"any"` at the
        first gradient, which is all that it is given.

        Args:
            tensors: name -> tensor that requires grad.
            mode: `"all"` or `"any"`, as in `torch.autograd.graph.register_multi_grad_hook`.

        Raises:
            RuntimeError: called outside the with-block.
            TypeError: something in `tensors` is not a tensor.
            ValueError: no tensors, one that does not require grad, or another mode.

        Example:
            >>> a, b = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
            >>> with record(nn.Identity()) as recording:
            ...     recording.watch_all({"a": a, "b": b})
            ...     (a.sum() * b.sum()).backward()
            >>> recording.events[0].label, recording.events[0].given
            ('multi_grad a, b', 'grads ((2,), (3,))')

        """
        self._check_running(", ".join(tensors))
        if not tensors:
            raise ValueError("there are no tensors to watch; name one or more")
        if mode not in ("all", "any"):
            raise ValueError(f"mode must be 'all' or 'any', not {mode!r}")
        for name, tensor in tensors.items():
            _check_tensor(tensor, name)
        self._recorder.watcher.add_all(tensors, mode)

    def _check_running(self, name: str) -> None:
        if not self._buffer.running:
            raise RuntimeError(f"tensor {name!r} is watched outside the with-block; watch it inside")

    def __getstate__(self) -> dict[str, Any]:
        # What was logged, to be read elsewhere; not the hooks, nor the model that they were on.
        if self._buffer.running:
            raise RuntimeError("this recording is running; copy or pickle it after the with-block")
        state = {name: value for name, value in vars(self).items() if name not in ("_buffer", "_recorder")}
        return state | {"_to_start": [], "_ran": set(self._recorder.ran)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ran = state.pop("_ran")
        vars(self).update(state)
        self._buffer = EventBuffer(1, values=False)
        self._recorder = Recorder({}, frozenset(self._kinds), self._buffer)
        self._recorder.ran = ran

    def __enter__(self) -> Self:
        if not self._to_start:
            raise RuntimeError("a recording is made once; call record(...) again for another one")
        modules, tensors, parameters, optimizers = self._to_start.pop()
        try:
            self._recorder.start(modules.model, tensors, parameters, optimizers)
            return self
        except BaseException:
            self._recorder.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.stop()
        note_traced_hooks(error)
        if not isinstance(error, FullBackwardHookError) and (text := self._recorder.explain(error)):
            raise FullBackwardHookError(text) from error
        if error is None and not self._buffer.events and not self._recorder.ran:
            self._buffer.note(
                "nothing was called inside the block: run the model in it, by model(...), not by model.forward(...); "
                "code that was compiled, traced or exported before runs no hooks"
            )


def _check_tensor(tensor: object, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name!r} must be a Tensor, not {type(tensor).__name__}")
    if not tensor.requires_grad:
        raise ValueError(
            f"tensor {name!r} does not require grad, so no tensor hook on it can fire; call "
            f"{name}.requires_grad_() before it is used"
        )


def _check_kinds(kinds: str | Iterable[str] | None, parameters: bool) -> frozenset[str]:
    if kinds is None:
        return frozenset(KINDS) if parameters else frozenset(KINDS) - {"post_accumulate_grad"}
    try:
        chosen: list[Any] = [kinds] if isinstance(kinds, str) else list(kinds)
    except TypeError:
        chosen = [kinds]
    if not all(isinstance(kind, str) for kind in chosen):
        raise TypeError(f"kinds={kinds!r}: give a kind of hook, as kinds='forward', or several")
    for kind in chosen:
        if kind in ("backward", "register_backward_hook"):
            raise ValueError(
                "kind 'backward' is the legacy backward hook, whose grad_input is that of the last operation "
                "only: torch deprecates it; record 'full_backward'"
            )
        if kind not in KINDS and kind in GIVEN:
            way = "optimizers=" if kind.startswith("step") else "Recording.watch or watch_all inside the block"
            raise ValueError(f"kind {kind!r} is not chosen with kinds: say what to log with {way}")
        if kind not in KINDS:
            near = get_close_matches(str(kind), KINDS, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"kinds are {', '.join(KINDS)}"
            raise ValueError(f"no kind {kind!r}; {hint}")
    if parameters and not set(chosen) & set(PARAMETER_KINDS):
        raise ValueError("parameters=True needs kind 'tensor' or 'post_accumulate_grad' in kinds")
    if "post_accumulate_grad" in chosen and not parameters:
        raise ValueError("kind 'post_accumulate_grad' is one of parameters; add parameters=True")
    return frozenset(chosen)


def _name_optimizers(optimizers: Optimizer | Iterable[Optimizer]) -> dict[Optimizer, str]:
    """Name optimizers by their class, those that share it with a number."""
    single = isinstance(optimizers, Optimizer | str | torch.Tensor) or not isinstance(optimizers, Iterable)
    listed: list[Any] = [optimizers] if single else list(optimizers)  # type: ignore[arg-type]
    for optimizer in listed:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizers must be torch.optim.Optimizer, not {type(optimizer).__name__}")
    given = dict.fromkeys(listed)
    sizes = Counter(type(optimizer).__name__ for optimizer in given)
    seen: Counter[str] = Counter()
    named = {}
    for optimizer in given:
        name = type(optimizer).__name__
        seen[name] += 1
        named[optimizer] = f"{name} {seen[name]}" if sizes[name] > 1 else name
    return named
