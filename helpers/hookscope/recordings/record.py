"""Choose layers and kinds of hooks, and record which hooks fire inside a `with` block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import nn

from hookscope.compiler import note_traced_hooks
from hookscope.error_pages import append_page
from hookscope.layers import Modules, Which, pick, refuse_unhookable
from hookscope.recordings.event import GIVEN, Event
from hookscope.recordings.event_buffer import EventBuffer
from hookscope.recordings.log import EventLog
from hookscope.recordings.recorder import KINDS, Recorder, has_forward
from hookscope.recordings.watcher import PARAMETER_KINDS

__all__ = ["KINDS", "Event", "FullBackwardHookError", "Recording", "record"]

_TensorT = TypeVar("_TensorT", bound=torch.Tensor)


class FullBackwardHookError(RuntimeError):
    """torch's full backward hooks made the model fail. `__cause__` holds torch's own error.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from hookscope import record
        >>> net = nn.Sequential(nn.Linear(2, 1), nn.ReLU(inplace=True))
        >>> try:
        ...     with record(net):
        ...         net(torch.ones(1, 2)).sum().backward()
        ... except FullBackwardHookError as error:
        ...     print(str(error).partition(",")[0])
        full backward hooks made the model fail inside layer 1 (ReLU)

    """


def record(
    model: nn.Module,
    *which: Which,
    kinds: str | Iterable[str] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    parameters: bool = False,
    values: bool = False,
    max_events: int = 10_000,
) -> Recording:
    """Log every hook that fires inside a `with` block, in the order in which torch calls them.

    `record` registers hooks on the chosen layers and removes them when the block ends, even after an error. It logs
    its own hooks and every hook that was already there. Its own hooks run last, so you see the args that `forward`
    gets and the final output. Outputs and gradients stay the same. Exceptions:
    https://hookscope.github.io/hookscope/limits/record.html

    Args:
        model: the model to watch.
        *which: layers, as for `find_layers`. Default: every module that has a `forward`.
        kinds: some of `hookscope.recordings.KINDS`. Default: all; `post_accumulate_grad` also needs `parameters=True`.
        tensors: names and tensors that require grad. Their tensor hooks are logged too.
        parameters: also log the hooks of the layers' parameters.
        values: store small tensors in `Event.values`, and mean, min and max of larger ones.
        max_events: stop logging after this many events.

    Raises:
        TypeError, ValueError: an argument is wrong, or the model is compiled.
        LayerNotFoundError: the model has no such layer.
        FullBackwardHookError: raised by the block if torch's full backward hooks broke the model.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> layer = nn.Linear(4, 2)
        >>> with record(layer) as recording:
        ...     layer(torch.ones(1, 4, requires_grad=True)).sum().backward()
        >>> recording.order("forward", "full_backward")
        ['forward (root)', 'full_backward (root)']

    """
    modules = Modules(model)
    if which:
        layers = {module: name for name, module in pick(modules, *which, several="record(model, *names)").items()}
    else:  # modules without a forward, such as nn.ModuleList, are never called
        layers = {module: name for module, name in modules.names.items() if has_forward(module)}
    refuse_unhookable(modules, layers, "record")
    if tensors is not None and not isinstance(tensors, Mapping):
        raise TypeError(f"tensors={tensors!r} is not a dict. Pass names and tensors, as in tensors={{'y': y}}")
    for name, tensor in (tensors or {}).items():
        _check_tensor(tensor, name)
    for name, flag in {"parameters": parameters, "values": values}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}={flag!r} is not a bool. Pass {name}=True or {name}=False")
    if isinstance(max_events, bool) or not isinstance(max_events, int):
        raise TypeError(f"max_events={max_events!r} is not an integer. Pass a number of events, such as 1000")
    if max_events < 1:
        raise ValueError(f"max_events={max_events} would log nothing. Pass 1 or more")
    chosen = _check_kinds(kinds, parameters)
    return Recording(modules, layers, chosen, dict(tensors or {}), parameters, values, max_events)


class Recording(EventLog):
    """A context manager that logs hooks while its block runs, and holds the events afterwards.

    It is displayed as a table with the `notes` below it. `record` makes one.
    """

    def __init__(
        self,
        modules: Modules,
        layers: Mapping[nn.Module, str],
        kinds: frozenset[str],
        tensors: Mapping[str, torch.Tensor],
        parameters: bool,
        values: bool,
        max_events: int,
    ) -> None:
        self._buffer = EventBuffer(max_events, values)
        self._recorder = Recorder(layers, kinds, self._buffer)
        super().__init__(type(modules.model).__name__, kinds, self._buffer.events, self._buffer.notes)
        self._names = tuple(layers.values())
        self._to_start = [(modules, dict(tensors), parameters)]

    @property
    def uncalled(self) -> tuple[str, ...]:
        """Names of the chosen layers that did not run inside the block."""
        return tuple(name for name in self._names if name not in self._recorder.ran)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Remarks on the recording, for example that its block never ran, and events that were not logged."""
        never_ran = ("the with block of this recording never ran. Call the model inside it",) if self._to_start else ()
        return never_ran + super().notes

    def watch(self, tensor: _TensorT, name: str, *, retain_grad: bool = False, nodes: bool = False) -> _TensorT:
        """Log when a tensor hook on `tensor` fires, and return `tensor`.

        In a backward pass, torch runs the tensor hooks first, then `retain_grad`, the pre-hooks of the node, the node
        and its post-hooks. Events that are not logged: https://hookscope.github.io/hookscope/limits/record.html

        Args:
            tensor: a tensor that requires grad, usually made inside the block.
            name: the name of its events.
            retain_grad: also call `tensor.retain_grad()`, and log when `.grad` is filled. This stays on after the
                block, because torch cannot undo it. A leaf logs `post_accumulate_grad` instead.
            nodes: also log `node_pre` and `node_post`, before and after the autograd node of the tensor.

        Raises:
            RuntimeError: the call is outside the block.
            TypeError, ValueError: `tensor` is not a tensor, or does not require grad.

        Example:
            >>> x = torch.ones(2, requires_grad=True)
            >>> with record(nn.Identity(), kinds="forward") as recording:
            ...     y = recording.watch(x * 3, "y", retain_grad=True, nodes=True)
            ...     y.sum().backward()
            >>> recording.order()
            ['tensor y', 'retain_grad y', 'node_pre y', 'node_post y']

        """
        self._check_running(name)
        _check_tensor(tensor, name)
        self._recorder.watcher.add_tensor(tensor, name, ["tensor"])
        if retain_grad:
            self._recorder.watcher.add_grad(tensor, name)
        if nodes:
            self._recorder.watcher.add_node(tensor, name)
        return tensor

    def _check_running(self, name: str) -> None:
        if not self._buffer.running:
            raise RuntimeError(
                f"tensor {name!r} was passed to watch outside the with-block, where nothing is logged. "
                "Call watch inside the block"
            )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the events only, because hooks and the model cannot be pickled with them.
        if self._buffer.running:
            raise RuntimeError("this recording is still running. Copy or pickle it after the with-block")
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
            raise RuntimeError(
                "this recording was already used, and each one records one block. Call record(...) again"
            )
        modules, tensors, parameters = self._to_start.pop()
        try:
            self._recorder.start(modules.model, tensors, parameters)
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
            raise FullBackwardHookError(append_page(text, "full_backward_hook")) from error
        if error is None and not self._buffer.events and not self._recorder.ran:
            self._buffer.note(
                "No recorded layer ran inside the block. Call model(...) there, because model.forward(...) skips the "
                "hooks. A model that was compiled, traced or exported earlier ignores new hooks, so call the "
                "original instead."
            )


