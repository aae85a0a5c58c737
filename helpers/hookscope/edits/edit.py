"""Say which layers to change, run passes inside a with-block, and see what was changed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from html import escape
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookscope.captures import Capture, NotCapturedError
from hookscope.edits import changes
from hookscope.edits.aim import Aim
from hookscope.edits.changes import Change
from hookscope.edits.heads import columns_of, heads_around
from hookscope.edits.hooks import Layer, Rule, Target
from hookscope.edits.parts import Part, path_of
from hookscope.edits.reasons import NotEditedError, why_not_called
from hookscope.layers import FusedLayer, Modules, Which, fused_around, pick, refuse_unhookable
from hookscope.pictures import Table

__all__ = ["Edit", "edit"]


class Where(TypedDict, total=False):
    """Which tensor, in which calls; see `edit`."""

    to: Literal["output", "input", "grad"]
    part: Part | None
    calls: int | Iterable[int] | None
    rows: int | slice | Iterable[int] | None
    heads: int | Iterable[int] | None


def edit(model: nn.Module) -> Edit:
    """Change what flows through chosen layers, inside a with-block.

    The methods of what this returns say what to change; they take effect in the order written. Each begins with the
    layers, as `find_layers` takes one item, and the value; then come

    - `at`: which values of the tensor, as an index: ``at[:, 3]``; all of them without it;
    - `to`: `"output"`, what the layer returns; `"input"`, what it is called with; or `"grad"`, the gradient with
      respect to its output;
    - `part`: which tensor, where there are several: an index, key, attribute or keyword, or a path, ``(1, "h")``;
    - `calls`: which calls of the layer, counted from 1 inside the block; all of them without it;
    - `rows`: which samples of the batch;
    - `heads`: which heads of an attention layer, in what goes into its output projection.

    Nothing is written to in place: an edit makes a tensor of its own, so that what shares memory with the layer's stays
    as it is, and so does every value outside the aim, bit for bit. Gradients flow through edits, to values that require
    them, too.

    **An edit that did not happen is an error**: leaving the block raises `NotEditedError` if a layer was not called, a
    call or part or gradient never came, and says why that may be. An exception from inside the block goes first.

    Hooks come off however the block ends. So run `backward()` inside the block where there are edits of gradients or
    checkpoints, which run the layers again. An edit comes after the hooks that were on its layer before the block. A
    capture that is opened inside the block sees edited values, one around it sees the layer's own.

    Args:
        model: the model.

    Returns:
        An `Edit`: a context manager, and afterwards a table of calls seen, calls changed, and by how much. It can be
        entered again; it then counts afresh.

    Raises:
        TypeError: `model` is not a module.
        ValueError: `model` is compiled or TorchScript.

    Example:
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
        >>> e
        Sequential: 2 edits
        edit  layer  change             calls seen  calls changed  largest change
        ----  -----  -----------------  ----------  -------------  --------------
           1  0      set 10.0 at[:, 1]           1              1               8
           2  1      scale 0.5                   1              1               5

    """
    return Edit(model)


class Edit:
    """What `edit` returns: a context manager whose methods say what to change; see there for what they all take."""

    def __init__(self, model: nn.Module) -> None:
        # The first three are for the inside of this package, too.
        self.modules = Modules(model)
        self.title = type(model).__name__
        refuse_unhookable(self.modules, (), "edit")
        self._rules: list[tuple[Rule, dict[nn.Module, str]]] = []
        self._layers: dict[nn.Module, Layer] = {}
        self.targets: list[Target] = []
        self._handles: list[Any] = []
        self._notes: dict[str, None] = {}
        self._open = False
        self._born = 0

    # -- what to change -----------------------------------------------------------------------------------------

    def set(self, layer: Which, value: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Put a number or a tensor in the place of the values; a tensor is broadcast, but nothing grows by it."""
        self._add(layer, at, where, lambda *_: changes.setting(value))

    def add(self, layer: Which, value: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Add a number or a tensor: steering, by a vector that may require grad."""
        self._add(layer, at, where, lambda *_: changes.adding(value))

    def scale(self, layer: Which, factor: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Multiply by a number or a tensor."""
        self._add(layer, at, where, lambda *_: changes.scaling(factor))

    def swap(self, layer: Which, source: Any, at: Any = ..., **where: Unpack[Where]) -> None:
        """Take the values from another run: a `Capture`, of which each call gives those for the same call, or a tensor.

        A capture has to have what is swapped: `inputs=True` for `to="input"` and `heads=`, `gradients=True` for
        `to="grad"`.
        """
        self._add(layer, at, where, lambda aim, kept: changes.swapping(source, aim, kept), source)

    def map(self, layer: Which, function: Callable[[Tensor], Tensor], at: Any = ..., **where: Unpack[Where]) -> None:
        """Call a function with a copy of the values; what it returns takes their place, of the same shape and dtype."""
        self._add(layer, at, where, lambda *_: changes.mapping(function))

    def mask(self, layer: Which, keep: Tensor, at: Any = ..., *, other: Any = 0, **where: Unpack[Where]) -> None:
        """Keep the values where `keep` is true, and put `other` elsewhere; numbers from 0 to 1 mix both."""
        self._add(layer, at, where, lambda *_: changes.masking(keep, other))

    def noise(self, layer: Which, std: float, at: Any = ..., *, seed: int = 0, **where: Unpack[Where]) -> None:
        """Add Gaussian noise, which `seed` and the number of the call decide; torch's generators stay as they are."""
        self._add(layer, at, where, lambda *_: changes.noising(std, seed))

    def project_out(self, layer: Which, direction: Tensor, at: Any = ..., **where: Unpack[Where]) -> None:
        """Take away what points along a direction, a vector as long as the last axis."""
        self._add(layer, at, where, lambda *_: changes.projecting(direction))

    def mean(self, layer: Which, source: Any = None, at: Any = ..., **where: Unpack[Where]) -> None:
        """Put the mean over samples in the place of the values: those of the batch, or of all calls of a `Capture`."""
        self._add(layer, at, where, lambda aim, kept: changes.meaning(source, aim, kept), source)

    def _add(self, layer: Which, at: Any, where: Where, make: Callable[..., Change], source: Any = None) -> None:
        """Check all that was given, and put hooks on if the block has begun."""
        if unknown := set(where) - set(Where.__annotations__):
            raise TypeError(f"no option {unknown.pop()!r}; there are {', '.join(Where.__annotations__)}")
        to, path, calls = where.get("to", "output"), path_of(where.get("part")), _calls(where.get("calls"))
        if to not in ("output", "input", "grad"):
            raise ValueError(f"to={to!r}: give 'output', 'input' or 'grad'")
        chosen = {module: name for name, module in pick(self.modules, layer).items()}
        if not isinstance(layer, (str, nn.Module)) or len(chosen) > 1:
            # A glob or a type takes what is called; a list of modules never is.
            lists = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
            chosen = {module: name for module, name in chosen.items() if not isinstance(module, lists)} or chosen
        columns: dict[nn.Module, list[int] | None] = dict.fromkeys(chosen)
        if (heads := where.get("heads")) is not None:
            found = [heads_around(self.modules, name, module, to) for module, name in chosen.items()]
            chosen = {each.module: each.name for each in found}
            columns = {each.module: columns_of(each, heads) for each in found}
            to = found[0].to
        refuse_unhookable(self.modules, chosen, "edit")
        number = 1 + max((rule.number for rule, _ in self._rules), default=0)
        added = []
        for module, name in chosen.items():
            aim = Aim.of(at, where.get("rows"), columns[module])
            if heads is not None:
                aim = Aim(aim.steps, f"{aim.text} heads={heads!r}")
            kept = _kept(source, name, to, path, number) if isinstance(source, Capture) else None
            added.append((Rule(number, make(aim, kept), aim, to, path, calls), {module: name}))
        self._rules += added
        if self._open:
            for rule, one in added:
                self._aim(rule, one)

    def _aim(self, rule: Rule, chosen: dict[nn.Module, str]) -> None:
        for module, name in chosen.items():
            target = Target(rule, name)
            self.targets.append(target)
            self._layer(module, name).targets[rule.to].append(target)
            if others := [other for other in self._all_names[module] if other != name]:
                self._notes[f"layer {name!r} is also {', '.join(map(repr, others))}: calls under each name count"] = (
                    None
                )

    @cached_property
    def _all_names(self) -> dict[nn.Module, list[str]]:
        names: dict[nn.Module, list[str]] = {}
        for name, module in self.modules.model.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        return names

    @cached_property
    def _fused(self) -> dict[nn.Module, FusedLayer]:
        return fused_around(self.modules, self.modules.names)

    def _layer(self, module: nn.Module, name: str) -> Layer:
        if module not in self._layers:
            layer = self._layers[module] = Layer(name, module, self._fused.get(module), self._notes, self._handles)
            layer.put_on(self._born)
        return self._layers[module]

    # -- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this edit is already open; make another one with edit(...)")
        self._layers, self.targets, self._handles, self._notes = {}, [], [], {}
        self._born = RemovableHandle.next_id
        self._open = True
        try:
            self._layer(self.modules.model, "")  # how often the model runs says why an edit does not
            for rule, chosen in self._rules:
                self._aim(rule, chosen)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if error is not None:
            return
        reasons = [reason for target in self.targets for reason in self._why_not(target)]
        if reasons:
            raise NotEditedError(reasons)
        for layer in self._layers.values():
            if layer.checkpointed and not layer.again and any(layer.targets.values()):
                self._notes[
                    f"layer {layer.name!r} ran in a checkpoint, which runs it again in backward(): outside the block "
                    "that is without the edit, so run backward() inside"
                ] = None
        if self._notes:
            warnings.warn("hookscope: " + "; ".join(self._notes), stacklevel=2)

    def _close(self) -> None:
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _why_not(self, target: Target) -> Iterable[str]:
        """Say what is missing of one edit on one layer."""
        rule = target.rule
        module, layer = next((m, each) for m, each in self._layers.items() if target in each.targets[rule.to])
        what = f"edit {rule.number}, {rule.text}: layer {target.layer!r}"
        times = "once" if layer.seen == 1 else f"{layer.seen} times"
        if not layer.seen:
            runs = self._layers[self.modules.model].seen
            yield f"{what} {why_not_called(self.modules, target.layer, module, runs)}"
            return
        absent = sorted((rule.calls or set()) - set(range(1, layer.seen + 1)))
        if absent:
            yield f"{what} was called {times}, so call {', '.join(map(str, absent))} never came"
        elif target.done and target.done >= (rule.calls or set()):
            return
        elif target.missed:
            came = "was called with" if rule.to == "input" else "returned"
            yield f"{what} was called {times}, but the part never came: it {came} {target.missed}"
        elif rule.to == "grad" and target.hooked:
            yield (
                f"{what} was called {times}, but no gradient came: backward() was not run inside the block, or not "
                "from what depends on it, or the output was overwritten in place"
            )
        elif rule.to == "grad":
            yield f"{what} was called {times}, but what it returned does not require grad, or it ran under no_grad"
        else:
            yield f"{what} was called {times}, but raised an exception, which the model caught"

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[dict[str, object]]:
        """The table's rows: edit, layer, change, calls seen, calls changed, largest change of a value."""
        seen = {
            id(target): layer.seen
            for layer in self._layers.values()
            for group in layer.targets.values()
            for target in group
        }
        return [
            {
                "edit": target.rule.number,
                "layer": target.layer or "(root)",
                "change": target.rule.text,
                "calls seen": seen[id(target)],
                **_sizes(target),
            }
            for target in self.targets
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to know about these edits."""
        same = [
            f"edit {row['edit']} changed nothing of layer {row['layer']!r}: every value was so before"
            for row in self.rows
            if row["calls changed"] == 0 and row["largest change"] == 0
        ]
        return (*self._notes, *same)

    def _table(self) -> Table:
        count = len({rule.number for rule, _ in self._rules})
        return Table(self.rows, f"{self.title}: {count} edit{'' if count == 1 else 's'}")

    def __repr__(self) -> str:
        return "\n".join([repr(self._table()), *(f"note: {note}" for note in self.notes)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        notes = "".join(f"\n<p>note: {escape(note)}</p>" for note in self.notes)
        return {"text/plain": repr(self), "text/html": self._table().to_html() + notes}


def _sizes(target: Target) -> dict[str, object]:
    measured = [size for size in target.sizes if size is not None]
    if len(measured) < len(target.sizes):
        return {"calls changed": len(target.sizes), "largest change": "not measured"}
    numbers = [max(abs(float(end)) for end in size) for size in measured]
    largest = math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)
    return {"calls changed": sum(number != 0 for number in numbers), "largest change": largest if numbers else ""}


def _calls(calls: Any) -> frozenset[int] | None:
    if calls is None:
        return None
    given = [calls] if isinstance(calls, int) else calls
    try:
        numbers = frozenset(given)
    except TypeError:
        raise TypeError(f"calls={calls!r}: give the numbers of calls, such as calls={{2}}") from None
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        raise ValueError(f"calls={calls!r}: give the numbers of calls, counted from 1, such as calls={{2}}")
    return numbers


def _kept(source: Capture, name: str, to: str, path: tuple[int | str, ...] | None, number: int) -> list[Tensor]:
    """Take what an edit of this kind changes from each call that a capture has; raise now, and not in the pass."""
    read: dict[str, Callable[[Any], Any]] = {
        "input": lambda call: {**dict(enumerate(call.args)), **call.kwargs},
        "grad": lambda call: call.grad,
        "output": lambda call: call.output,
    }
    try:
        return [changes.chosen(read[to](call), path, f"edit {number} of layer {name!r}") for call in source[name].calls]
    except (LookupError, NotCapturedError) as error:
        kept = {"input": ", inputs=True", "grad": ", gradients=True", "output": ""}[to]
        error.add_note(f"hookscope: edit {number} takes from capture(model, {name!r}{kept})")
        raise
