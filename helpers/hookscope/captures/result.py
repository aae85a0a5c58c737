"""What a capture kept, by layer and call, and its with block."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from torch import nn

from hookscope.captures.call import Call, NotCapturedError, Wanted, why_uncalled
from hookscope.captures.early_stop import StopForward
from hookscope.captures.error_notes import error_notes
from hookscope.captures.layer import Layer
from hookscope.captures.recorder import PassRecorder
from hookscope.captures.unregistered import unregistered_modules
from hookscope.layers import LayerNotFoundError, ModuleMap, Modules, find_fused
from hookscope.layers.suggestions import not_found
from hookscope.pictures import Result
from hookscope.pictures.words import count_text

__all__ = ["Capture"]


class Capture(Result, Mapping[str, Layer]):
    """What `capture` returns: a context manager, and a mapping from layer names to what was kept.

    Iterating gives the layers that were called, in the order of their first calls. If a layer was called several
    times, you can name the call: ``seen["relu#2"]``. You can also pass the module: ``seen[net.relu]``.

    A copied or pickled capture has no model: you can read it, but not enter it. A capture keeps its model alive.

    Attributes:
        title: class name of the model.
        stopped: label of the call after which `stop=True` ended the pass; "" if the pass was not ended.

    """

    def __init__(self, modules: Modules, layers: Mapping[nn.Module, str], wanted: Wanted) -> None:
        self.modules, self._model = modules, modules.model
        self.title = type(modules.model).__name__
        self.stopped = ""
        self._layers = layers = ModuleMap(layers)
        self._wanted = wanted
        self._open = False
        self._uncalled: dict[str, str] = {}  # of a copy, which has no model
        self._fused = find_fused(modules, layers)
        self._entered = False
        self._record = PassRecorder(modules, layers, wanted, self._fused)

    # -- reading ------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str | nn.Module) -> Layer:
        by_layer = self._record.by_layer()
        if isinstance(name, nn.Module):
            name = self._name_of(name)
        if not isinstance(name, str):
            raise TypeError(f"a capture is indexed by a layer name or a module, not by {type(name).__name__}")
        if name in by_layer:
            return Layer(name, tuple(by_layer[name]))
        layer, mark, number = str(name).rpartition("#")
        if mark and layer in by_layer and number.isdecimal():
            calls = by_layer[layer]
            if not 1 <= int(number) <= len(calls):
                raise NotCapturedError(f"layer {layer!r} has no call {number}: it was called {len(calls)} times")
            return Layer(name, (calls[int(number) - 1],))
        if (first := self._first_name(str(name))) in by_layer:
            return Layer(str(name), tuple(by_layer[first]))
        if hasattr(self, "_model") and not self._entered and self.modules.find(str(name)) is not None:
            raise NotCapturedError(f"layer {name!r} was not captured: {_NEVER_RAN}")
        if name in self._layers.values():
            raise NotCapturedError(f"layer {name!r} {self.uncalled.get(name, 'was not called')}")
        if hasattr(self, "_model") and self.modules.find(str(name)) is not None:
            raise LayerNotFoundError(f"layer {name!r} was not chosen. Add it: capture(model, ..., {name!r})", str(name))
        raise not_found(self._layers.values(), name, f"no layer {name!r} in this capture")

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.by_layer())

    def __len__(self) -> int:
        return len(self._record.by_layer())

    def __contains__(self, name: object) -> bool:
        if isinstance(name, nn.Module):
            name = self._layers.get(name)
        by_layer = self._record.by_layer()
        return name in by_layer or self._first_name(str(name)) in by_layer

    def _first_name(self, name: str) -> str | None:
        """Return the name under which a layer is kept that has several."""
        module = self.modules.find(name) if hasattr(self, "_model") else None
        return None if module is None else self._layers.get(module)

    def _name_of(self, layer: nn.Module) -> str:
        if not hasattr(self, "_model"):
            raise LayerNotFoundError("this capture is a copy without its model. Pass the name of a layer")
        name: str | None = self._layers.get(layer) or self.modules.names.get(layer)
        if name is None:
            raise LayerNotFoundError(f"this {type(layer).__name__} is not in the model that was captured")
        return name

    def keys(self) -> KeysView[str]:
        """Return the names of the layers that were called."""
        return dict.fromkeys(self).keys()

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def get(self, name: str | nn.Module, default: Any = None) -> Any:
        """Return the layer of that name, or `default` if it was not called."""
        return self[name] if name in self else default  # noqa: SIM401 (self[name] is an error with a reason)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of every chosen layer, in the order in which they began."""
        return tuple(self._record.order)

    @property
    def order(self) -> list[str]:
        """The names of the layers in the order in which they were called, one per call."""
        return [call.layer for call in self._record.order]

    @property
    def uncalled(self) -> dict[str, str]:
        """The chosen layers that were not called, each with the probable reason."""
        if not hasattr(self, "_model"):
            return dict(self._uncalled)
        if not self._entered:
            return dict.fromkeys(self._layers.values(), f"was not captured: {_NEVER_RAN}")
        if not self._record.ran:
            why = (
                "was not called, and neither was the model. Call model(...) inside the with block. Hooks do not run "
                "with model.forward(...), in code that was compiled earlier, or in a traced or exported copy"
            )
            return dict.fromkeys(self._layers.values(), why)
        called = self._record.by_layer()
        there = Modules(self._model).names  # those of now
        return {
            name: why_uncalled(module, still_there=module in there)
            for module, name in self._layers.items()
            if name not in called
        }

    @property
    def overwritten(self) -> dict[str, str]:
        """The outputs that were overwritten after their layer returned them, each with what overwrote it.

        The keys are labels of calls. Writes that torch does not count are not listed: those through `.data`, a NumPy
        array or DLPack, and those to tensors from `torch.inference_mode`.
        """
        return {call.label: call.overwritten_by for call in self._record.order if call.overwritten_by}

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Further notes on this capture."""
        notes = dict(self._record.notes)
        if self._record.unwatched:
            notes["torch does not count writes in inference mode, so .overwritten does not list them"] = None
        # Looked for when somebody reads, so that the pass does not wait for it.
        if hasattr(self, "_model") and len(self) and self.modules.leaves.keys() <= set(self._layers.values()):
            notes |= dict.fromkeys(unregistered_modules(Modules(self._model)))
        return tuple(notes)

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each call."""
        several = len({call.by for call in self._record.order}) > 1
        return [
            {
                "call": call.label,
                "type": call.type,
                **({"thread or task": call.by} if several else {}),
                "output": call._shapes(),
                "overwritten later by": call.overwritten_by,
            }
            for call in self._record.order
        ]

    @property
    def caption(self) -> str:
        """The number of calls and layers, and how many of the chosen layers were not called."""
        if hasattr(self, "_model") and not self._entered:
            return f"{self.title}: nothing was captured, because {_NEVER_RAN}"
        uncalled = len(self.uncalled)
        were = "was" if uncalled == 1 else "were"
        missing = f"; {uncalled} of the chosen layers {were} not called, see .uncalled" if uncalled else ""
        stopped = f"; the pass was ended after {self.stopped}" if self.stopped else ""
        counts = f"{count_text(len(self._record.order), 'call')} of {count_text(len(self), 'layer')}"
        return f"{self.title}: {counts}{stopped}{missing}"

    # -- capturing ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this capture is already open. Create another one with capture(...)")
        self._need_model()
        self.stopped = ""
        self._record = PassRecorder(self.modules, self._layers, self._wanted, self._fused)
        self._open = self._entered = True
        try:
            self._record.register(self)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:  # not bool, for which type checkers take every block to swallow
        self._close()
        early_stop = self._record.early_stop
        self.stopped = early_stop.stopped if early_stop is not None else ""
        ended = isinstance(error, StopForward)
        if isinstance(error, StopForward) and error.early_stop is not early_stop:
            return None  # that of a block around this one
        if error is not None and not ended:
            for note in error_notes(error, self._model, self._record.order, self._record.last):
                error.add_note(note)
            error.capture = self  # type: ignore[attr-defined]
        elif self._record.notes:
            warnings.warn("hookscope: " + "; ".join(self._record.notes), stacklevel=2)
        return ended

    def start(self) -> Self:
        """Start capturing without a with block, until `stop()`, for example if the pass runs in another notebook cell.

        A model has at most one started capture: starting another one stops the first. So if you run a cell twice,
        the new capture replaces the old one, and hooks do not pile up.

        Example:
            >>> import torch, hookscope
            >>> net = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
            >>> seen = hookscope.capture(net).start()
            >>> seen = hookscope.capture(net).start()
            >>> _ = net(torch.ones(1, 2))
            >>> seen.stop().order
            ['0', '1']

        """
        if self._wanted.stop:
            raise ValueError(
                "start() does not work with stop=True, which needs a with block. Write `with capture(...) as seen:`"
            )
        other = _started.get(self._model, lambda: None)()
        if other is not None and other is not self:
            other.stop()
        _started[self._model] = weakref.ref(self)  # before it has hooks, so that starting another takes them off
        self.__enter__()
        return self

    def stop(self) -> Self:
        """Remove the hooks of a started capture; if it is already stopped, do nothing."""
        if self._open:
            self.__exit__(None, None, None)
        return self

    def _close(self) -> None:
        self._open = False
        self._record.remove()

    def __getstate__(self) -> dict[str, Any]:
        # What was kept, to be read elsewhere, without the model.
        if self._open:
            raise RuntimeError("this capture is open. Copy or pickle it after the with block")
        self._record.notes.update(dict.fromkeys(self.notes))
        state = {name: value for name, value in vars(self).items() if name not in _OF_THE_MODEL}
        return state | {"_layers": self._names(), "_uncalled": self.uncalled, "_record": self._record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THE_MODEL:
            raise AttributeError(_NO_MODEL)
        is_layer = hasattr(self, "_model") and self.modules.find(name) is not None
        hint = f"; for the layer, write [{name!r}]" if is_layer else ""
        raise AttributeError(f"a Capture has no attribute {name!r}{hint}")

    def _need_model(self) -> None:
        if not hasattr(self, "_model"):
            raise RuntimeError(_NO_MODEL)

    def _names(self) -> dict[Any, str]:
        return dict(enumerate(self._layers.values()))

    def like(self, **changed: Any) -> Capture:
        """Create a capture of the same layers with other options; internal to this package."""
        return Capture(self.modules, self._layers, replace(self._wanted, **changed))


_NEVER_RAN = "the with block of this capture never ran. Call the model inside it"
_NO_MODEL = "this capture is a copy without its model, so you can only read it. Create a new one with capture(...)"
_OF_THE_MODEL = ("modules", "_model", "_layers", "_fused", "_record")
# The one capture of each model that `Capture.start` has started.
_started: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Capture]] = weakref.WeakKeyDictionary()
