"""Find the hooks on a model, an optimizer or a tensor, show them as a table, and remove all or only new ones.

A census reads the dicts in which torch stores hooks, such as `_forward_hooks`. Hooks that torch stores elsewhere:
https://hookscope.github.io/hookscope/limits/census.html
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import ModuleType
from typing import Any, overload

import torch.nn.modules.module as global_module_hooks
import torch.optim.optimizer as global_optimizer_hooks
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.modules.module import _WrappedHook
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookscope.censuses.entry import KINDS, HookEntry, identify, list_hooks, make_weakref
from hookscope.layers import Modules
from hookscope.layers.suggestions import not_found
from hookscope.pictures import Result

__all__ = ["KINDS", "Census", "HookEntry", "census", "removing_new_hooks"]


class Census(Result, Sequence[HookEntry]):
    """The hooks that `census` found, in the order of the layers. It is a snapshot, so later changes do not appear."""

    def __init__(
        self,
        entries: Sequence[HookEntry],
        owners: Sequence[str],
        layers: frozenset[str],
        replaced: Sequence[str] = (),
    ) -> None:
        self._entries = tuple(entries)
        self._owners = tuple(owners)
        self._layers = layers
        self._replaced = tuple(replaced)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The layers whose `forward` was replaced, for example by accelerate. This changes a layer without a hook."""
        return self._replaced

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> HookEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Census: ...
    def __getitem__(self, index: int | slice) -> HookEntry | Census:
        if isinstance(index, slice):
            return Census(self._entries[index], self._owners, self._layers)
        return self._entries[index]

    def by_kind(self) -> dict[str, int]:
        """Count the hooks of each kind, in the order of `KINDS`."""
        count = Counter(entry.kind for entry in self)
        return {kind: count[kind] for kind in KINDS if kind in count}

    def filter(self, kind: str | None = None, layer: str | None = None) -> Census:
        """Return the hooks of one kind, of one layer, or both.

        Args:
            kind: one of `KINDS`.
            layer: the name of the layer, `""` for the root. This includes hooks on its parameters and buffers, but not
                those of its children.

        Raises:
            ValueError: there is no such kind.
            LayerNotFoundError: the models of this census have no such layer.

        """
        if kind is not None and kind not in KINDS:
            near = get_close_matches(kind, KINDS) or KINDS
            raise ValueError(f"there is no kind of hook {kind!r}. Pass one of {', '.join(near)}")
        if layer is not None and layer not in self._layers:
            raise not_found(self._layers, layer, f"no layer {layer!r} in this census")
        kept = [e for e in self if kind in (None, e.kind) and layer in (None, e.layer)]
        return Census(kept, self._owners, self._layers)

    def assert_none(self, message: str = "", *, include_torch: bool = False) -> None:
        """Raise an error if there are hooks. The message lists them and where they were defined.

        Args:
            message: the first words of the error message.
            include_torch: also count hooks that torch has registered itself.

        Raises:
            AssertionError: there are hooks.

        """
        left = [entry for entry in self if include_torch or not entry.by_torch]
        if not left:
            return
        shown = [f"  {entry.describe(self._where(entry))}" for entry in left[:20]]
        more = [f"  and {len(left) - 20} more"] if len(left) > 20 else []
        out = (
            "To remove one, call remove() on the handle that register_… returned. To remove all: census(…).remove_all()"
        )
        head = f"{message}: " if message else ""
        raise AssertionError("\n".join([head + self._count_hooks(left), *shown, *more, out]))

    def remove_all(self, kind: str | None = None, layer: str | None = None, include_torch: bool = False) -> int:
        """Remove the hooks in this census and return their number. Hooks that were registered later stay.

        Unlike `handle.remove()`, it also resets the flag that makes torch refuse full backward hooks on a module that
        once had a legacy one. Some hooks still fire afterward:
        https://hookscope.github.io/hookscope/limits/census.html

        Args:
            kind: remove only hooks of this kind.
            layer: remove only hooks of this layer.
            include_torch: also remove hooks that torch has registered itself. A pruned or lazy module no longer works
                without them.

        Raises:
            ValueError: there is no such kind.
            LayerNotFoundError: the models of this census have no such layer.

        """
        chosen = [e for e in self.filter(kind, layer) if include_torch or not e.by_torch]
        return sum(entry._remove() for entry in chosen)

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each hook."""
        return [
            {
                "kind": entry.kind_and_options,
                "layer": self._where(entry),
                "callable": entry.callable + (" (torch's own)" if entry.by_torch else ""),
                "location": entry.location,
            }
            for entry in self
        ]

    @property
    def caption(self) -> str:
        """The number of hooks, and the objects that they are on."""
        return self._count_hooks(self)

    def _where(self, entry: HookEntry) -> str:
        several = len(self._owners) > 1 and entry.layer is not None
        return f"{entry.owner}: {entry.where}" if several else entry.where

    def _count_hooks(self, entries: Sequence[HookEntry]) -> str:
        everywhere = sum(entry.kind.startswith("global") for entry in entries)
        parts = [f"{_hooks(len(entries) - everywhere, 'hook')} on {', '.join(self._owners)}"] if self._owners else []
        parts += [_hooks(everywhere, "global hook")] if everywhere or not parts else []
        return " and ".join(parts)


def _hooks(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def census(*targets: nn.Module | Optimizer | Tensor, include_global: bool = True) -> Census:
    """List the hooks that are on models, optimizers and tensors right now.

    Torch hides a few hooks from Python: https://hookscope.github.io/hookscope/limits/census.html

    Args:
        *targets: models, optimizers and tensors. For a model, its modules, parameters and buffers are searched.
        include_global: also list global hooks, which fire for every module or optimizer.

    Raises:
        TypeError: a target is of another type.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> handle = net[1].register_forward_hook(print)
        >>> census(net)
        1 hook on Sequential
        kind     layer  callable  location
        -------  -----  --------  --------
        forward  1      print     builtin
        >>> census(net).remove_all()
        1
        >>> census(net)
        0 hooks on Sequential

    """
    entries: list[HookEntry] = []
    owners: list[str] = []
    layers: set[str] = set()
    replaced: list[str] = []
    seen: dict[int, object] = {}  # keeps the objects alive, so that IDs stay unique

    def add(holder: object, **place: Any) -> None:
        if id(holder) not in seen:
            seen[id(holder)] = holder
            entries.extend(list_hooks(holder, **place))

    for target in targets:
        if isinstance(target, type) or not isinstance(target, (nn.Module, Optimizer, Tensor)):
            what = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
            star = ". Unpack several with a star: census(*models)" if what in ("list", "tuple") else ""
            raise TypeError(f"census got {what}. Pass models, optimizers and tensors{star}")
        name = type(target).__name__
        taken = sum(owner.split(" #")[0] == name for owner in owners)
        owners.append(f"{name} #{taken + 1}" if taken else name)
        if not isinstance(target, nn.Module):
            add(target, owner=owners[-1])
            continue
        for module, layer in Modules(target).names.items():
            layers.add(layer)
            if "forward" in vars(module) and not isinstance(module, ScriptModule):
                name, location, _ = identify(vars(module)["forward"])
                title = f"layer {layer or '(root)'} ({type(module).__name__})"
                replaced.append(f"The forward of {title} was replaced by {name} ({location}), which is not a hook.")
            add(module, layer=layer, owner=owners[-1])
            for tensors in (module.named_parameters, module.named_buffers):
                for tensor_name, tensor in tensors(recurse=False):
                    add(tensor, layer=layer, tensor=tensor_name, owner=owners[-1])
    if include_global:
        entries.extend(list_hooks(global_module_hooks))
        entries.extend(list_hooks(global_optimizer_hooks))
    return Census(entries, owners, frozenset(layers), replaced)


@contextmanager
def removing_new_hooks(*models: nn.Module | Optimizer | Tensor) -> Iterator[list[HookEntry]]:
    """Remove every hook that was registered inside a `with` block when the block ends, even after an error.

    It finds hooks on any module, tensor, optimizer or autograd node, and global hooks, if they were registered in the
    thread of the block. Earlier hooks and hooks of torch itself stay.
    Details: https://hookscope.github.io/hookscope/limits/census.html

    Args:
        *models: as for `census`. On these, hooks that other threads register are removed, too, and the list shows the
            names of their layers.

    Yields:
        A list that holds the removed hooks after the block.

    Raises:
        TypeError: as for `census`.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.ReLU())
        >>> with removing_new_hooks(net) as removed:
        ...     handle = net[0].register_forward_hook(print)
        >>> [str(entry) for entry in removed]
        ['forward hook print on 0 (builtin)']
        >>> len(census(net))
        0

    """
    before = {entry._id for entry in census(*models, include_global=False)}
    made: list[_NewHandle] = []
    removed: list[HookEntry] = []
    try:
        with record_handles(made):
            yield removed
    finally:
        try:
            for entry in census(*models, include_global=False):
                if entry._id not in before and not entry.by_torch and entry._remove():
                    removed.append(entry)
        finally:
            removed.extend(filter(None, map(_remove_new, made)))


# A handle, a weak reference to the object whose method made it, and the kind of hook if it is known.
_NewHandle = tuple[RemovableHandle, Callable[[], object], str]
_recorders: list[tuple[int, list[_NewHandle], bool]] = []  # thread ID, its new handles, whether to include ours
_lock = threading.Lock()
_installed = False
_torch_init: Callable[..., None] = RemovableHandle.__init__


def _recording_init(self: RemovableHandle, *args: Any, **kwargs: Any) -> None:
    _torch_init(self, *args, **kwargs)
    maker = sys._getframe(1)
    ours = maker.f_back is not None and maker.f_back.f_globals.get("__name__", "").startswith("hookscope.")
    holder = maker.f_locals.get("self", sys.modules.get(maker.f_globals.get("__name__", "")))
    node = maker.f_code.co_name == "_register_hook"
    kind = "node" if node else "tensor" if isinstance(holder, Tensor) else ""
    for thread, made, include_ours in tuple(_recorders):
        if thread == threading.get_ident() and (include_ours or not ours):
            made.append((self, make_weakref(holder), kind))


@contextmanager
def record_handles(made: list[_NewHandle], include_ours: bool = True) -> Iterator[None]:
    """Append every handle that is created in this thread. Each registration of a hook creates one.

    Args:
        made: the list to append to.
        include_ours: also append the handles of hooks that `capture`, `record` and the like register and remove.

    """
    global _installed, _torch_init
    note = (threading.get_ident(), made, include_ours)
    with _lock:
        _recorders.append(note)
        if not _installed:
            _torch_init, _installed = RemovableHandle.__init__, True
            RemovableHandle.__init__ = _recording_init  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _recorders[:] = [other for other in _recorders if other is not note]
            # If another library has wrapped this function meanwhile, leave it: without recorders it does nothing.
            if not _recorders and RemovableHandle.__init__ is _recording_init:
                RemovableHandle.__init__ = _torch_init  # type: ignore[method-assign]
                _installed = False


def _remove_new(note: _NewHandle) -> HookEntry | None:
    handle, holder, kind = note
    hooks = handle.hooks_dict_ref()
    if hooks is None or handle.id not in hooks:
        return None
    hook = hooks[handle.id]
    owner = "" if isinstance(holder(), ModuleType) else type(holder()).__name__
    entry = next((e for e in list_hooks(holder(), owner=owner) if e._id == handle.id), None)
    if entry is None and kind:  # on an autograd node, or on a tensor that only the graph refers to
        name, location, by_torch = identify(hook)
        # A legacy module hook is on its node as a _WrappedHook, and was already removed with the module's dict.
        by_torch |= isinstance(hook, _WrappedHook)
        entry = HookEntry(kind, None, "", name, location, (), by_torch, kind)
    if entry is None or entry.by_torch:
        return None
    if not entry._remove():
        handle.remove()
    return entry
