"""Write down in which order every kind of hook fired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import nn

from hookscope._log import Event, EventLog
from hookscope._recorder import KINDS, PARAMETER_KINDS, Recorder
from hookscope.layers import Which, find_layers, layer_names

__all__ = ["KINDS", "Event", "FullBackwardHookError", "Recording", "record"]

_TensorT = TypeVar("_TensorT", bound=torch.Tensor)


class FullBackwardHookError(RuntimeError):
    """torch's full backward hooks cannot work on this model; the error they led to is the cause."""


def record(
    model: nn.Module,
    *which: Which,
    kinds: Iterable[str] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    parameters: bool = False,
    max_events: int = 10_000,
) -> Recording:
    """Log every hook that fires inside a with-block, in the order in which torch fires it.

    hookscope registers a real torch hook of each kind on each chosen layer, and takes them off at the end of
    the block, however it ends. Hooks that were there before, global ones too, are logged by the name of their
    callable as each fires; so are those on parameters and tensors that are recorded. hookscope's own hooks are
    registered last and without `prepend`. So they fire last of their kind: the args of its `forward_pre` are
    what `forward` receives, the output of its `forward` is what every other forward hook has made of it.

    **What is logged** is what fires inside the block.

    - A hook registered inside the block is not logged; `Recording.notes` names it.
    - torch takes up the full backward hooks of a layer when it is called. A graph built before the block logs
      none of them. One built inside and run backward after it logs nothing, and adds a note.
    - Each backward pass logs: twice over one graph (`retain_graph`) logs twice, and in a double backward a
      layer logs again if the second pass runs through its output.
    - `torch.autograd.grad` logs what it fires: never `post_accumulate_grad`, and `full_backward` only of
      layers the gradient of whose input is computed.
    - A layer whose input does not require grad fires `full_backward` early, before anything inside it, with
      None for grad_input. A layer that returns neither a Tensor nor a tuple never fires it. torch warns of
      both; where that is about hookscope's hooks only, the warning is kept from view and becomes a note.

    **What recording changes.** The hooks return nothing, so outputs, buffers, random numbers, gradients and
    flags are what they are without. What is not is the doing of torch's full backward hooks, and does not
    happen with `kinds=("forward_pre", "forward")`:

    - What a layer receives and returns are views, new objects that must not be changed in place: see Raises.
    - A layer that uses an input several times adds up the gradients of these uses first. With further uses
      outside, the order of the sum, and with it the last bits, may differ.
    - An input that requires grad and is not used has a gradient of zeros, not None.
    - If a layer returns a tuple and only part of it is used, backward visits the rest as well and calls the
      hooks there with None for the gradient.

    Hooks of any kind keep `nn.TransformerEncoderLayer` from its fused path (in `eval()`, without gradients),
    in which nothing inside it fires: a note says so. While a legacy backward hook is on the model, or is
    global, hookscope registers no full backward hooks, which would change what that hook receives. Inside the
    block a model cannot be copied or saved, and a legacy backward hook cannot be registered.

    Args:
        model: the model to watch.
        *which: layers, as `find_layers` takes them. Without any, every module with a `forward`: the root,
            containers and leaves.
        kinds: some of `KINDS`; None is all, those of parameters if `parameters` is true. Tensors named
            with `tensors` or `Recording.watch` are logged in any case.
        tensors: name -> tensor that requires grad, to log when its tensor hook fires.
        parameters: log the hooks of the parameters of the chosen layers too, kinds `tensor` and
            `post_accumulate_grad`. Those that do not require grad are left out.
        max_events: log no more than this many and say so in `notes`.

    Returns:
        A `Recording` to be used once as a context manager.

    Raises:
        TypeError: `model` is not a module, or something in `tensors` is not a tensor.
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
    names = layer_names(model)
    if which:
        layers = {module: name for name, module in find_layers(model, *which).items()}
    else:  # what has no forward, such as nn.ModuleList, is never called
        layers = {module: name for module, name in names.items() if _has_forward(module)}
    for module, name in names.items():
        what = f"layer {name!r}" if name else "the model"
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(f"{what} is compiled and would not notice new hooks; record it uncompiled")
        if module in layers and isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{what} is TorchScript, which takes no hooks; record the original, or leave it out")
    for name, tensor in (tensors or {}).items():
        _check_tensor(tensor, name)
    if max_events < 1:
        raise ValueError(f"max_events must be 1 or more, not {max_events}")
    chosen = _check_kinds(kinds, parameters)
    return Recording(model, layers, chosen, dict(tensors or {}), parameters, max_events)


class Recording(EventLog):
    """What `record` returns: a context manager, and afterwards the log of what fired inside it.

    Shows itself as a table with the `notes` below. `record` says what is in it and what is not.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: dict[nn.Module, str],
        kinds: frozenset[str],
        tensors: Mapping[str, torch.Tensor],
        parameters: bool,
        max_events: int,
    ) -> None:
        self._recorder = Recorder(layers, kinds, max_events)
        super().__init__(type(model).__name__, kinds, self._recorder.events, self._recorder.notes)
        self._names = tuple(layers.values())
        self._to_start = [(model, dict(tensors), parameters)]

    @property
    def uncalled(self) -> tuple[str, ...]:
        """Names of the chosen layers that were not called inside the block."""
        return tuple(name for name in self._names if name not in self._recorder.ran)

    def watch(self, tensor: _TensorT, name: str) -> _TensorT:
        """Log when the tensor hook of `tensor` fires.

        Args:
            tensor: a tensor that requires grad, usually made inside the block.
            name: what its events are called.

        Returns:
            `tensor` itself: `y = recording.watch(model(x), "y")`.

        Raises:
            RuntimeError: called outside the with-block.
            TypeError: `tensor` is not a tensor.
            ValueError: `tensor` does not require grad.

        """
        if not self._recorder.running:
            raise RuntimeError(f"tensor {name!r} is watched outside the with-block; watch it inside")
        _check_tensor(tensor, name)
        self._recorder.add_tensor(tensor, name, ["tensor"])
        return tensor

    def __enter__(self) -> Self:
        if not self._to_start:
            raise RuntimeError("a recording is made once; call record(...) again for another one")
        try:
            self._recorder.start(*self._to_start.pop())
        except BaseException:
            self._recorder.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.stop()
        if not isinstance(error, FullBackwardHookError) and (text := self._recorder.explain(error)):
            raise FullBackwardHookError(text) from error


def _has_forward(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is not nn.Module.forward


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
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in chosen:
        if kind in ("backward", "register_backward_hook"):
            raise ValueError(
                "kind 'backward' is the legacy backward hook, whose grad_input is that of the last operation "
                "only: torch deprecates it; record 'full_backward'"
            )
        if kind not in KINDS:
            near = get_close_matches(str(kind), KINDS, 1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"kinds are {', '.join(KINDS)}"
            raise ValueError(f"no kind {kind!r}; {hint}")
    if parameters and not set(chosen) & set(PARAMETER_KINDS):
        raise ValueError("parameters=True needs kind 'tensor' or 'post_accumulate_grad' in kinds")
    if "post_accumulate_grad" in chosen and not parameters:
        raise ValueError("kind 'post_accumulate_grad' is one of parameters; add parameters=True")
    return frozenset(chosen)
