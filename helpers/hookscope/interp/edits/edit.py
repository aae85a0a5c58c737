"""Choose layers to change, run passes inside a with block, and list the changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from hookscope.captures import Capture
from hookscope.captures.early_stop import StopForward
from hookscope.compiler import note_traced_hooks, skip_our_hooks
from hookscope.interp.edits import operations
from hookscope.interp.edits.attention import heads_around, select_heads
from hookscope.interp.edits.batch_first import AxisOrderCheck, refuse_other_order
from hookscope.interp.edits.layer_edit import LayerEdit
from hookscope.interp.edits.layer_hooks import LayerHooks
from hookscope.interp.edits.pass_hooks import GradientHooks, PassHooks
from hookscope.interp.edits.report import (
    NotEditedError,
    check_hookable,
    diagnose,
    missing_gradients,
    notes_about,
    table_row,
)
from hookscope.interp.edits.selection import Selection
from hookscope.interp.edits.specification import EditSpec, Operation, Where, parse_options, tensors_of_capture
from hookscope.interp.edits.tokens import TokenSource, find_token_source
from hookscope.layers import FusedLayer, ModuleMap, Modules, Which, pick, refuse_unhookable
from hookscope.layers.modules import NEVER_CALLED
from hookscope.pictures import Result

__all__ = ["Edit", "edit"]


def edit(model: nn.Module) -> Edit:
    """Change the outputs, inputs or gradients of chosen layers inside a with block.

    `set`, `add`, `scale`, `map`, `mean` and `swap` take layers as `find_layers` does, a value, and the index `at` into
    the tensor, such as ``at[:, 3]``. The options are `to` ("output", "input" or "grad"), `part` (one of several
    tensors: an index, a key or a path), `calls` (from 1), `samples`, `heads`, and `positions` (tokens from 0 in the
    whole sequence, even with a KV cache).

    If an edit does not happen, you get an error. But if other passes were edited, a pass of a traced or earlier
    compiled copy goes unnoticed. Edits never write in place, so they refuse an input that is in a list, dict or object
    of the caller. If you edit gradients or use checkpoints, call `backward()` inside the block.

    Args:
        model: the model.

    Raises:
        ValueError: the model is compiled, sharded, or on several devices by `nn.DataParallel`.
        NotEditedError: at the end of the block, if an edit did not happen.

    Example:
        >>> from torch import nn
        >>> import torch
        >>> from hookscope import at
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
        >>> _ = nn.init.eye_(net[0].weight)
        >>> with edit(net) as e:
        ...     e.set("0", 10.0, at[:, 1])
        ...     e.scale("1", 0.5)
        ...     y = net(torch.tensor([[1.0, 2.0]]))
        >>> y
        tensor([[0.5000, 5.0000]], grad_fn=<MulBackward0>)

    """
    return Edit(model)


class Edit(Result):
    """The result of `edit`: a context manager whose methods change layers. `edit` explains their common options."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = Modules(model)
        self.title = type(model).__name__
        check_hookable({"": [model]})
        self._specs: list[tuple[EditSpec, nn.Module, str]] = []
        self._fused = ModuleMap[FusedLayer | None]()  # around each layer
        self._layers = ModuleMap[LayerHooks]()
        self._token_sources = ModuleMap[TokenSource]()
        self._hooks_of: dict[LayerEdit, LayerHooks] = {}
        self.layer_edits: list[LayerEdit] = []
        self._notes: dict[str, None] = {}
        self._passes = PassHooks(self._notes)
        self._gradients = GradientHooks()
        self._order: AxisOrderCheck | None = None
        self._handles = ExitStack()  # removes all hooks
        self._open = False

    # -- what to change -----------------------------------------------------------------------------------------

    def set(self, layer: Which, value: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Replace the values with a number or a tensor, which is broadcast to their shape."""
        self._add(layer, at, where, operations.set_values(value))

    def add(self, layer: Which, value: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Add a number or a tensor, for example a steering vector; it can require grad."""
        self._add(layer, at, where, operations.add(value))

    def scale(self, layer: Which, factor: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Multiply by a number or a tensor."""
        self._add(layer, at, where, operations.scale(factor))

    def swap(self, layer: Which, source: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Replace the values with those of another run: a tensor, or a `Capture`, which is used call by call.

        The capture must have kept these values: `inputs=True` for `to="input"` and `heads=`, `gradients=True` for
        `to="grad"`.
        """
        self._add(layer, at, where, lambda kept: operations.swap(source, kept), source)

    def map(self, layer: Which, function: Callable[[Tensor], Tensor], at: Any = ..., **where: Unpack[Where]) -> None:
        """Apply a function to a copy of the values, and use its result instead. Shape and dtype must stay the same."""
        self._add(layer, at, where, operations.map_values(function))

    def mean(self, layer: Which, source: Any = None, at: Any = ..., **where: Unpack[Where]) -> None:
        """Replace the values with their mean over the samples of the batch, or of all calls of a `Capture`."""
        self._add(layer, at, where, lambda kept: operations.take_mean(source, kept), source)

    @property
    def _number(self) -> int:
        """The number of the next edit."""
        return 1 + (self._specs[-1][0].number if self._specs else 0)

    def _add(
        self, layer: Which, at: Any, where: Where, operation: Operation | Callable[..., Operation], source: Any = None
    ) -> None:
        """Check the arguments and add the edit; `operation` can be a function of the tensors of a capture."""
        options = parse_options(where)
        chosen = self._pick(layer)
        if not isinstance(layer, (str, nn.Module)) or len(chosen) > 1:
            # A glob or a type takes what is called; a list of modules never is.
            chosen = {module: name for module, name in chosen.items() if not isinstance(module, NEVER_CALLED)} or chosen
        if options.heads is None:
            selection, end, found = Selection.of(at, options.samples), options.to, {}
        else:
            heads = [heads_around(self.modules, name, module, options.to) for module, name in chosen.items()]
            found, chosen = {each.module: each for each in heads}, {each.module: each.name for each in heads}
        number, added = self._number, []
        for module, name in chosen.items():
            if found:
                selection, end = select_heads(found[module], options.heads, at, options.samples), found[module].to
            if not isinstance(operation, Operation):
                kept = (
                    tensors_of_capture(source, name, end, options.path, number) if isinstance(source, Capture) else None
                )
            made = operation if isinstance(operation, Operation) else operation(kept)
            spec = EditSpec(number, made, selection, end, options.path, options.calls, options.positions)
            if spec.by_sample:
                refuse_other_order(self.modules, module, name, end, spec.path, spec.by_sample)
            if spec.positions is not None:
                refuse_other_order(self.modules, module, name, end, spec.path, "positions=")
            added.append((spec, module, name))
        self._take(added)

    def _pick(self, layer: Which) -> dict[nn.Module, str]:
        self.modules = self.modules.refresh()  # layers may have come into the model since
        if isinstance(layer, str) and (ways := self.modules.paths_to(layer)):
            module = ways[layer][-1]
            self._fused[module] = check_hookable(ways)
            return {module: layer}
        chosen = {module: name for name, module in pick(self.modules, layer, several="one call for each name").items()}
        self._fused.update({module: check_hookable(self.modules.paths_to(name)) for module, name in chosen.items()})
        return chosen

    def _take(self, added: list[tuple[EditSpec, nn.Module, str]]) -> None:
        """Store edits, and register their hooks if the block has begun."""
        for _, module, name in added:
            if isinstance(module, torch.jit.ScriptModule):  # all else was asked before
                refuse_unhookable(self.modules, {module: name}, "edit")
        self._specs += added
        if self._open:
            for one in added:
                self._start(*one)

    def _start(self, spec: EditSpec, module: nn.Module, name: str) -> None:
        layer_edit = LayerEdit(spec, name, notes=self._notes, late=self._passes.count)
        if spec.positions is not None:
            layer_edit.token_source = self._token_source(name)
        if spec.positions is not None or spec.by_sample:
            layer_edit.samples = self._layer(self.modules.model, "").count_samples()
            if self._order is None:
                self._order = AxisOrderCheck(
                    self.modules, layer_edit.samples, spec.by_sample or "positions=", notes=self._notes
                )
                self._order.register(self._handles)
        layer = self._hooks_of[layer_edit] = self._layer(module, name)
        self.layer_edits.append(layer_edit)
        layer.take(layer_edit, self._handles)

    def _token_source(self, name: str) -> TokenSource:
        outer, module, sure = find_token_source(self.modules, name)
        if module not in self._token_sources:
            token_source = self._token_sources[module] = TokenSource(outer, module, self._notes, sure)
            token_source.register(self._handles)
        return self._token_sources[module]

    def _layer(self, module: nn.Module, name: str) -> LayerHooks:
        if module not in self._layers:
            if module not in self._fused:  # it was not asked for, but the model, or what holds the heads of a layer
                self._fused[module] = check_hookable(self.modules.paths_to(name))
            layer = self._layers[module] = LayerHooks(
                name, module, self._fused[module], self._notes, self._gradients, self._passes
            )
            layer.register(self._handles, self._born)
        return self._layers[module]

    # -- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this edit is already open. Create another one with edit(...)")
        self._layers, self.layer_edits, self._notes = ModuleMap(), [], {}
        self._token_sources, self._hooks_of, self._order = ModuleMap(), {}, None
        self._passes = PassHooks(self._notes)
        skip_our_hooks()
        self._handles.callback(self._gradients.remove)
        try:
            first = self.modules.model.register_forward_pre_hook(self._passes.before)
            self._handles.callback(first.remove)
            self._handles.callback(self.modules.model.register_forward_hook(self._passes.after).remove)
            self._born = first.id
            self._open = True
            for one in self._specs:
                self._start(*one)
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        note_traced_hooks(error)
        if error is not None and not isinstance(error, StopForward):
            return
        reasons: list[str] = []
        for layer_edit in self.layer_edits:
            if not layer_edit.is_whole:
                reasons += diagnose(self.modules, layer_edit, self._hooks_of[layer_edit], self._passes.count)
        if reasons:
            if error is not None:  # the capture around this block would swallow it
                reasons = [f"{why} (capture(..., stop=True) ended the pass)" for why in reasons]
            raise NotEditedError(reasons)
        for layer in self._layers.values():
            if layer.seen > 1 or layer.checkpointed:
                self._notes.update(dict.fromkeys(notes_about(Modules(self.modules.model), layer)))
        for layer_edit in self.layer_edits:
            if layer_edit.hooked:
                self._notes.update(dict.fromkeys(missing_gradients(layer_edit)))
        if self._notes:
            warnings.warn("hookscope: " + "; ".join(self._notes), stacklevel=2)

    def _close(self) -> None:
        self._open = False
        self._handles.close()  # goes on if one of them raises

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[dict[str, object]]:
        """The table's rows: edit, layer, change, calls seen, calls changed, largest change of a value.

        With `positions=`, the column `positions` lists the edited positions of each call.
        """
        return [table_row(layer_edit, self._hooks_of[layer_edit]) for layer_edit in self.layer_edits]

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes on these edits."""
        same = [
            f"edit {row['edit']} changed nothing in layer {row['layer']!r}: all values were the same before"
            for row in self.rows
            if row["calls changed"] == 0 and row["largest change"] == 0
        ]
        waiting = ["nothing is edited until the with block begins"] if self._specs and not self.layer_edits else []
        return (*waiting, *self._notes, *same, *self._passes.earlier)

    @property
    def caption(self) -> str:
        """The number of edits."""
        count = len({spec.number for spec, _, _ in self._specs})
        return f"{self.title}: {count} edit{'' if count == 1 else 's'}"