def _check_tensor(tensor: object, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor {name!r} is of type {type(tensor).__name__}. Pass a torch.Tensor")
    if not tensor.requires_grad:
        raise ValueError(
            f"tensor {name!r} does not require grad, so its tensor hooks never fire. Call {name}.requires_grad_() "
            "before you use it"
        )


def _check_kinds(kinds: str | Iterable[str] | None, parameters: bool) -> frozenset[str]:
    if kinds is None:
        return frozenset(KINDS) if parameters else frozenset(KINDS) - {"post_accumulate_grad"}
    try:
        chosen: list[Any] = [kinds] if isinstance(kinds, str) else list(kinds)
    except TypeError:
        chosen = [kinds]
    if not all(isinstance(kind, str) for kind in chosen):
        raise TypeError(f"kinds={kinds!r} is not a kind of hook. Pass names, such as kinds='forward'")
    for kind in chosen:
        if kind in ("backward", "register_backward_hook"):
            raise ValueError(
                "kind 'backward' is the legacy backward hook. torch deprecates it, because its grad_input can belong "
                "to the last operation only. Record 'full_backward' instead"
            )
        if kind not in KINDS and kind in GIVEN:
            raise ValueError(
                f"kinds= does not take {kind!r}, because these hooks are not on layers. Use Recording.watch "
                "in the block"
            )
        if kind not in KINDS:
            near = get_close_matches(str(kind), KINDS, 1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Pass some of {', '.join(KINDS)}"
            raise ValueError(f"hooks of kind {kind!r} do not exist. {hint}")
    if parameters and not set(chosen) & set(PARAMETER_KINDS):
        raise ValueError(
            f"parameters=True logs kinds 'tensor' and 'post_accumulate_grad', but kinds={kinds!r} has neither. Add one "
            "of them to kinds"
        )
    if "post_accumulate_grad" in chosen and not parameters:
        raise ValueError("kind 'post_accumulate_grad' fires on parameters only. Pass parameters=True as well")
    return frozenset(chosen)
